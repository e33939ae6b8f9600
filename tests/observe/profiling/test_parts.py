"""What a recording says of the parts of a step, from made-up shares."""

import keras
import numpy as np
import pytest

from cellerate.kernels.native import Phases
from cellerate.observe.profiling.feeding import widened
from cellerate.observe.profiling.marking import MarkedPart
from cellerate.observe.profiling.timeline import Shares, Spent
from cellerate.observe.profiling.tracing import Traced, parts_of

pytestmark = pytest.mark.keras
PARTS = [MarkedPart("a", "layer"), MarkedPart("b", "layer"), MarkedPart("optimizer (sgd)", "optimizer")]


def traced(spent, steps=2, **more):
    window = sum(one.busy_ns + one.idle_ns for one in spent.values())
    idle = sum(one.idle_ns for one in spent.values())
    told = {"memory": None, "phases": (), "phase_steps": 1, "eager": False, "parts": PARTS, **more}
    return Traced(shares=Shares(window, spent, idle), steps=steps, **told)


SPENT = {
    (0, False): Spent(2e6, 0.0, 10),
    (0, True): Spent(4e6, 0.0, 10),
    (1, False): Spent(1e6, 1e6, 80),
    (2, False): Spent(1e6, 0.0, 0),
    (None, False): Spent(0.0, 1e6, 0),
}


def test_recording_without_cost_gives_what_was_recorded():
    found = {part.name: part for part in parts_of(traced(SPENT), 5e-3, 5e-3, None)}
    assert {name: part.ms for name, part in found.items()} == {
        "a": pytest.approx(3.0),
        "b": pytest.approx(1.0),
        "optimizer (sgd)": pytest.approx(0.5),
        "other operations (metrics, copies)": 0.0,
        "Python and the framework, nothing computed": pytest.approx(0.5),
    }
    assert (found["a"].forward_ms, found["a"].backward_ms) == (pytest.approx(1.0), pytest.approx(2.0))
    assert found["b"].idle_ms == pytest.approx(0.5)
    assert found["optimizer (sgd)"].forward_ms is None


def test_cost_of_the_profiler_comes_off_what_has_many_events():
    found = {part.name: part for part in parts_of(traced(SPENT), 4e-3, 4e-3, None)}
    assert sum(part.ms for part in found.values()) == pytest.approx(4.0)
    # 2 ms of cost for 100 events: b would lose 1.6 of its 2 ms, and loses half of them.
    kept = {"a": (2e6 * 0.9 + 4e6 * 0.95), "b": 1e6, "rest": 2e6}
    assert found["b"].ms == pytest.approx(4.0 * kept["b"] / sum(kept.values()))
    assert found["a"].ms == pytest.approx(4.0 * kept["a"] / sum(kept.values()))


def test_waiting_for_batches_is_what_is_left_of_the_step():
    found = parts_of(traced(SPENT), 5e-3, 20e-3, None)
    assert (found[0].kind, found[0].ms, found[0].idle_ms) == (
        "loader",
        pytest.approx(15.0),
        pytest.approx(15.0),
    )
    assert sum(part.share for part in found) == pytest.approx(1.0)


def test_phases_of_equal_layers_are_shared_and_never_more_than_their_pass():
    layers = [keras.layers.LSTM(3, name=name) for name in ("first", "second")]
    for layer in layers:
        layer.build((None, None, 3))
    from cellerate.layers.accelerate import accelerate

    for layer in layers:
        accelerate(layer)
    phases = [
        Phases(False, 3, 3, 7, 4, {"time steps": 8e-3}),
        Phases(False, 3, 3, 0, 4, {"time steps": 4e-3, "input products": 4e-3}),
        Phases(True, 3, 4, 0, 4, {"time steps": 1.0}),
    ]
    parts = [MarkedPart(layer.name, "layer", layer) for layer in layers]
    spent = {(0, False): Spent(40e6, 0.0, 1), (1, False): Spent(2e6, 0.0, 1)}
    found = parts_of(traced(spent, steps=2, parts=parts, phases=phases, phase_steps=4), 21e-3, 21e-3, None)
    first, second = found[:2]
    assert first.phases == {
        "forward: time steps": pytest.approx(1.5), "forward: input products": pytest.approx(0.5)
    }  # fmt: skip
    assert sum(second.phases.values()) <= 2 * second.ms


def test_wide_batches_are_made_of_those_of_the_usual_length():
    batches = [
        (np.full((2, 5), 1), None, np.ones(2)),
        (np.full((2, 7), 2), None, np.ones(2)),
        (np.full((2, 5), 3), None, np.ones(2)),
    ]
    ((x, y, weights),) = widened(batches, 9)
    assert x.shape == (9, 5) and y is None and weights.shape == (9,)
    assert x[:, 0].tolist() == [1, 1, 3, 3, 1, 1, 3, 3, 1]
