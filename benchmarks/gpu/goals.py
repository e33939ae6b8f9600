"""The goals of the GPU suite, compared with the figures of a run; needs no framework."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.sizes import (
    FIT_BACKENDS,
    FIT_POLICIES,
    STEPS,
    TIMED_BATCHES,
    TIMED_UNITS,
    TIMED_VARIANTS,
    VARIED_PRECISIONS,
)

BOTH = "forward and backward"
# The allowed relative difference between our losses and Keras's over 50 training steps.
LOSSES_APART = {"float32": 2e-3, "mixed_bfloat16": 2e-2}
Goal = dict[str, Any]


def goals(result: dict[str, Any]) -> Iterator[Goal]:
    """Each goal, the figure of this run, and whether it reaches the goal; a missing figure does not."""
    yield from _recurrence(result)
    yield from _beside_cudnn(result)
    varied = {(one["number"], one["variant"]): one for one in result.get("variants", ())}
    for precision, name in itertools.product(VARIED_PRECISIONS, TIMED_VARIANTS):
        plain, variant = (
            _median_ms(varied.get((precision, name), {}), what) for what in ("plain", "variant")
        )
        ratio = None if plain is None or variant is None else variant / plain
        yield _goal(f"times the plain layer, {name}, {precision}", ratio, most=1.3)
    yield from _training(result)
    drawn = {(one.get("units"), one.get("batch")): one for one in result.get("generation", ())}
    for units, batch, least in ((512, 1, 4e5), (512, 8192, 6e7), (256, 1, 7e5)):
        figure = drawn.get((units, batch), {}).get("characters_per_s")
        yield _goal(f"characters/s of generation, H={units}, B={batch}", figure, least=least)


def _goal(name: str, figure: float | None, *, most: float | None = None, least: float | None = None) -> Goal:
    reached = figure is not None and (figure <= most if most is not None else figure >= (least or 0))
    limit = most if most is not None else least
    return {
        "goal": name,
        "figure": figure,
        "limit": limit,
        "at": "most" if most else "least",
        "reached": reached,
    }


def _timings(result: dict[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    """The timings in bfloat16, by units and batch."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for one in [*result.get("recurrence", ()), *result.get("sizes", ())]:
        if one["number"] == "bfloat16":
            found.setdefault((one["units"], one["batch"]), {}).update(one)
    return found


def _median_ms(timing: dict[str, Any], name: str) -> float | None:
    return timing.get("times", {}).get(name, {}).get("median_ms")


def _recurrence(result: dict[str, Any]) -> Iterator[Goal]:
    found = _timings(result)
    for batch, most in ((112, 1.3), (224, 2.2)):
        kernels = found.get((512, batch), {}).get("kernel_us_a_step", {})
        name = f"µs a step, forward recurrence, bf16, H=512, B={batch}"
        yield _goal(name, kernels.get("cellerate_lstm_forward"), most=most)
    for batch, most in ((112, 6.0), (224, 11.0)):
        both = _median_ms(found.get((512, batch), {}), BOTH)
        figure = None if both is None else both * 1e3 / STEPS
        yield _goal(f"µs a step, all of training, bf16, H=512, B={batch}", figure, most=most)


def _beside_cudnn(result: dict[str, Any]) -> Iterator[Goal]:
    found = _timings(result)
    for units in sorted(TIMED_UNITS):
        for batch in TIMED_BATCHES:
            timing = found.get((units, batch), {})
            small = units <= 512 and batch <= 256
            for theirs, least in (("bfloat16", 3.0 if small else 1.0), ("float16", 1.5 if small else 1.0)):
                if units == 1024 and theirs == "bfloat16":
                    least = 1.2
                for name in ("forward", BOTH):
                    ours, cudnn = _median_ms(timing, name), _median_ms(timing, f"cuDNN {theirs} {name}")
                    figure = None if ours is None or cudnn is None else cudnn / ours
                    what = f"times cuDNN's {theirs}, {name}, bf16, H={units}, B={batch}"
                    yield _goal(what, figure, least=least)


def losses_apart(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """The largest difference between the losses of two contestants, as a share; None if one has no losses."""
    if not one.get("losses") or not other.get("losses"):
        return None
    return float(np.max(np.abs(np.divide(one["losses"], other["losses"]) - 1)))  # a NaN, if there is one


def _training(result: dict[str, Any]) -> Iterator[Goal]:
    races = {(race["backend"], race["policy"]): race for race in result.get("fit", ())}
    speeds = [race["characters_per_s"] for race in races.values() if race["characters_per_s"] is not None]
    yield _goal("characters/s of training", max(speeds, default=None), least=8e6)
    for backend, policy in itertools.product(FIT_BACKENDS, FIT_POLICIES):
        race = races.get((backend, policy), {})
        name, apart = f"losses apart from Keras's, {backend}, {policy}", race.get("losses_apart")
        exact = races.get((backend, "float32"))
        # Keras on JAX has no bfloat16 on a GPU.
        if race and apart is None and exact:
            name, apart = f"{name} and float32", losses_apart(race["contestants"][0], exact["contestants"][1])
        yield _goal(name, apart, most=LOSSES_APART[policy])
