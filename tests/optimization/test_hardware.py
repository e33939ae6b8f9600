"""The speed of recurrent layers on this machine, measured in turns, and its consequences."""

import keras
import pytest

from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate
from cellerate.measure import Order
from cellerate.optimization import hardware, workflow
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import baseline, precision

pytestmark = pytest.mark.keras


def model(*units, kind=keras.layers.LSTM):
    inputs = keras.Input((None, 5))
    x = inputs
    for size in units:
        x = kind(size, return_sequences=True)(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


class Machine:
    """A simulated machine: seconds a call for each dtype, divided among its threads."""

    def __init__(self, **seconds):
        self.now, self.seconds = 0.0, seconds
        self.calls = []

    def perf_counter(self):
        return self.now

    def step(self, batch, steps, sizes, dtype):
        def call():
            self.calls.append((dtype, native.num_threads(), steps, sizes, batch))
            self.now += self.seconds[dtype] * steps / native.num_threads()

        return call


@pytest.fixture
def threads():
    """Four threads, whatever the machine has."""
    before = native.num_threads()
    native.set_num_threads(4)
    yield 4
    native.set_num_threads(before)


@pytest.fixture
def planted(monkeypatch, threads):
    def planted(**seconds):
        machine = Machine(**seconds)
        monkeypatch.setattr(hardware, "time", machine)
        monkeypatch.setattr(hardware, "_step", machine.step)
        return machine

    return planted


def test_largest_layer_is_measured_in_turns_and_threads_are_restored(planted, threads):
    machine = planted(float32=1e-3, bfloat16=4e-3)
    found = hardware.measure_hardware(accelerate(model(8, 24, 16)), 32, None)
    assert found.units == 24
    assert found.bfloat16.ratios == pytest.approx((0.25,) * 6)
    assert found.threads.ratios == pytest.approx((4.0,) * 6)
    assert native.num_threads() == threads
    # One call on one thread for each call on all threads, with the sizes of the layer.
    assert {(dtype, count) for dtype, count, *_ in machine.calls} == {
        ("float32", 4),
        ("bfloat16", 4),
        ("float32", 1),
    }
    assert {(sizes, batch) for *_, sizes, batch in machine.calls} == {((8, 24), 32)}
    # A call takes less than a tenth of a second, and at most 64 steps.
    assert machine.calls[-1][2] == 64
    assert machine.now < 2 * hardware._MEASURED_S


def test_slow_calls_end_the_measurement_after_two_turns(planted):
    machine = planted(float32=4.0, bfloat16=4.0)
    found = hardware.measure_hardware(accelerate(model(8)), 4, 20)
    assert len(found.bfloat16.ratios) == 2
    # The fewest steps, because each takes a second.
    assert {steps for _, _, steps, *_ in machine.calls} == {4}


@pytest.mark.parametrize(("length", "steps"), [(20, 20), (3, 3), (None, 64)])
def test_measured_rows_are_not_longer_than_training_rows(planted, length, steps):
    machine = planted(float32=1e-6, bfloat16=1e-6)
    hardware.measure_hardware(accelerate(model(8)), 4, length)
    assert machine.calls[-1][2] == steps


def test_threads_are_restored_if_the_measurement_fails(monkeypatch, planted, threads):
    machine = planted(float32=1e-3, bfloat16=1e-3)

    def step(batch, steps, sizes, dtype):
        def fail():
            raise RuntimeError("no such instruction")

        return fail if dtype == "bfloat16" else machine.step(batch, steps, sizes, dtype)

    monkeypatch.setattr(hardware, "_step", step)
    native.set_num_threads(3)
    with pytest.raises(RuntimeError, match="no such instruction"):
        hardware.measure_hardware(accelerate(model(8)), 4, None)
    assert native.num_threads() == 3


def test_model_without_supported_layers_is_not_measured():
    assert hardware.measure_hardware(accelerate(model(8, kind=keras.layers.GRU)), 4, None) is None
    # Before acceleration the layer runs on Keras.
    assert hardware.measure_hardware(model(8), 4, None) is None


def test_layers_inside_a_bidirectional_are_measured(planted):
    planted(float32=1e-3, bfloat16=1e-3)
    inputs = keras.Input((6, 5))
    built = keras.Model(inputs, keras.layers.Bidirectional(keras.layers.LSTM(12))(inputs))
    assert hardware.measure_hardware(accelerate(built), 4, None).units == 12


def test_real_kernels_are_measured_on_this_machine(quick):
    found = hardware.measure_hardware(accelerate(model(16)), 8, None)
    assert found.units == 16
    for order in (found.bfloat16, found.threads):
        assert len(order.ratios) == 2
        assert all(0.001 < ratio < 1000 for ratio in order.ratios)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_precision_stage_is_skipped_with_figures_if_bfloat16_is_slow_here(
    made, tmp_path, monkeypatch, here_probe, quick, factor
):
    measured = hardware.Hardware(Order((factor,) * 6), Order((1.8,) * 6), 16)
    asked = []
    monkeypatch.setattr(baseline, "measure_hardware", lambda *given: asked.append(given[1:]) or measured)
    monkeypatch.setattr(precision, "precision_candidates", lambda: ("mixed_bfloat16",))
    settings = OptimizeSettings(time_budget=100_000.0, only=["precision"])
    found = workflow.run(made / "text.keras", made / "t.txt", tmp_path / "out", settings)
    # The batch size and row length of training.
    assert asked == [(8, 10)]
    stage = found.passes[1]
    trained = {options["policy"] for kind, options in here_probe.asked if kind == "trainer"}
    if factor < 1:
        assert (stage.status, stage.needs_s, stage.expected_s) == ("skipped", None, None)
        assert stage.reason == (
            "on this machine an LSTM layer of 16 units trains 0.5 (95 % interval 0.5 to 0.5) times as fast in "
            "bfloat16 as in float32"
        )
        # The skip needs no trial: only float32 was trained.
        assert trained == {"float32"}
        # More time would not help either.
        assert not any("time_budget" in one for one in found.verdict.warnings)
    else:
        assert stage.status == "done"
        assert trained == {"float32", "mixed_bfloat16"}
