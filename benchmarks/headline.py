"""What the README shows first, from the newest records: one table and one chart.

Each figure stands beside the fastest that Keras alone does in the same run, whichever backend that takes; what a
`predict` a character does is shown too, under that name.
"""

from html import escape
from typing import Any, NamedTuple

from cellerate.format import number, percent, short, size

CASES = ("step", "generate", "quality", "optimize")
Records = dict[str, dict[str, Any]]

_WAYS = {
    "loop": "steps compiled as one loop",
    "predict_on_batch": "`predict_on_batch` a character",
    "predict": "`predict` a character",
}
_KINDS = {"float32": "float32", "mixed_bfloat16": "bfloat16"}


def table(records: Records) -> list[list[str]]:
    """A row a promise: what Keras does at its best, what Cellerate does, and how many times better that is."""
    units = _generation(records)["units"]
    rows = [[f"Characters/s, one LSTM of {units} units", "Keras alone", "**Cellerate**", "times better"]]
    keras = _fastest(_steps(records, "keras", "float32"))
    for policy, kind in _KINDS.items():
        ours = _fastest(_steps(records, "cellerate-cpu", policy))
        beside = "" if policy == "float32" else ", beside Keras in float32"
        rows.append(_row(f"training, {kind}{beside}", keras, ours))
    on_torch = [_steps(records, name, "float32", "torch")[0] for name in ("keras", "cellerate-cpu")]
    rows.append(_row("training, float32, on torch alone", *on_torch))
    for precision, way in (
        ("float32", "loop"),
        ("int8", "loop"),
        *(("float32", way) for way in [*_WAYS][1:]),
    ):
        ours = _generated(records, "cellerate", f"generate {precision}")
        rows.append(
            _row(f"generating, {precision}, beside {_WAYS[way]}", _fastest(_ways(records, way)), ours)
        )
    quality = records["quality"]["result"]
    before, after = quality["keras"]["bytes"], quality["packed"]["int8"]
    worse = f"{'+' if after['increase'] > 0 else ''}{percent(after['increase'])}"
    rows.append(
        [
            f"the file, int8 ({worse} bits per character)",
            size(before),
            size(after["bytes"]),
            number(before / after["bytes"]),
        ]
    )
    run = records["optimize"]["result"]["run"]
    backend = dict(run["environment"])["backend"]
    found = {row["label"]: row for row in run["verdict"]["rows"]}
    for way in ("predict_on_batch", "predict"):
        row = found[f"generation, one at a time, from {way}"]
        before = {"characters_per_s": row["before"], "backend": backend}
        what = f"generating with the model that `optimize` made of it ({run['verdict']['chosen']}), beside {_WAYS[way]}"
        rows.append(_row(what, before, {"characters_per_s": row["after"]}))
    return rows


def _row(what: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    told = [
        short(one["characters_per_s"]) + (f" ({one['backend']})" if "backend" in one else "")
        for one in (before, after)
    ]
    return [what, *told, number(after["characters_per_s"] / before["characters_per_s"])]


def _steps(records: Records, implementation: str, policy: str, backend: str = "") -> list[dict[str, Any]]:
    """The training steps of the largest layer."""
    race = max(records["step"]["result"]["races"], key=lambda race: race[0]["units"])
    return [
        one
        for one in race
        if (one["implementation"], one["policy"]) == (implementation, policy) and backend in one["backend"]
    ]


def _generation(records: Records) -> dict[str, Any]:
    return max(records["generate"]["result"]["sizes"], key=lambda found: found["units"])


def _generated(records: Records, contestant: str, job: str) -> dict[str, Any]:
    found = _generation(records)["records"]
    return next(one for one in found if (one["contestant"], one["job"]) == (contestant, job))


def _ways(records: Records, way: str) -> list[dict[str, Any]]:
    """What each backend of Keras does in one way."""
    found = [one for one in _generation(records)["records"] if one["job"] == way]
    return [{**one, "backend": one["contestant"]} for one in found]


def _fastest(found: list[dict[str, Any]]) -> dict[str, Any]:
    return max(found, key=lambda one: one["characters_per_s"])


# The chart: two panels of bars side by side, on a ground of its own, so that it can be read on any page.
_WIDTH, _TOP, _PITCH, _GAP, _PANEL, _LABEL, _BAR = 860, 66, 22, 10, 424, 204, 150
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
    """A bar: whose, of what, and how long."""

    group: str
    label: str
    speed: float


def chart(records: Records) -> str:
    """The chart, an SVG in the colours of the page's theme."""
    panels = (
        (
            "Training",
            f"characters/s of a step, batch of {records['step']['result']['batch']}",
            _training_bars(records),
        ),
        ("Generating", "characters/s of one stream", _generating_bars(records)),
    )
    height = (
        _TOP + max(_PITCH * len(bars) + _GAP * len({bar.group for bar in bars}) for *_, bars in panels) + 28
    )
    units = _generation(records)["units"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">Training and generating with an LSTM of {units} units, Keras and Cellerate</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    for place, (head, unit, bars) in enumerate(panels):
        left, top, group = 16 + place * _PANEL, _TOP - _GAP, ""
        parts.append(_text(left, 28, head, "head") + _text(left, 46, unit, "soft"))
        longest = max(bar.speed for bar in bars)
        for bar in bars:
            if bar.group != group:
                top, group = top + _GAP, bar.group
                parts.append(_text(left, top + 11, group, "group"))
            begin, long = left + _LABEL, max(1.0, _BAR * bar.speed / longest)
            kind = "ours" if "Cellerate" in (bar.group, bar.label.split(",")[0]) else "keras"
            parts.append(_text(begin - 8, top + 11, bar.label, anchor="end"))
            parts.append(
                f'<rect class="{kind}" x="{begin}" y="{top}" width="{long:.1f}" height="15" rx="2"/>'
            )
            parts.append(_text(begin + long + 6, top + 11, short(bar.speed)))
            top += _PITCH
    machine = records["generate"]["machine"]
    foot = (
        f"{machine['cpu']}, {machine['cores']} cores; one LSTM of {units} units; "
        "of each way to generate with Keras, the fastest backend."
    )
    parts.append(_text(16, height - 16, foot, "soft"))
    return "\n".join([*parts, "</svg>\n"])


def _training_bars(records: Records) -> list[Bar]:
    contestants = (
        ("Keras", "keras", "float32"),
        ("torch.nn.LSTM", "torch.nn.LSTM", "float32"),
        ("torch.nn.LSTM", "torch.nn.LSTM", "mixed_bfloat16"),
        ("Cellerate", "cellerate-cpu", "float32"),
        ("Cellerate", "cellerate-cpu", "mixed_bfloat16"),
    )
    return [
        Bar(backend, f"{name}, {_KINDS[policy]}", one["characters_per_s"])
        for backend in ("tensorflow", "jax", "torch")
        for name, implementation, policy in contestants
        for one in _steps(records, implementation, policy, backend)
    ]


def _generating_bars(records: Records) -> list[Bar]:
    names = {"predict": "predict", "predict_on_batch": "predict_on_batch", "loop": "compiled loop"}
    found = {name: _fastest(_ways(records, way)) for way, name in names.items()}
    bars = [Bar("Keras", f"{name}, {one['backend']}", one["characters_per_s"]) for name, one in found.items()]
    for contestant, group, job, kinds in (
        ("onnxruntime", "ONNX", "", ("float32", "int8")),
        ("cellerate", "Cellerate", "generate ", ("float32", "bfloat16", "int8")),
    ):
        for kind in kinds:
            one = _generated(records, contestant, job + kind)
            label = f"its LSTM alone, {kind}" if contestant == "onnxruntime" else kind
            bars.append(Bar(group, label, one["characters_per_s"]))
    return bars


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}"{kind}{anchor}>{escape(text)}</text>'
