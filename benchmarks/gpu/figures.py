"""The tables of docs/measured/gpus.md, from the newest records of the GPU suite."""

from typing import Any

from benchmarks.gpu.goals import BOTH
from benchmarks.gpu.sizes import STEPS
from cellerate.format import rounded

Table = list[list[str]]
_PASSES = ("forward", BOTH)


def layers(result: dict[str, Any]) -> Table:
    """A layer in bfloat16 beside cuDNN, by units and batch: microseconds a step, and the speed-up."""
    head = ["H", "B"]
    for name in _PASSES:
        head += [f"{name}, µs a step", "times cuDNN in bfloat16", "in float16"]
    timed = [one for one in [*result["recurrence"], *result["sizes"]] if "times" in one]
    wanted = [one for one in timed if one["number"] == "bfloat16"]
    rows = []
    for one in sorted(wanted, key=lambda one: (one["units"], one["batch"])):
        row = [str(one["units"]), str(one["batch"])]
        for name in _PASSES:
            ours = one["times"][name]["median_ms"]
            theirs = [one["times"].get(f"cuDNN {number} {name}") for number in ("bfloat16", "float16")]
            ratios = [rounded(each["median_ms"] / ours) if each else "" for each in theirs]
            row += [rounded(ours * 1e3 / STEPS), *ratios]
        rows.append(row)
    return [head, *rows]


def training(result: dict[str, Any]) -> Table:
    """The character model through `fit`, beside stock Keras: millions of characters a second."""
    head = ["Backend, policy", "Cellerate", "Keras", "ratio"]
    races = [(f"{race['backend']}, {race['policy']}", race["contestants"]) for race in result["fit"]]
    return [head, *(_race(*race) for race in races)]


def _race(name: str, contestants: list[dict[str, Any]]) -> list[str]:
    """A row: our figure, Keras's or the reason for its absence, and our speed-up."""
    ours, keras = (one.get("characters_per_s") for one in contestants)
    refused = contestants[1].get("error", "").partition(": ")[2]
    if not ours or not keras:
        return [name, _millions(ours), _millions(keras) if keras else refused, ""]
    return [name, _millions(ours), _millions(keras), rounded(ours / keras)]


def beside_tensorflow(result: dict[str, Any]) -> Table:
    """The character model by kinds of layers, beside stock Keras on TensorFlow: millions of characters a second."""
    head = ["Layer, policy", "Cellerate on torch", "Keras on TensorFlow", "ratio"]
    races = [(f"{race['variant']}, {race['policy']}", race["contestants"]) for race in result["tensorflow"]]
    return [head, *(_race(*race) for race in races)]


def generation(result: dict[str, Any]) -> Table:
    """Characters a second of all rows together, in millions, by units and batch."""
    found = {(one["units"], one["batch"]): one for one in result["generation"] if "batch" in one}
    batches = sorted({batch for _, batch in found})
    rows = [
        [f"H={units}", *(_millions(found[units, batch]["characters_per_s"]) for batch in batches)]
        for units in sorted({units for units, _ in found})
    ]
    return [["Millions of characters/s", *(f"B={batch:,}" for batch in batches)], *rows]


def variants(result: dict[str, Any]) -> Table:
    """The times of the variants, relative to the plain layer."""
    found = {(one["variant"], one["number"]): one["times"] for one in result["variants"]}
    numbers = list(dict.fromkeys(number for _, number in found))
    rows = []
    for variant in dict.fromkeys(variant for variant, _ in found):
        times = [found[variant, number] for number in numbers]
        rows.append(
            [variant, *(rounded(one["variant"]["median_ms"] / one["plain"]["median_ms"]) for one in times)]
        )
    return [["Times the plain layer, forward and backward", *numbers], *rows]


def first(result: dict[str, Any]) -> Table:
    """The README's table: training in bfloat16 through `fit`, in millions of characters a second."""
    policy = "mixed_bfloat16"
    races = {
        f"plain, beside Keras on {race['backend']}": race["contestants"]
        for race in result["fit"]
        if (race["backend"], race["policy"]) == ("torch", policy)
    }
    for race in result["tensorflow"]:
        if race["policy"] == policy:
            races[f"{race['variant']}, beside Keras on TensorFlow"] = race["contestants"]
    rows = [_race(name, contestants) for name, contestants in races.items()]
    return [["LSTM of 512 units", "Cellerate on torch", "Keras", "ratio"]] + [
        [name, ours, keras if ratio else "fails", ratio] for name, ours, keras, ratio in rows
    ]


TABLES = {
    layers: ("recurrence", "sizes"),
    training: ("fit",),
    beside_tensorflow: ("tensorflow",),
    generation: ("generation",),
    variants: ("variants",),
}
"""Each table, with the parts of a record that it needs."""


def _millions(characters_per_s: float | None) -> str:
    return "" if characters_per_s is None else rounded(characters_per_s / 1e6)
