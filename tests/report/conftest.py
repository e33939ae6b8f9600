"""Runs as `optimize` writes them, made by hand: no test here trains anything."""

import dataclasses
import math

import pytest

from cellerate.report.quality import Metric, Tested
from cellerate.report.record import (
    CONTROL,
    Change,
    Curve,
    ForecastSample,
    Run,
    SampleOutput,
    StageRecord,
    TrainingStep,
    Verdict,
)
from support.report.pages import Reader
from support.report.recorded import candidate, interval, speed, text_candidates, text_stages

HOSTILE = (
    "</title></style></script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"'`|&amp;{{7*7}}](javascript:alert(3))\n# \x00\u202e\ufffe"
)


@pytest.fixture(scope="session")
def text_run():
    """A whole run of a text model."""
    return Run(
        schema=1,
        model="war-and-peace",
        task="text",
        item="characters",
        data="3,227,580 characters of war-and-peace.txt",
        started="2026-11-21T10:03:11+00:00",
        seconds=1154.6,
        status="finished",
        command="cellerate optimize war-and-peace.keras --data war-and-peace.txt -o out/ --seed 0",
        settings={
            "objective": "latency",
            "max_quality_loss": 0.01,
            "time_budget": 1800.0,
            "only": [],
            "keep": [0.5, 0.75],
            "latency_goal_ms": None,
            "seed": 0,
        },
        environment=(
            ("Processor", "AMD EPYC 9R45, 2 cores"),
            ("Memory", "15.6 GB"),
            ("System", "Linux 6.1.128"),
            ("Python", "3.11.7"),
            ("Backend", "jax 0.10.2"),
            ("Keras", "3.15.1"),
            ("Cellerate", "0.1.0, target avx512bf16"),
        ),
        metric=Metric("bits per character", "", False, "160,231 characters of the held-out part"),
        max_quality_loss=0.01,
        explanation=(
            (
                "lstm",
                "keras-scan",
                "JAX has no fused kernel on a CPU; cellerate.accelerate(model) gives it one.",
            ),
            ("lstm_1", "keras-scan", "As above."),
        ),
        passes=text_stages(),
        candidates=text_candidates(),
        training_steps=(
            TrainingStep("Keras, float32", 128, 100, 506.2, 501.0, 520.4, 26_300, 1_420_000_000, 1.31),
            TrainingStep("cellerate, float32", 128, 100, 97.1, 96.2, 99.9, 139_300, 1_304_000_000, 1.31),
            TrainingStep("cellerate, bfloat16", 256, 100, 137.3, 136.0, 141.8, 186_400, 2_150_000_000, None),
        ),
        verdict=Verdict(
            sentence="Training is 7.09x faster, a character is written 153x faster and the file is 19.3x smaller.",
            chosen="pruned-75-int8",
            rows=(
                Change("training", "training", 26_300, 186_400, "characters/s", True),
                Change("training", "peak memory of training", 1_420_000_000, 2_150_000_000, "bytes", False),
                Change("use", "one character", 2.31, 0.0151, "ms", False),
                Change("use", "64 texts at a time", 9_840, 893_000, "characters/s", True),
                Change("size", "file", 19_850_331, 1_031_004, "bytes", False),
                Change(None, "bits per character", 1.9473, 1.9622, "", False),
            ),
            files=(
                ("Model to serve", "models/pruned-75-int8.cell"),
                ("Model to train on", "models/pruned-75.keras"),
            ),
            training="cellerate train text book.txt -o new.keras --batch-size 256 --precision mixed_bfloat16 "
            "--learning-rate 0.00141",
            warnings=(
                "Fewer than 64 stretches of held-out text were judged: the interval of the loss is wide.",
            ),
        ),
    )


@pytest.fixture(scope="session")
def tested_run(text_run):
    """The same with a control that learnt more than what was pruned, and a verdict on a part of its own."""
    before, *others = text_run.candidates
    control = candidate(
        "control-300-4e-03", "the original trained 300 steps further", CONTROL, "float32", 1_643_107, 6_590_112, 1.92,
        -0.014, (speed("packed", 0.0612, 262e3),),
    )  # fmt: skip
    beside = {"pruned-75-int8": interval(0.022, 0.002), "pruned-50-int8": interval(0.1099, 0.002)}
    others = [
        dataclasses.replace(one, control=control.id, control_loss=beside[one.id], passes_gate=False)
        if one.id in beside
        else one
        for one in others
    ]
    tested = (
        Tested("original", "before", interval(1.951, 0.02)),
        Tested(control.id, "control", interval(1.93, 0.02), interval(-0.0108, 0.001)),
        Tested("int8", "rejected", interval(1.99, 0.02), interval(0.02, 0.001), interval(0.031, 0.001)),
    )
    verdict = dataclasses.replace(
        text_run.verdict,
        sentence="The promise is broken: on the test part, Packed, int8 is 2 % worse.",
        chosen="original",
        tested=tested,
        rejected="int8",
        rows=(*text_run.verdict.rows[:-1], Change(None, "bits per character", 1.951, 1.951, "", False)),
    )
    metric = dataclasses.replace(
        text_run.metric, source="80 k of the validation part", test_source="79 k of the test part"
    )
    return dataclasses.replace(
        text_run, schema=2, metric=metric, candidates=(before, control, *others), verdict=verdict
    )


@pytest.fixture(scope="session")
def beside_run(text_run):
    """The same as `optimize` measures it today: training and use beside Keras in turns, and int8 chosen."""
    original, packed, int8 = (text_run.candidates[n] for n in (0, 1, 3))
    keras = (speed("predict", 4.0, 12_000.0), speed("predict_on_batch", 0.5, 9_840.0))
    candidates = (
        dataclasses.replace(original, speeds=keras),
        dataclasses.replace(packed, id="float32", speeds=(speed("packed", 0.05, 262e3),)),
        dataclasses.replace(int8, speeds=(speed("packed", 0.02, 688e3),)),
    )  # fmt: skip
    steps = (
        TrainingStep("Keras, float32", 128, 100, 506.2, 501.0, 520.4, 26_300, 1_420_000_000, 1.31),
        TrainingStep("Keras, float32", 128, 100, 500.0, 490.0, 520.0, 25_600, race="kernels"),
        TrainingStep("fused kernels, float32", 128, 100, 200.0, 190.0, 210.0, 64_000, race="kernels"),
        TrainingStep("fused kernels, float32", 256, 100, 380.0, 370.0, 390.0, 67_000, race="batch"),
    )
    rows = (
        Change("use", "generation, one text, from predict", 240.0, 48_000.0, "characters/s", True),
        Change("use", "generation, one text, from predict_on_batch", 1_920.0, 48_000.0, "characters/s", True),
        Change("use", "generation, 64 at a time, from predict", 12_000.0, 688e3, "characters/s", True),
        Change("use", "latency of a call, median, from predict_on_batch", 0.5, 0.02, "ms", False),
        Change("size", "file", original.file_bytes, int8.file_bytes, "bytes", False),
        Change("training", "training step, batch of 128", 500.0, 200.0, "ms", False),
        Change(None, "bits per character on the test part", 1.951, 1.954, "", False),
    )
    return dataclasses.replace(
        text_run,
        schema=3,
        candidates=candidates,
        training_steps=steps,
        verdict=dataclasses.replace(text_run.verdict, chosen="int8", rows=rows),
    )


@pytest.fixture(scope="session")
def series_run():
    """A whole run of a forecaster, with forecasts to draw."""
    past = tuple(20 + 6 * math.sin(n / 4) + 0.4 * math.sin(7 * n) for n in range(96))
    truth = tuple(20 + 6 * math.sin((96 + n) / 4) + 0.3 * math.sin(5 * n) for n in range(24))

    def forecasts(error, band=True):
        return tuple(
            ForecastSample(
                title=f"OT, from 2018-0{n + 1}-14 00:00 on",
                past=tuple(v + n for v in past),
                truth=tuple(v + n for v in truth),
                forecast=(middle := tuple(v + n + error * math.sin(k / 3) for k, v in enumerate(truth))),
                low=tuple(v - 0.5 - k / 12 for k, v in enumerate(middle)) if band else (),
                high=tuple(v + 0.5 + k / 12 for k, v in enumerate(middle)) if band else (),
            )
            for n in range(3)
        )

    def made(name, title, by, precision, size, error, loss, p50):
        return candidate(
            name,
            title,
            by,
            precision,
            71_400,
            size,
            error,
            loss,
            (speed("packed", p50, 31_000.0, 256),),
            on_front=True,
            sample=SampleOutput(forecasts=forecasts(10 * (error - 0.31))),
        )

    return Run(
        schema=1,
        model="ett",
        task="series",
        item="forecasts",
        data="17,420 rows of ETTh1.csv",
        started="2026-11-21T11:00:00+00:00",
        seconds=312.0,
        status="finished",
        command="cellerate optimize ett.keras --data ETTh1.csv -o out/",
        settings={"objective": "throughput"},
        environment=(("Processor", "AMD EPYC 9R45, 2 cores"),),
        metric=Metric("mean absolute error", "°C", False, "2,603 windows of the held-out part"),
        max_quality_loss=0.02,
        candidates=(
            made("original", "Original, Keras", "baseline", "float32", 901_000, 0.412, None, 3.9),
            made("packed", "Packed, float32", "precision", "float32", 288_000, 0.412, 0.0, 0.171),
            made("int8", "Packed, int8", "quantize", "int8", 79_000, 0.415, 0.0073, 0.068),
        ),
        training_steps=(TrainingStep("Keras, float32", 64, None, 38.0, 37.5, 39.1, 1_684.0, 905_000_000),),
        passes=(
            StageRecord("baseline", "Baseline", "done", 9.0, "It was measured as it is."),
            StageRecord(
                "quantize",
                "Quantised to int8",
                "done",
                12.0,
                "int8 costs 0.73 %.",
                True,
                gains=(Change("use", "one forecast", 3.9, 0.068, "ms", False),),
            ),
        ),
        verdict=Verdict(
            "A forecast takes 68 µs instead of 3.9 ms.",
            "int8",
            (
                Change("use", "one forecast", 3.9, 0.068, "ms", False),
                Change(None, "mean absolute error", 0.412, 0.415, "°C", False),
            ),
            (("Model to serve", "int8.cell"),),
            "",
        ),
    )


@pytest.fixture(scope="session")
def lines_run(text_run):
    """A run of a line autoencoder: what comes back stands line beside line."""
    lines = "red hat\nblue\nold  cow\nten bees"
    backs = ("red hat\nblue\nold  cow\nten bees", "red hat\nblue\nold cow\nten beds")
    first, second = text_run.candidates[:2]
    return dataclasses.replace(
        text_run,
        task="embed",
        item="lines",
        metric=Metric("token accuracy", "", True, "1,024 held-out lines"),
        candidates=(
            dataclasses.replace(first, sample=SampleOutput(lines, backs[0]), quality=interval(0.981, 0.004)),
            dataclasses.replace(second, sample=SampleOutput(lines, backs[1]), quality=interval(0.977, 0.004)),
        ),
    )


@pytest.fixture(scope="session")
def failed_run(text_run):
    """A run that failed in the middle."""
    passes = (
        *text_run.passes[:3],
        StageRecord(
            "precision", "Packed", "failed", 3.0, reason="ModelError: the layer 'gru' has no packed form."
        ),
    )
    return dataclasses.replace(
        text_run, status="failed", verdict=None, passes=passes, candidates=text_run.candidates[:1]
    )


@pytest.fixture(scope="session")
def empty_run():
    """A run of which nothing is known but that it began."""
    return Run(
        schema=1,
        model="",
        task="text",
        item="characters",
        data="",
        started="",
        seconds=0.0,
        status="interrupted",
        command="",
        settings={},
        environment=(),
        metric=Metric("", "", False, ""),
        max_quality_loss=0.01,
    )


@pytest.fixture(scope="session")
def hostile_run(text_run, series_run):
    """A run in which every text is an attack, and every number is odd."""

    def poison(value, key=""):
        if dataclasses.is_dataclass(value):
            fields = {f.name: poison(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
            return type(value)(**fields)
        if isinstance(value, tuple):
            return tuple(poison(one, key) for one in value)
        if isinstance(value, dict):
            return {HOSTILE + str(key): poison(one) for key, one in value.items()}
        if isinstance(value, str) and key not in ("status", "quantity", "id", "chosen", "task"):
            return HOSTILE + value
        return value

    odd = (-1e300, 0.0, 1e-300, 1e300)
    strange = StageRecord(
        "odd",
        "Odd",
        "done",
        1e300,
        kept=True,
        gains=(
            Change("use", "from nothing", 0.0, 5.0, "ms", False),
            Change("training", "below nothing", -3.0, 5.0, "characters/s", True),
            Change("size", "to nothing", 5.0, 0.0, "bytes", False),
        ),
        curves=(
            Curve("odd", "a", "x", "y", odd, odd, True, ((99, "nowhere"), (-1, "before"), (0, "first"))),
            Curve("odd", "b", "x", "y", (1.0, 2.0, 3.0), (5.0,), True),
            Curve("flat", "a", "x", "y", (7.0,), (7.0,)),
            Curve("none", "a", "x", "y", (), ()),
        ),
    )
    mixed = dataclasses.replace(
        text_run,
        passes=(*text_run.passes, strange),
        candidates=(
            *text_run.candidates,
            *(dataclasses.replace(one, id=f"series-{one.id}") for one in series_run.candidates),
        ),
    )
    return poison(mixed)


@pytest.fixture(scope="session")
def parse():
    """Reads a page into a tree, and lets no tag that is left open or closed twice pass."""

    def read(page):
        reader = Reader()
        reader.feed(page)
        reader.close()
        assert reader.open == [reader.root]
        return reader.root

    return read


RUNS = [
    "text_run",
    "tested_run",
    "beside_run",
    "series_run",
    "lines_run",
    "failed_run",
    "empty_run",
    "hostile_run",
]


@pytest.fixture(scope="session", params=RUNS)
def any_run(request):
    """Each of the runs."""
    return request.getfixturevalue(request.param)
