"""The first table and the chart of the README, and the table of all gains, one for each processor.

Each figure stands beside the fastest way, on any backend, in which Keras alone does the same with the same model in the
same precision; the gains of a narrower precision or a pruned model have rows of their own. A `predict` a character is
one row, because many people do that.
"""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, NamedTuple

from benchmarks.precisions import PRECISIONS
from benchmarks.tables.standings import SAME_WORK, WAYS, Contest, Entry, generating, inferring, typical
from cellerate.format import percent, rounded, short, size

Records = dict[str, list[dict[str, Any]]]
"""The records of each case on one processor with the same code, newest first; empty if not measured."""
TRAINED = (("forecaster", 32), ("bidirectional", 32), ("imdb", 32), ("characters-128", 128))
"""The shown models and batches of the case `typical`."""
SHOWN = (("forecaster 2x50", 1), ("IMDB bidirectional 2x64", 32), ("text 512", 32))
"""The models and batches of the case `inference` that are shown first."""
ENOUGH = 3
"""The least number of records for which a range is given."""


class Row(NamedTuple):
    """A promise: its name, the values before and after, and the factor."""

    what: str
    before: str
    after: str
    factor: float


def table(records: Records) -> list[list[str]]:
    """A row for each promise from the newest records, with the range over all records."""
    rows = [["", "before", "after", "times better"]]
    for case, rows_of in ROWS.items():
        if repeats := records.get(case):
            made = [list(rows_of(record["result"])) for record in repeats]
            for row in made[0]:
                found = [one.factor for rows in made for one in rows if one.what == row.what]
                rows.append([row.what, row.before, row.after, f"{rounded(row.factor)}{_range(found)}"])
    return rows


FIRST = {
    "training, forecaster, 2 LSTM 50 with dropout, (60, 1), B=32, float32, on TensorFlow": (
        "Train a forecaster: 2 layers of 50 units, batch 32"
    ),
    "training, IMDB, embedding 128, bidirectional 2 LSTM 64, 200 ids, B=32, float32, on TensorFlow": (
        "Train on reviews: 2 bidirectional layers of 64 units, batch 32"
    ),
    "training, characters, embedding 256, LSTM 128, T=100, B=128, float32, on TensorFlow": (
        "Train on characters: 128 units, batch 128"
    ),
    "generating, H=512, float32, beside `predict` a character, which many people do": (
        "Generate text: 512 units, beside `predict` for each character"
    ),
    "generating, H=512, float32": "Generate text: 512 units, beside a loop compiled by hand",
    "predicting, forecaster 2x50, 1 row, float32": "Predict one row: 2 layers of 50 units",
}
"""The rows of the long table that the README shows, in plain words."""
AVX2 = ", with AVX2 alone"
"""The end of the name of a row in which no contestant used wider instructions."""


def first(records: Records) -> list[list[str]]:
    """The rows of `FIRST`, without their measuring methods."""
    rows = [["", "Keras", "Cellerate", "times better"]]
    for case, rows_of in ROWS.items():
        for row in rows_of(records[case][0]["result"]) if records.get(case) else ():
            name = row.what.removesuffix(AVX2)
            if name in FIRST:
                what = FIRST[name] + row.what.removeprefix(name)
                values = (value.partition(" (")[0] for value in (row.before, row.after))
                unit = " characters/s" if row.what.startswith("generating") else ""
                rows.append([what, *(f"{value}{unit}" for value in values), rounded(row.factor)])
    return rows


def _range(factors: list[float]) -> str:
    """The range of several records in brackets, if there are enough for one; otherwise their number."""
    count = len(factors)
    if count >= ENOUGH:
        return f" ({rounded(min(factors))} to {rounded(max(factors))} in {count} records)"
    return f" ({count} records)" if count > 1 else ""


def _training(result: dict[str, Any]) -> Iterator[Row]:
    """A step of typical models, on the fastest backend and on TensorFlow."""
    for race in _trained(result):
        on_tensorflow = [one for one in race if one["backend"] == "tensorflow"]
        for records, where in ((race, ""), (on_tensorflow, ", on TensorFlow")):
            contest = typical(records)
            keras, ours = contest.best("keras", "float32"), contest.best("ours", "float32")
            if keras and ours:
                told = (contest.shown(keras), contest.shown(ours))
                yield Row(f"{contest.what}, float32{where}", *told, contest.ratio(ours, keras))


def _training_with_avx2(result: dict[str, Any]) -> Iterator[Row]:
    """The same with the instructions of an ordinary laptop."""
    return (row._replace(what=row.what + AVX2) for row in _training(result))


def _trained(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The shown races."""
    return [race for race in result["races"] if race and (race[0]["model"], race[0]["batch"]) in TRAINED]


def _generating(result: dict[str, Any]) -> Iterator[Row]:
    """The largest layer."""
    contest = generating(max(result["sizes"], key=lambda found: found["units"]))
    yield from _beside_keras(contest)
    predict, ours = contest.best("keras", "float32", ["predict"]), contest.best("ours", "float32", ["loop"])
    if predict and ours:
        what = f"{contest.what}, float32, beside `predict` a character, which many people do"
        yield Row(what, _told(predict), _told(ours), contest.ratio(ours, predict))
    yield from _added(contest)


def _predicting(result: dict[str, Any]) -> Iterator[Row]:
    """Some common models, with one row and with many."""
    for cell in result["cells"]:
        if (cell["model"], cell["batch"]) not in SHOWN:
            continue
        contest = inferring(cell)
        keras, (ours,) = contest.best("keras", "float32", [""]), contest.of("ours", "float32")
        what = f"predicting, {cell['model']}, {cell['batch']} row{'s' * (cell['batch'] > 1)}"
        if keras:
            yield Row(
                f"{what}, float32", contest.shown(keras), contest.shown(ours), contest.ratio(ours, keras)
            )
        (narrow,) = contest.of("ours", "int8")
        told = (contest.shown(ours), contest.shown(narrow))
        yield Row(f"{what}, int8 in place of float32", *told, contest.ratio(narrow, ours))


def _pruning(result: dict[str, Any]) -> Iterator[Row]:
    """The gain of half the units, in the precision of the final packed model."""
    found = result["speed"]["records"]
    before, after = (found[f"{name} int8"]["characters_per_s"] for name in ("original", "pruned"))
    what = "generating, int8, half of the units pruned"
    yield Row(what, f"{short(before)} (Cellerate)", f"{short(after)} (Cellerate)", after / before)


def _file(result: dict[str, Any]) -> Iterator[Row]:
    """The file of a trained model."""
    packed = result["packed"]
    keras, before, after = result["keras"]["bytes"], packed["float32"]["bytes"], packed["int8"]
    yield Row("the file, float32", f"{size(keras)} (`.keras`)", f"{size(before)} (`.cell`)", keras / before)
    worse = f"{'+' if after['increase'] > 0 else ''}{percent(after['increase'])}"
    told = f"{size(after['bytes'])} (`.cell`, {worse} bits per character)"
    yield Row(
        "the file, int8 in place of float32", f"{size(before)} (`.cell`)", told, before / after["bytes"]
    )


ROWS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "typical": _training,
    "typical-avx2": _training_with_avx2,
    "generate": _generating,
    "inference": _predicting,
    "smaller": _pruning,
    "quality": _file,
}
"""The cases that the headline is made of."""


def _beside_keras(contest: Contest) -> Iterator[Row]:
    """The gains in each precision that both sides measured."""
    for precision in PRECISIONS:
        keras = contest.best("keras", precision, SAME_WORK["loop"])
        ours = contest.best("ours", precision, ["loop"])
        if keras and ours:
            yield Row(f"{contest.what}, {precision}", _told(keras), _told(ours), contest.ratio(ours, keras))


def _added(contest: Contest) -> Iterator[Row]:
    """The gain of narrower types on our own kernels."""
    wide = contest.best("ours", "float32", ["loop"])
    for precision in PRECISIONS[1:]:
        narrow = contest.best("ours", precision, ["loop"])
        if wide and narrow:
            what = f"{contest.what}, {precision} in place of float32"
            yield Row(what, _told(wide), _told(narrow), contest.ratio(narrow, wide))


def _told(entry: Entry) -> str:
    return f"{short(entry.value)} ({entry.who})"


# The chart: two panels of bars side by side, with its own background, so that any page can show it.
_WIDTH, _TOP, _PITCH, _GAP, _PANEL, _LABEL, _BAR, _FOOT, _LINE = 860, 66, 22, 10, 424, 232, 122, 32, 18
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.head { font-weight: 600; font-size: 14px } .group { font-weight: 600 } .soft { fill: #59636e }
.ground { fill: #ffffff; stroke: #d1d9e0 } .keras { fill: #9aa4af } .ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #9198a1 }
  .ground { fill: #0d1117; stroke: #3d444d } .keras { fill: #656c76 } .ours { fill: #4493f8 }
}
"""


class Bar(NamedTuple):
    """A bar: its precision or model, its contestant, its length, and True for ours."""

    group: str
    label: str
    speed: float
    ours: bool


class Panel(NamedTuple):
    """Bars under a head.

    Attributes:
        head: The work, in words.
        unit: The unit of the bars.
        bars: The bars.
        alike: Whether all bars are for the same work and share one scale; else each group has its own.
    """

    head: str
    unit: str
    bars: list[Bar]
    alike: bool = True


def chart(by_processor: dict[str, Records]) -> str:
    """The chart, an SVG in the colours of the page's theme: two panels a processor.

    Processors on which only one of both was measured are left out, unless all are such; the tables have them.
    """
    parts: list[str] = []
    top = 0
    drawn = {processor: _panels(records) for processor, records in by_processor.items()}
    most = max(map(len, drawn.values()), default=0)
    for processor, panels in drawn.items():
        if panels and len(panels) == most:
            made, tall = _drawn(panels, processor, top)
            parts += made
            top += tall
    if not parts:
        parts, top = [_text(16, 36, "Not measured yet by the rules of docs/measured/method.md.", "soft")], 60
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" '
            f'height="{top}" role="img" aria-labelledby="title">',
            '<title id="title">Training models that people train, and generating: Keras and Cellerate</title>',
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{top - 1}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _drawn(panels: list[Panel], processor: str, top: int) -> tuple[list[str], int]:
    """The panels of one processor from `top` on, and their height."""
    parts = []
    lowest = top
    for place, (head, unit, bars, alike) in enumerate(panels):
        left, y, group = 16 + place * _PANEL, top + _TOP - _GAP, ""
        parts.append(_text(left, top + 28, head, "head") + _text(left, top + 46, unit, "soft"))
        for bar in bars:
            longest = max(one.speed for one in bars if alike or one.group == bar.group)
            if bar.group != group:
                y, group = y + _GAP, bar.group
                parts.append(_text(left, y + 11, group, "group"))
                y += _PITCH
            begin, long = left + _LABEL, max(1.0, _BAR * bar.speed / longest)
            parts.append(_text(begin - 8, y + 11, bar.label, anchor="end"))
            kind = "ours" if bar.ours else "keras"
            parts.append(f'<rect class="{kind}" x="{begin}" y="{y}" width="{long:.1f}" height="15" rx="2"/>')
            parts.append(_text(begin + long + 6, y + 11, short(bar.speed)))
            y += _PITCH
        lowest = max(lowest, y)
    # One line each, because the name of a processor may fill the width of the chart.
    for line in (processor, "The fastest way of Keras alone, of others, and of Cellerate, on any backend."):
        parts.append(_text(16, lowest + _FOOT - 16, line, "soft"))
        lowest += _LINE
    return parts, lowest - _LINE + _FOOT - top


def _panels(records: Records) -> list[Panel]:
    """The panels of training and of generating, if measured."""
    panels = []
    if repeats := records.get("typical"):
        races = _trained(repeats[0]["result"])
        panels.append(Panel("Training models that people train", "steps/s", _steps(races), alike=False))
    if repeats := records.get("generate"):
        found = max(repeats[0]["result"]["sizes"], key=lambda found: found["units"])
        head = f"Generating, {found['units']} units, one stream"
        panels.append(Panel(head, "characters/s", _bars(generating(found))))
    return panels


def _steps(races: list[list[dict[str, Any]]]) -> list[Bar]:
    """The fastest of each side for each model."""
    bars = []
    for race in races:
        contest = typical(race)
        for side in ("keras", "other", "ours"):
            one = contest.best(side, "float32")
            if one:
                name = f"{race[0]['title'].split(',')[0]}, batch of {race[0]['batch']}"
                bars.append(Bar(name, one.who, 1 / one.value, side == "ours"))
    return bars


def _bars(contest: Contest) -> list[Bar]:
    """The fastest of each side in each precision; for Keras in float32 also one `predict` a character."""
    bars = []
    for precision in PRECISIONS:
        found = [contest.best(side, precision, SAME_WORK["loop"]) for side in ("keras", "other")]
        if precision == "float32":
            found.insert(0, contest.best("keras", precision, ["predict"]))
        ours = contest.best("ours", precision, ["loop"])
        bars += [
            Bar(precision, _label(one), one.value, one is ours)
            for one in dict.fromkeys([*found, ours])
            if one
        ]
    return bars


_LABELS = {"": "LSTM alone", "loop": "compiled loop", "draw": "a call each"}


def _label(entry: Entry) -> str:
    """The name, short enough for the label of a bar."""
    way = WAYS.get(entry.way, "its LSTM node alone")
    return entry.who.replace(f", {way}", f", {_LABELS.get(entry.way, entry.way)}")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}"{kind}{anchor}>{escape(text)}</text>'
