"""The quality and the speed of smaller models: pruned, quantised and distilled, for each task.

A process holds one Keras backend, so each part is this module run alone, which also works by hand:
`python -m benchmarks.quality.compression text --quick`. Other programs on the machine disturb only the part "speed".

Models are judged on the data that training held out. All of them go on learning while they are made smaller, so each
figure stands beside its controls: the original trained for as many further steps, and a model of half the size trained
for the same total time.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks import ROOT
from benchmarks.processes import program, report_of

PARTS = ("text", "series", "lines", "speed")
SEEDS = (0, 1, 2)
KEEP = 0.5
STEPS = 1000
UNITS, EMBEDDING, STUDENT = 512, 256, 128
TEXT = ["--precision", "mixed_bfloat16", "--batch-size", "128", "--learning-rate", "0.002", "--clipnorm", "1"]
SERIES = ["--target", "OT", "--window", "96", "--horizon", "24", "--patience", "3"]
LINES = ["--latent", "256", "--learning-rate", "0.003", "--clipnorm", "1", "--schedule", "cosine"]
CHARACTERS = 20_000  # in one turn of generation
ROUNDS = 15


@dataclasses.dataclass(frozen=True)
class Part:
    """A task, its data, and the sizes of its models.

    Attributes:
        file: The data.
        options: The options of `cellerate train`.
        epochs: The epochs of the original.
        units: The units of the original.
        student: The units of the student.
        pruned: The ways to prune: the number of training steps, and the choice of the units.
    """

    file: str
    options: Sequence[str]
    epochs: int
    units: int
    student: int
    pruned: Sequence[tuple[int, str]]


_ORDERS = ("both", "saliency", "magnitude")
_PRUNED = [*((STEPS // 4, order) for order in _ORDERS), (STEPS, "both")]
_TASKS = {
    "text": Part(
        "2600-0.txt",
        [*TEXT, "--embedding", str(EMBEDDING), "--length", "100"],
        3,
        UNITS,
        STUDENT,
        [(0, "both"), *_PRUNED, (STEPS // 2, "both")],
    ),
    "series": Part("ETTh1.csv", SERIES, 10, 64, 16, _PRUNED),
    "lines": Part("tinyshakespeare.txt", LINES, 5, 256, 64, _PRUNED),
}


def run(data: Path, parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Run each part in a separate process."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            output = Path(folder) / f"{part}.json"
            command = program("quality.compression", part, "--data", str(data), "--output", str(output))
            subprocess.run([*command, "--quick"] if quick else command, check=True, cwd=ROOT)
            found[part] = json.loads(output.read_text())
    return found


def measure(task: str, data: Path, folder: Path, *, quick: bool) -> dict[str, Any]:
    """Train a model of a task and compress it in every way.

    Args:
        task: The task, of `_TASKS`.
        data: The folder of the inputs.
        folder: The folder for the models.
        quick: Use small models and few steps.
    """
    part = _TASKS[task]
    seeds: Sequence[int] = SEEDS
    if quick:
        part = dataclasses.replace(part, epochs=1, units=32, student=8, pruned=[(20, "both")])
        seeds = SEEDS[:1]
    file = _excerpt(data / part.file, folder) if quick else data / part.file
    model = _trained(task, part, file, folder, part.units)
    work = _Work(model, file, max((steps for steps, _ in part.pruned), default=0))
    found: dict[str, Any] = {
        "file": part.file,
        "metric": dataclasses.asdict(work.workload.metric),
        "options": [*part.options, "--epochs", part.epochs],
        "units": part.units,
        "batches_per_epoch": work.batches,
        "parameters": int(work.workload.model.count_params()),
        "original": work.original,
    }
    work.tell("original", found["original"])
    found["int8"] = work.quantized()
    found["pruned"] = [work.pruned(steps, importance) for steps, importance in part.pruned]
    found["student_units"] = part.student
    found["distilled"] = []
    for seed in seeds:
        # The order of the batches differs, too.
        ordered = _Work(model, file, work.steps, seed)
        student = _untrained(task, work.workload.model, part.student, seed)
        found["distilled"].append(ordered.distilled(student, seed))
    found["controls"] = {
        "original trained on": work.trained_on(work.workload.model, "original trained on"),
        "half the size from scratch": work.trained_on(
            _loaded(_trained(task, part, file, folder, int(KEEP * part.units))), "half the size from scratch"
        ),
    }
    return found


class _Work:
    """A trained model, its data, and the ways to make it smaller.

    Args:
        path: The model.
        file: Its data.
        steps: The number of batches that the controls are trained on.
        seed: The seed of the order of the batches.
    """

    def __init__(self, path: Path, file: Path, steps: int, seed: int = 0) -> None:
        from cellerate.data.pipeline import KerasBatches
        from cellerate.optimization.workloads.opening import open_workload

        self.workload = open_workload(path, [file], seed=seed)
        self.steps = steps
        source = self.workload.source(self.workload.model, self.workload.batch_size)
        self.batches = len(source)
        self.data = KerasBatches(source)
        self.loss = self.workload.loss(self.workload.model)
        # The epoch that a training keeps. A short series chooses it on another part than that on which
        # models are compared; for the other tasks the last epoch is the best.
        validation = _validation(self.workload, file)
        self.judging: dict[str, Any] = {"validation": validation} if validation else {"judge": self.judge}
        self._sign = -1.0 if self.workload.metric.higher_is_better else 1.0
        self.original = self.quality(self.workload.model)

    def quality(self, model: Any, part: Literal["validation", "test"] = "test") -> float:
        """The task's metric on held-out data that no choice has used."""
        import keras

        from cellerate.layers.accelerate import accelerate

        model = accelerate(model) if isinstance(model, keras.Model) else model
        return self.workload.judge(model, part).mean

    def judge(self, model: Any) -> float:
        """The score for choices, on another part of the data; lower is better."""
        return self._sign * self.quality(model, "validation")

    def told(self, name: str, model: Any, record: Any, **more: Any) -> dict[str, Any]:
        """The entry of a smaller model in a result file."""
        found = {
            "quality": self.quality(model),
            "parameters": record.parameters_after,
            "seconds": record.seconds,
            **more,
        }
        found["loss"] = self._sign * (found["quality"] - self.original) / self.original
        self.tell(name, found["quality"], found["loss"])
        return found

    def tell(self, name: str, quality: float, loss: float | None = None) -> None:
        """Print a line."""
        worse = "" if loss is None else f", {loss:+.2%} (+ is worse)"
        print(f"{name:<44} {self.workload.metric.name} {quality:.4f}{worse}", flush=True)

    def quantized(self) -> dict[str, Any]:
        """The original in int8, evaluated in Keras and as a packed model."""
        from cellerate.compress.quantize import quantize
        from cellerate.tasks.packing import packed

        small, record = quantize(self.workload.model, self.data, loss=self.loss, **self.judging)
        as_packed = self.quality(packed(small, self.workload.record, precision="int8"))
        return self.told(
            "int8",
            small,
            record,
            packed_quality=as_packed,
            bytes_before=record.details["bytes_before"],
            bytes_after=record.details["bytes_after"],
        )

    def pruned(self, steps: int, importance: Any) -> dict[str, Any]:
        """The original with half of the units, trained for the given number of steps."""
        from cellerate.compress.prune import prune

        small, record = prune(
            self.workload.model,
            self.data,
            keep=KEEP,
            loss=self.loss,
            steps=steps,
            importance=importance,
            **self.judging,
        )
        name = f"pruned by {importance}, {steps} steps"
        return self.told(name, small, record, steps=steps, importance=importance)

    def trained_on(self, model: Any, name: str) -> dict[str, Any]:
        """A control: trained like a pruned model, for as long as the longest pruned training."""
        from cellerate.compress.distill import distill

        # With a teacher weight of zero the same code is plain training.
        found, record = distill(
            self.workload.model,
            model,
            self.data,
            **self.judging,
            loss=self.loss,
            weight=0.0,
            steps=self.steps,
        )
        return self.told(f"{name}, {self.steps} steps", found, record, steps=self.steps)

    def distilled(self, student: Any, seed: int) -> dict[str, Any]:
        """A student of the original, and a twin without the teacher, from the same weights and batches."""
        from cellerate.compress.distill import distill

        found, record = distill(
            self.workload.model,
            student,
            self.data,
            **self.judging,
            loss=self.loss,
            steps=self.steps,
        )
        taught = self.told(f"student, seed {seed}", found, record)
        return {"seed": seed, "student": taught, "twin": self.trained_on(student, f"twin, seed {seed}")}


def _validation(workload: Any, file: Path) -> Any:
    """The part of a series that its training used for validation; None for the other tasks."""
    from cellerate.data.pipeline import KerasBatches
    from cellerate.data.series import open_series
    from cellerate.tasks.judging import SeriesForecaster
    from cellerate.tasks.series import series_sources

    if workload.record.task != "series":
        return None
    known = SeriesForecaster.of(workload.model.predict_on_batch, workload.record.payload, str(file))
    options = known.options
    series = open_series([file], options.whole_reading())
    split = series.split(options.train_fraction, options.validation_fraction)
    source = series_sources(workload.model, split, options, known.settings.scaler, 0)[1]
    return None if source is None else KerasBatches(source)


def _untrained(task: str, original: Any, units: int, seed: int) -> Any:
    """A student: built like the original, with fewer units."""
    from cellerate.models.autoencoder import build_autoencoder
    from cellerate.models.forecast import build_forecast_model
    from cellerate.models.text import build_text_model

    outputs = original.output_shape
    if task == "text":
        return build_text_model(
            outputs[-1], embedding=units, units=units, seed=seed, dtype_policy="mixed_bfloat16"
        )
    if task == "lines":
        return build_autoencoder(outputs[-1], units=units, latent=256, seed=seed)
    _, window, features = original.inputs[0].shape
    # The target is the last of the columns.
    return build_forecast_model(
        window, features, outputs[1], 1, target_columns=[features - 1], units=units, dropout=0.1, seed=seed
    )


def _trained(task: str, part: Part, file: Path, folder: Path, units: int) -> Path:
    """A model made by `cellerate train`, or an existing one."""
    path = folder / f"{task}-{units}.keras"
    if not path.exists():
        verb = "embed" if task == "lines" else task
        size = ("--units", units, "--epochs", part.epochs)
        report_of(
            "train", verb, file, "-o", path, *part.options, *size, "--backend", "jax", "--quiet", "--json"
        )
    return path


def _loaded(path: Path) -> Any:
    from cellerate.models.storage import load_model

    return load_model(path)[0]


def _excerpt(file: Path, folder: Path) -> Path:
    """The first part of the data."""
    lines = file.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    excerpt = folder / file.name
    excerpt.write_text("".join(lines[:4000]))
    return excerpt


def speed(*, quick: bool) -> dict[str, Any]:
    """Characters/s of one stream, for the original, pruned and student sizes; the generated text does not matter."""
    import keras
    import numpy as np

    from cellerate.compress.prune import prune
    from cellerate.kernels.decoder.sampling import SamplingRules
    from cellerate.measure import time_alternating
    from cellerate.models.text import build_text_model
    from cellerate.tasks.packing import packed

    vocabulary = 110
    units, count = (64, 500) if quick else (UNITS, CHARACTERS)
    original = build_text_model(vocabulary, embedding=EMBEDDING, units=units, seed=0)
    ids = np.zeros((2, 3), np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pruned, _ = prune(original, (ids, ids), keep=KEEP, loss=loss, steps=0, judge=lambda model: 0.0)
    student = build_text_model(vocabulary, embedding=STUDENT, units=units * STUDENT // UNITS, seed=0)
    models = {"original": original, "pruned": pruned, "student": student}
    rules = SamplingRules(temperature=0.8, seed=1)
    work: dict[str, Callable[[], object]] = {}
    for precision in ("float32", "int8"):
        for name, model in models.items():
            steps = packed(model, precision=precision).steps
            state, logits = steps.read(steps.initial_state(), ids[:1])
            work[f"{name} {precision}"] = _drawing(steps, state, logits[0], count, rules)
    timings = time_alternating(work, repeats=3 if quick else ROUNDS)
    found: dict[str, Any] = {
        "characters": count,
        "parameters": {name: int(model.count_params()) for name, model in models.items()},
        "records": {},
    }
    for name, timing in timings.items():
        base = timings[f"original {name.split()[1]}"]
        found["records"][name] = timing.summary() | {
            "characters_per_s": count / timing.median_s,
            "speedup": base.median_s / timing.median_s,
        }
        print(f"{name:<18} {count / timing.median_s:>10,.0f} characters/s", flush=True)
    return found


def _drawing(steps: Any, state: Any, logits: Any, count: int, rules: Any) -> Callable[[], object]:
    return lambda: steps.generate(state, logits, count, rules)


def main() -> None:
    """Measure one part and write its result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the inputs")
    parser.add_argument("--output", type=Path, help="where the result goes as JSON")
    parser.add_argument("--models", type=Path, help="a folder to keep trained models in, and to find them")
    parser.add_argument("--quick", action="store_true", help="small models, few steps")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "jax"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.models or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.part == "speed":
            found = speed(quick=arguments.quick)
        else:
            found = measure(arguments.part, arguments.data, folder, quick=arguments.quick)
    found["seconds"] = time.monotonic() - start
    if arguments.output:
        arguments.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
