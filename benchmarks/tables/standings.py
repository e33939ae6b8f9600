"""The standings in a result: ours and the peers, by precision, so that only equal work is compared.

The tables of gains take Keras's fastest way from here, and docs/measured/method.md the cases where Cellerate loses.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.forecasting import data, table as forecasting_table
from benchmarks.precisions import PRECISIONS
from cellerate.format import short, size
from cellerate.machine.environment import BACKENDS

WAYS = {
    "predict": "`predict` a character",
    "predict_on_batch": "`predict_on_batch` a character",
    "eager": "an eager step",
    "step": "a compiled step",
    "drawn": "a compiled step that draws",
    "loop": "steps compiled as one loop",
    "draw": "a call a character",
    "logits": "a step from Python",
    "sequence": "judging a text in one call",
}
OURS = {
    "loop": "",
    "generate": ", 20,000 characters in one call",
    "draw": ", a call a character",
    "step": ", a step from Python",
    "score": ", judging a text",
    "sequence": ", judging a text in one call",
    "streams": ", many streams",
}
RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "litert": "LiteRT",
    "onednn": "oneDNN through torch",
    "torch": "torch",
}
_CALLS = ("step", "draw", "drawn", "eager", "predict_on_batch", "predict")
# The name "" is a runtime's bare LSTM node, which does less work than all others.
SAME_WORK = {
    "loop": ("loop", *_CALLS, ""),
    "generate": ("loop", *_CALLS, ""),
    "draw": _CALLS,  # NumPy draws, which takes longer than the step; the node stands beside `step`
    "step": ("logits", *_CALLS, ""),
}
"""The jobs comparable with ours: making a text; a call and a draw each; a call without a draw."""
SIDES = {"ours": "Cellerate", "keras": "Keras"}
Result = dict[str, Any]


class Entry(NamedTuple):
    """The figure of one contestant.

    Attributes:
        side: "ours", "keras" or "other".
        who: Its name.
        precision: One of `PRECISIONS`.
        value: The measured value.
        way: For generating, the job's first word.
    """

    side: str
    who: str
    precision: str
    value: float
    way: str = ""


class Contest(NamedTuple):
    """Contestants that did the same work.

    Attributes:
        what: The work.
        entries: The contestants.
        told: Writes a value with its unit.
        higher_is_better: Whether higher values are better.
    """

    what: str
    entries: list[Entry]
    told: Callable[[float], str]
    higher_is_better: bool = True

    def best(self, side: str, precision: str, ways: Iterable[str] | None = None) -> Entry | None:
        """The best of one side in one precision, among the given jobs."""
        return self._best(one for one in self.of(side, precision) if ways is None or one.way in ways)

    def opponent(self, ours: Entry) -> Entry | None:
        """The best peer in the same work and precision as one of ours."""
        ways = SAME_WORK.get(ours.way, (ours.way,))
        found = (self.best(side, ours.precision, ways) for side in ("keras", "other"))
        return self._best(one for one in found if one is not None)

    def shown(self, entry: Entry) -> str:
        """A figure with its unit and its contestant."""
        return f"{self.told(entry.value)} ({entry.who})"

    def of(self, side: str, precision: str) -> list[Entry]:
        """The entries of one side in one precision."""
        return [one for one in self.entries if (one.side, one.precision) == (side, precision)]

    def ratio(self, after: Entry, before: Entry) -> float:
        """The factor by which `after` is better."""
        return after.value / before.value if self.higher_is_better else before.value / after.value

    def _best(self, entries: Iterable[Entry]) -> Entry | None:
        sign = 1 if self.higher_is_better else -1
        return max(entries, key=lambda one: sign * one.value, default=None)


def training(race: list[dict[str, Any]]) -> Contest:
    """A race of training steps, all of one size."""
    first = race[0]
    variant = f", {first['variant']}" if "variant" in first else ""
    what = f"training, H={first['units']}, B={first['batch']}{variant}"
    return Contest(what, [_trainer(one, one["characters_per_s"]) for one in race], _characters_per_s)


def typical(race: list[dict[str, Any]]) -> Contest:
    """A race of training steps of a typical model."""
    what = f"training, {race[0]['title']}, B={race[0]['batch']}"
    entries = [_trainer(one, one["median_s"]) for one in race]
    return Contest(what, entries, milliseconds, higher_is_better=False)


def _trainer(one: dict[str, Any], value: float) -> Entry:
    """A contestant of a race of training steps."""
    name, precision = one["implementation"], one["policy"].removeprefix("mixed_")
    side = "ours" if name.startswith("cellerate") else "keras" if name.startswith("keras") else "other"
    if side == "other":
        return Entry(
            side, name + (", torch.compile" if one.get("jit_compile") is True else ""), precision, value
        )
    given = "".join(f", {way}=True" for way in ("jit_compile", "unroll") if one.get(way) is True)
    return Entry(side, f"{SIDES[side]} on {one['backend']}{given}", precision, value)


def generating(found: dict[str, Any]) -> Contest:
    """All contests of generating with a model of one size."""
    entries = []
    for one in found["records"]:
        name, words = one["contestant"], one["job"].split()
        precision = words.pop() if words[-1] in PRECISIONS else "float32"
        way = " ".join(words)
        if name == "cellerate":
            side, who = "ours", f"Cellerate{OURS[way]}"
        elif name in BACKENDS:
            side, who = "keras", f"Keras on {name}, {WAYS[way]}"
        else:
            side, who = "other", f"{RUNTIMES[name]}, {WAYS.get(way, 'its LSTM node alone')}"
        entries.append(Entry(side, who, precision, one["characters_per_s"], way))
    return Contest(f"generating, H={found['units']}", entries, _characters_per_s)


def inferring(cell: dict[str, Any]) -> Contest:
    """A model and a batch."""
    entries = []
    for one in cell["records"]:
        name = one["contestant"]
        side = (
            "ours" if name == "cellerate" else "keras" if one["way"].startswith(("jax.", "tf.")) else "other"
        )
        who = {"ours": "Cellerate", "keras": f"Keras on {name}"}.get(side) or RUNTIMES[name]
        entries.append(Entry(side, who, one["precision"], one["median_s"]))
    return Contest(
        f"inference, {cell['model']}, B={cell['batch']}", entries, milliseconds, higher_is_better=False
    )


def stepping(stack: dict[str, Any], when: str) -> Contest:
    """A step of a stack of LSTMs, on a "quiet" or a "busy" machine."""
    entries = []
    for one in stack["records"]:
        name = one["contestant"]
        side, who = ("ours", "Cellerate") if name == "cellerate" else ("other", RUNTIMES[name])
        entries.append(Entry(side, who, one["precision"], one[when]["median_s"]))
    beside = " beside a busy process" if when == "busy" else ""
    return Contest(f"a step of {stack['stack']}{beside}", entries, microseconds, higher_is_better=False)


def _kernel(result: Result) -> Iterator[Contest]:
    theirs = result.get("onednn", {}).get("sizes", ())
    for one in theirs:
        size = tuple(one[name] for name in ("units", "batch", "inputs", "dtype"))
        for ours in result["sizes"]:
            if tuple(ours[name] for name in ("units", "batch", "inputs", "dtype")) != size:
                continue
            for what, halves in (("training", ("forward", "backward")), ("inference", ("inference",))):
                entries = [
                    Entry(side, who, one["dtype"], sum(record[half]["median_s"] for half in halves))
                    for side, who, record in (
                        ("ours", "Cellerate", ours),
                        ("other", "oneDNN through torch", one),
                    )
                ]
                told = f"the kernel alone, {what}, H={one['units']}, B={one['batch']}"
                yield Contest(told, entries, milliseconds, higher_is_better=False)


def _variants(result: Result) -> Iterator[Contest]:
    for policy in ("float32", "mixed_bfloat16"):
        races: dict[str, list[dict[str, Any]]] = {}
        for one in result.get(policy, ()):
            races.setdefault(one["variant"], []).append(one)
        yield from map(training, races.values())


def _text(result: Result) -> Iterator[Contest]:
    entries = []
    for backend, found in result["backends"].items():
        plain = max(run["characters_per_s"] for run in found["keras_fit"])
        entries.append(Entry("keras", f"Keras `fit` on {backend}", "float32", plain))
        ours = found["cellerate"]["characters_per_s"]
        entries.append(Entry("ours", f"`cellerate train text` on {backend}", "float32", ours))
    yield Contest("training on a book", entries, _characters_per_s)


def _loader(result: Result) -> Iterator[Contest]:
    entries = [
        Entry("ours", f"Cellerate, {name} file", "float32", found["windows"]["batches"]["windows_per_s"])
        for name, found in result["sizes"].items()
    ]
    for name, found in result["peers"].items():
        if "cellerate" not in name.lower():
            entries.append(Entry("other", f"`{name}`", "float32", found["windows_per_s"]))
    yield Contest("feeding windows", entries, lambda value: f"{short(value)} windows/s")


def _scale(result: Result) -> Iterator[Contest]:
    entries = [
        Entry("ours", "Cellerate, from the disk", "float32", result["load"]["windows_per_s"]["median"])
    ]
    for name, found in result["peers"].items():
        entries.append(Entry("other", f"`{name}`", "float32", found["windows_per_s"]["median"]))
    yield Contest("feeding windows of 100 M rows", entries, lambda value: f"{short(value)} windows/s")


def _memory(result: Result) -> Iterator[Contest]:
    for units in dict.fromkeys(one["units"] for one in result["processes"]):
        entries = []
        for one in result["processes"]:
            if one["units"] == units:
                side = "ours" if one["implementation"].startswith("cellerate") else "keras"
                who = f"{SIDES[side]} on {one['backend']}"
                middle = one["peak_bytes"][len(one["peak_bytes"]) // 2]
                entries.append(Entry(side, who, one["policy"].removeprefix("mixed_"), middle))
        yield Contest(f"memory of training, H={units}", entries, size, higher_is_better=False)


def _series(result: Result) -> Iterator[Contest]:
    entries = []
    for backend, report in result.items():
        tested = report["test"]
        entries.append(Entry("ours", f"Cellerate on {backend}", "float32", tested["model"]["mae"]))
        entries.append(Entry("other", "the last value", "float32", tested["last_value"]["mae"]))
        entries.append(Entry("other", "the day before", "float32", tested["seasonal_naive"]["mae"]))
    yield Contest("error of forecasts", entries, lambda value: f"{value:.3f} °C", higher_is_better=False)


def _forecasting(result: Result) -> Iterator[Contest]:
    for task, horizon, found in forecasting_table.contests(result):
        entries = []
        for name, records in found.items():
            side = "ours" if data.of_ours(name) else "other"
            who = forecasting_table.NAMES.get(name, name).replace("*", "")
            entries.append(Entry(side, who, "float32", forecasting_table.mean_of(records)))
        what = f"error of forecasts, {forecasting_table.WORDS[task]}, {horizon} hours ahead"
        yield Contest(what, entries, lambda value: f"{value:.4f} (MSE, scaled)", higher_is_better=False)


def _backtest(result: Result) -> Iterator[Contest]:
    for one in result["backtests"]:
        entries = []
        for record in one["records"]:
            name, way = record["contestant"], record["way"]
            side = "ours" if data.of_ours(name) else "other"
            told = forecasting_table.WAYS.get((name, way), f"{name}, {way}").replace("*", "")
            entries.append(Entry(side, told, "float32", record["median_s"]))
        yield Contest(f"backtest, {one['what']}", entries, milliseconds, higher_is_better=False)


CONTESTS: dict[str, Callable[[Result], Iterable[Contest]]] = {
    "kernel": _kernel,
    "step": lambda result: map(training, result["races"]),
    "variants": _variants,
    "small": lambda result: map(training, result["races"]),
    **dict.fromkeys(("typical", "typical-avx2"), lambda result: map(typical, result["races"])),
    "memory": _memory,
    "text": _text,
    "generate": lambda result: map(generating, result["sizes"]),
    "inference": lambda result: map(inferring, result["cells"]),
    "latency": lambda result: (
        stepping(stack, when) for stack in result["stacks"] for when in ("quiet", "busy")
    ),
    "loader": _loader,
    "scale": _scale,
    "series": _series,
    "forecasting": _forecasting,
    "backtest": _backtest,
}
"""The cases with peers in the same precision; `optimize` compares different precisions."""


class Worst(NamedTuple):
    """Our worst result in a case."""

    contest: Contest
    ours: Entry
    opponent: Entry
    ratio: float


def worst(case: str, result: Result) -> Worst | None:
    """The pair with our worst ratio, among all pairs of ours and the best peer in the same work and precision."""
    pairs = []
    for contest in CONTESTS[case](result):
        for ours in (one for precision in PRECISIONS for one in contest.of("ours", precision)):
            opponent = contest.opponent(ours)
            if opponent is not None:
                pairs.append(Worst(contest, ours, opponent, contest.ratio(ours, opponent)))
    return min(pairs, key=lambda pair: pair.ratio, default=None)


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, in three digits."""
    return f"{seconds * 1e3:.3g} ms"


def microseconds(seconds: float) -> str:
    """A duration in microseconds, in three digits."""
    return f"{seconds * 1e6:.3g} µs"


def _characters_per_s(value: float) -> str:
    return f"{short(value)} characters/s"
