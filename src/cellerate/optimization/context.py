"""The context of a stage: the model, the data, the findings so far, and the time left.

Candidates are packed, judged, timed and saved here, the same for all stages.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from cellerate.compress.control import FineTuning, train_further
from cellerate.compress.record import QualityGate
from cellerate.data.pipeline import KerasBatches
from cellerate.errors import BackendError, CellerateError, ModelError
from cellerate.format import duration
from cellerate.layers.accelerate import accelerate, restore
from cellerate.models.rewrite import describe, rebuild, with_dtype_policy
from cellerate.models.storage import save_model
from cellerate.optimization import clocks
from cellerate.optimization.judging import Judged, interval, paired_loss
from cellerate.optimization.listener import StageListener
from cellerate.optimization.probe_client import PATIENCE_S, Probe
from cellerate.optimization.processes import TrainingWay, Workers
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.state import State, save_state
from cellerate.optimization.training import policy_of
from cellerate.optimization.workloads.base import Workload
from cellerate.report.quality import Interval
from cellerate.report.record import CONTROL, Candidate
from cellerate.runtime.packed import PackedModel, load
from cellerate.tasks.packing import pack, packed

# Keras and the native core sum in different orders: a loss up to this share is rounding.
_ROUNDING = 1e-6
# How far the judgement of our kernels may lie from Keras's, as a share: sums in another order differ as much.
_APART, _APART_16_BITS = 1e-3, 2e-2
ORIGINAL = "original"
"""The id of the model as its user runs it today."""
PACKED = "float32"
"""The id of the same model packed without loss of precision."""


# The share of the budget that judging one model may take: the stages that always run judge about a dozen times.
_JUDGING = 1 / 30
# A stage's training is stopped once it exceeds the stage's time by this share.
_GRACE = 0.5
# The seconds that an answer of a measuring process may take even if the stage has less time.
_PATIENCE_S = 60.0


class OutOfTimeError(CellerateError):
    """A stage had too little time; the message says for what.

    Attributes:
        needs_s: About the least seconds that the stage needs.
    """

    def __init__(self, message: str, needs_s: float) -> None:
        super().__init__(message)
        self.needs_s = needs_s


@dataclasses.dataclass
class Context:
    """The context of a stage.

    Attributes:
        workload: The model and its data.
        settings: The options.
        folder: The folder of the run.
        model_file: The original model.
        data: The paths of the data.
        backend: The Keras backend.
        state: The findings so far; a stage adds to it.
        listener: The listener that receives progress.
        processes: The processes that measure.
        deadline: The end of the running stage's time, by `time.perf_counter`.
        share_s: The seconds of this stage; None for the verdict, whose time has no limit.
        spare_s: The seconds that nothing needs: a stage may use them if it takes longer than expected, and the verdict
            for more turns.
        judged_now: The ids of the models that this call has judged on the test part.
    """

    workload: Workload
    settings: OptimizeSettings
    folder: Path
    model_file: Path
    data: Sequence[str]
    backend: str
    state: State
    listener: StageListener
    processes: Workers
    deadline: float = math.inf
    share_s: float | None = None
    spare_s: float = 0.0
    judged_now: set[str] = dataclasses.field(default_factory=set)
    _first_step_at: float = dataclasses.field(default=math.nan, init=False)

    @property
    def gate(self) -> QualityGate:
        """The gate on how much worse a model may become."""
        return QualityGate(self.settings.max_quality_loss)

    def seconds_left(self) -> float:
        """Return the seconds left for the running stage; negative once they are used up."""
        return self.deadline - time.perf_counter()

    def usable_s(self) -> float:
        """Return the seconds left for the running stage, with those that nothing else needs."""
        return self.seconds_left() + self.spare_s

    def far_beyond(self) -> bool:
        """Return True if the running stage has gone so far beyond its share that it must end."""
        return self.share_s is not None and self.usable_s() < -_GRACE * self.share_s

    def give(self, share_s: float | None, spare_s: float = 0.0) -> None:
        """Give the stage that begins its time.

        Args:
            share_s: Its seconds; None for no limit.
            spare_s: The seconds that nothing needs: the stage may use them if it takes longer than expected.
        """
        self.share_s, self.spare_s = share_s, spare_s
        self.deadline = math.inf if share_s is None else time.perf_counter() + share_s
        self.processes.wait_for(self._patience_s())

    def _patience_s(self) -> float:
        return PATIENCE_S if self.share_s is None else max(_PATIENCE_S, 2 * self.share_s)

    def probe(self) -> Probe:
        """Return a process that measures the original; it is not started yet."""
        return Probe(
            self.model_file,
            self.data,
            seed=self.settings.seed,
            reading=self.settings.reading,
            table=self.settings.table,
            backend=self.backend,
            patience_s=self._patience_s(),
        )

    @property
    def kernels_are_right(self) -> bool:
        """True if our kernels judge the original as Keras does, except for rounding."""
        policy = policy_of(self.workload.model)
        return self.state.apart <= (_APART if policy == "float32" else _APART_16_BITS)

    @property
    def first_way(self) -> TrainingWay:
        """The way to train the original today, as the baseline found it."""
        first = self.state.training_steps[0]
        return TrainingWay("keras", policy_of(self.workload.model), first.batch_size, first.length)

    @property
    def chosen_way(self) -> TrainingWay:
        """The way to train that the stages have chosen so far."""
        choices = self.state.choices
        return TrainingWay(
            choices.implementation, choices.training_precision, choices.batch_size, choices.length
        )

    def consider_s(self) -> float:
        """The seconds that `consider` takes."""
        known = self.state.consider_s
        return self.state.judge_s + 1.0 if known is None else known

    def original(self) -> keras.Model:
        """Return a copy of the original on the fastest kernels."""
        return accelerate(rebuild(self.workload.model, describe(self.workload.model)))

    def to_train(self) -> keras.Model:
        """Return a copy of the original in the dtype policy chosen for training."""
        return with_dtype_policy(self.workload.model, self.state.choices.training_precision)

    def trained(self, model: keras.Model) -> keras.Model:
        """Return a model from `to_train`, after its training, in the dtype policy of the original."""
        return with_dtype_policy(model, policy_of(self.workload.model))

    def training_data(self, model: keras.Model) -> KerasBatches:
        """Return the data for further training: batches as large as in the original training, always the same ones."""
        batch_size = self.state.training_steps[0].batch_size
        return KerasBatches(self.workload.source(model, batch_size))

    def training_arguments(self, model: keras.Model) -> dict[str, Any]:
        """Return the arguments that all training functions in `compress` share."""
        return {
            "loss": self.workload.loss(model),
            "judge": self.judge,
            "seed": self.settings.seed,
            "on_step": self._step,
        }

    def _step(self, done: int, total: int, loss: float) -> None:
        """Report a training step, and stop a training that takes far longer than expected."""
        self.listener.step(done, total, loss)
        now = time.perf_counter()
        if done == 1:
            # It may have compiled, and says nothing about the others.
            self._first_step_at = now
            return
        if self.share_s is None or not self.far_beyond():
            return
        taken = self.share_s - self.seconds_left()
        needs_s = taken + (total - done) * (now - self._first_step_at) / (done - 1)
        raise OutOfTimeError(
            f"it was stopped after {duration(taken)}, as its share of the time was {duration(self.share_s)}: step "
            f"{done:,} of {total:,} of a training was done",
            needs_s,
        )

    def control(
        self, steps: int, *, learning_rate: float, parts: int = 1, model: keras.Model | None = None
    ) -> Candidate:
        """Return the control: the original trained further exactly as a candidate is, and otherwise unchanged.

        It is trained once for each number of steps and learning rate, then kept with the run.

        Args:
            steps: How many steps the candidate is trained further.
            learning_rate: The candidate's learning rate at the start.
            parts: The number of stretches in which the candidate is trained.
            model: The model to train, with the original's weights; None for `to_train`.
        """
        name = self.control_id(steps, learning_rate)
        if before := self.candidate(name):
            return before
        title = f"the original trained {steps:,} steps further"
        title += f" from a rate of {learning_rate:g}" if parts > 1 else ""
        self.listener.notify(f"control: {title}")
        model = self.to_train() if model is None else model
        trained = train_further(
            model,
            self.training_data(model),
            FineTuning(steps=steps, learning_rate=learning_rate, **self.training_arguments(model)),
            parts=parts,
        )
        found = self.consider(name, title, CONTROL, self.trained(trained), "float32")
        # Saved at once, so that a run that is stopped here does not train it again.
        save_state(self.state, self.folder)
        return found

    def control_id(self, steps: int, learning_rate: float) -> str:
        """Return the id of the control of such a training."""
        return f"{CONTROL}-{steps}-{learning_rate:.0e}"

    def judge(self, model: keras.Model) -> float:
        """Return the value of a Keras model for the functions in `compress`: less is better."""
        return self._badness(accelerate(model))

    def judge_packed(self, model: keras.Model, precision: str) -> float:
        """Return the value of a model once it is packed in a precision: less is better."""
        return self._badness(packed(model, self.workload.record, precision=precision))

    def _badness(self, model: keras.Model | PackedModel) -> float:
        value = self.workload.judge(model, "validation").mean
        return -value if self.workload.metric.higher_is_better else value

    def limit_judging(self, model: keras.Model | PackedModel) -> bool:
        """Judge models on only a share of the held-out data if this model takes too long for all of it.

        Args:
            model: A model that has been judged before, so that nothing is compiled for it.

        Returns:
            True if the share is smaller now.
        """
        began = time.perf_counter()
        self.workload.judge(model, "validation", brief=True)
        batch_s = time.perf_counter() - began
        whole_s = batch_s * max(map(len, self.workload.held_out.values()))
        allowed_s = _JUDGING * self.settings.time_budget
        if whole_s <= allowed_s:
            return False
        self.state.judged_share *= allowed_s / whole_s
        self.workload.judge_on(self.state.judged_share)
        return True

    def _limited_by_the_first(self, packed: PackedModel) -> bool:
        """Limit judging by the first packed model: it may run step by step, slower than the model of the baseline."""
        first = len(self.state.candidates) == 1
        return first and self.kernels_are_right and self.limit_judging(packed)

    def candidate(self, name: str) -> Candidate | None:
        """The candidate with that id, or None if it was not made."""
        return next((one for one in self.state.candidates if one.id == name), None)

    @property
    def before(self) -> Candidate:
        """The original as a candidate, with which all others are compared."""
        return self.state.candidates[0]

    def consider(
        self,
        name: str,
        title: str,
        made_by: str,
        model: keras.Model,
        precision: str,
        control: Candidate | None = None,
    ) -> Candidate:
        """Packs, judges and times a model, and adds it to the candidates.

        Args:
            name: The id of the candidate.
            title: Its name in words.
            made_by: The stage that made it.
            model: The model; it is not changed.
            precision: How the packed file stores its matrices.
            control: The control of its training; None if it was not trained further.

        Returns:
            The candidate. If the model cannot be packed, the candidate runs on Keras and says why.
        """
        self.listener.notify(f"measuring {title}")
        began = time.perf_counter()
        work, stem = self.workload, self.folder / "candidates" / name
        restore(model)
        save_model(model, stem.with_suffix(".keras"), work.record)
        cell, error = None, ""
        try:
            pack(stem.with_suffix(".keras"), stem.with_suffix(".cell"), precision=precision)
            cell = load(stem.with_suffix(".cell"))
        except (BackendError, ModelError) as reason:
            error = f"it cannot be packed and runs on Keras: {reason}"
        if cell is not None and self._limited_by_the_first(cell):
            del self.state.judged[ORIGINAL]
            self.add(self.before, work.judge(self.original(), "validation"))
        file = stem.with_suffix(".keras" if cell is None else ".cell")
        accelerate(model)
        uses = work.keras_uses(model) if cell is None else [work.packed_use(cell)]
        # The verdict times the candidates that may be chosen in turns, so a brief timing is enough here.
        speeds = clocks.fastest_first(clocks.speed(use, clocks.BRIEFLY_S) for use in uses)
        found = self.add(
            Candidate(
                id=name,
                title=title,
                made_by=made_by,
                precision=precision if cell is not None else "float32",
                parameters=int(model.count_params()),
                file_bytes=file.stat().st_size,
                quality=None,
                loss=None,
                passes_gate=False,
                speeds=speeds,
                file=str(file.relative_to(self.folder)),
                sample=work.sample(model, cell),
                error=error,
                control=None if control is None else control.id,
            ),
            work.judge(model if cell is None else cell, "validation"),
        )
        self.state.consider_s = time.perf_counter() - began
        return found

    def add(self, candidate: Candidate, judged: Judged) -> Candidate:
        """Add a candidate with its quality on the validation part, compared with the original and its control."""
        before = self.state.judged.get(ORIGINAL)
        control = None if candidate.control is None else self.state.judged[candidate.control]
        complete = dataclasses.replace(
            candidate,
            quality=interval(judged),
            loss=None if before is None else self.loss(before, judged),
            control_loss=None if control is None else self.loss(control, judged),
        )
        complete = dataclasses.replace(complete, passes_gate=self.allowed(complete.worst_loss))
        self.state.judged[candidate.id] = judged
        # An interrupted stage may have made this candidate already; it is then replaced.
        kept = [one for one in self.state.candidates if one.id != candidate.id]
        self.state.candidates[:] = [*kept, complete]
        return complete

    def loss(self, before: Judged, after: Judged) -> Interval:
        """Return the loss of quality from one model to another on the same part, as a share; negative is a gain."""
        return paired_loss(before, after, higher_is_better=self.workload.metric.higher_is_better)

    def allowed(self, loss: float) -> bool:
        """Return True if a model may be worse by this share."""
        return loss <= self.settings.max_quality_loss + _ROUNDING
