"""A process that only measures: it opens the model and the data, and answers one question per line.

A measurement must not depend on earlier work. The baseline needs a process that never loaded our kernels, and memory
must be measured in a process that did nothing else. A process that runs out of memory does not end the run.
`probe_client` starts this process.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from cellerate import errors
from cellerate.errors import CellerateError, in_a_line
from cellerate.messages import to_json

MEMORY_WORDS = ("RESOURCE_EXHAUSTED", "out of memory", "bad_alloc", "allocate memory", "OOM when allocating")
"""Words in the errors of frameworks when memory runs out; a MemoryError may have none."""


class Answering(Protocol):
    """The model and the data that a process has opened."""

    def answer(self, question: dict[str, Any]) -> Any:
        """The answer to a question, as JSON."""


def main() -> None:
    """Answers questions about a trained model."""
    answer_questions(_Work)


def answer_questions(open_work: Callable[[dict[str, Any]], Answering]) -> None:
    """Reads what to open and then one question per line from stdin; writes one answer per line to the former stdout.

    Args:
        open_work: Opens the model and the data that the first line names.
    """
    # Stdout is for answers: the prints of frameworks go to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _offer_to_the_memory_killer()
    work: Answering | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            work = work or open_work(question)
            answer = {"answer": work.answer(question)}
        except KeyboardInterrupt:
            return
        except Exception as error:  # a backend may raise anything, and the error is the answer
            memory = isinstance(error, MemoryError) or any(word in str(error) for word in MEMORY_WORDS)
            own = isinstance(error, CellerateError)
            said = to_json(error.args[0]) if own else f"{in_a_line(error):.300}"
            answer = {"error": said, "memory": memory, "kind": _public_name(error)}
            if os.environ.get("CELLERATE_TRACEBACK"):
                raise
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _public_name(error: Exception) -> str:
    """The name of the first of an error's classes that callers know, which may be a base of its own; "" if none is."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__), "")


class _Work:
    """The model and the data, opened once."""

    def __init__(self, opened: dict[str, Any]) -> None:
        from cellerate.data.settings import TableOptions
        from cellerate.optimization.workloads.opening import open_workload
        from cellerate.tasks.settings import ReadingOptions

        self._workload = open_workload(
            Path(opened["model"]),
            opened["data"],
            seed=opened["seed"],
            reading=ReadingOptions(**opened["reading"]),
            table=TableOptions(**opened["table"]),
        )
        self._start = self._workload.model.get_weights()
        self._uses: dict[tuple[str, ...], list[Any]] = {}
        self._trainers: dict[str, Any] = {}
        self._kinds: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "explain": self._explain,
            "judge": self._judge,
            "use": self._use,
            "train": self._train,
            "trainer": self._trainer,
            "turn": self._turn,
            "load": self._load,
        }

    def answer(self, question: dict[str, Any]) -> Any:
        return self._kinds[question["kind"]](**question.get("with", {}))

    def _explain(self) -> list[list[str]]:
        """Return each layer with its kernel and the reason."""
        from cellerate.layers.conditions import KERNELS
        from cellerate.layers.explain import explain

        return [
            [report.path, KERNELS[report.kernel], "; ".join(c.name for c in report.changes)]
            for report in explain(self._workload.model).layers
        ]

    def _judge(self, *, part: Any, brief: bool = False) -> dict[str, Any]:
        return vars(self._workload.judge(self._workload.model, part, brief=brief))

    def _open(self, *, files: list[str] | None = None) -> float:
        """Prepare the files for `_use`; return the processor seconds spent on opening the model and the data."""
        opened_s = time.process_time()
        if files is not None:
            self._ready(files)
        return opened_s

    def _use(self, *, files: list[str], seconds: float | None = None) -> list[dict[str, Any]]:
        """Time packed models, or the model in Keras if there are none; each figure takes `seconds`."""
        from cellerate.optimization.clocks import speed

        return [vars(speed(use, seconds)) for use in self._ready(files)]

    def _ready(self, files: list[str]) -> list[Any]:
        from cellerate.runtime.packed import load

        work, key = self._workload, tuple(files)
        if key not in self._uses:
            ready = [work.packed_use(load(file)) for file in files]
            self._uses[key] = ready or list(work.keras_uses(work.model))
        return self._uses[key]

    def _train(
        self,
        *,
        way: str,
        policy: str,
        implementation: str,
        batch_size: int,
        length: int | None,
        steps: int | None = None,
        seconds: float = 2.0,
    ) -> dict[str, Any]:
        """Train from the model's own weights for a few steps, and return the fields of a `TrainingStep`."""
        from cellerate.layers.accelerate import accelerate
        from cellerate.machine.environment import peak_memory_bytes
        from cellerate.optimization.training import settings_of
        from cellerate.training.trial import try_training

        work = self._workload
        model = self._model(policy)
        accelerate(model, implementation)
        source = work.timed_source(model, batch_size, length)
        settings = settings_of(work.record)
        trial = try_training(
            model,
            source,
            loss=work.loss(model),
            settings=settings,
            policy=policy,
            steps=steps,
            seconds=seconds,
        )
        p20, p80 = (1e3 * trial.steps.percentile_s(share) for share in (0.2, 0.8))
        return {
            "way": way,
            "batch_size": source.batch_size,
            "length": length or work.length,
            "step_ms": 1e3 * trial.steps.median_s,
            "step_p20_ms": p20,
            "step_p80_ms": p80,
            "items_per_s": source.items_per_batch / trial.steps.median_s,
            "peak_memory_bytes": peak_memory_bytes(),
            "loss": trial.loss if math.isfinite(trial.loss) else None,
        }

    def _trainer(
        self, *, name: str, policy: str, implementation: str, batch_size: int, length: int | None
    ) -> dict[str, Any]:
        """Prepare a training that runs in turns; return the size of its batches and about the time of a step."""
        from cellerate.layers.accelerate import accelerate
        from cellerate.optimization.training import settings_of
        from cellerate.training.trial import Trainer

        began, used = time.perf_counter(), time.process_time()
        work = self._workload
        model = self._model(policy)
        accelerate(model, implementation)
        source = work.timed_source(model, batch_size, length)
        trainer = Trainer(
            model, source, loss=work.loss(model), settings=settings_of(work.record), policy=policy
        )
        self._trainers[name] = trainer
        return {
            "batch_size": source.batch_size,
            "length": length or work.length,
            "items": source.items_per_batch,
            "step_s": trainer.step_s if math.isfinite(trainer.step_s) else None,
            # Other processes of the run may have used the processors, and this one may have used several.
            "compile_s": min(time.perf_counter() - began, time.process_time() - used),
        }

    def _turn(self, *, name: str, steps: int, restart: bool = False) -> dict[str, Any]:
        """Continue a training for `steps` steps, or restart it first."""
        from cellerate.machine.environment import peak_memory_bytes

        if restart:
            self._trainers[name].restart()
        trial = self._trainers[name].turn(steps)
        return {
            "seconds": list(trial.steps.seconds),
            "loss": trial.loss if math.isfinite(trial.loss) else None,
            "peak_memory_bytes": peak_memory_bytes(),
        }

    def _model(self, policy: str) -> Any:
        """Return the model with its own weights in a dtype policy."""
        from cellerate.models.rewrite import with_dtype_policy

        self._workload.model.set_weights(self._start)
        return with_dtype_policy(self._workload.model, policy)

    def _load(self, *, batch_size: int, length: int | None) -> dict[str, float]:
        """Measure the milliseconds to make a batch while nothing else runs."""
        from cellerate.data.arrays import iterate
        from cellerate.optimization.clocks import timed_calls

        source = self._workload.source(self._workload.model, batch_size, length)
        batches: Any = iter(())
        epoch = 0

        def make() -> None:
            nonlocal batches, epoch
            if next(batches, None) is None:
                batches = iterate(source, epoch, 0, len(source))
                epoch += 1
                next(batches)

        taken = timed_calls(make)
        return {"batch_ms": 1e3 * sum(taken) / len(taken)}


def _offer_to_the_memory_killer() -> None:
    """Tells Linux to kill this process first if memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


if __name__ == "__main__":
    main()
