"""On a GPU an accelerated layer takes cuDNN where one measurement finds it faster; the GPU is emulated."""

import json
import threading
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate import measure
from cellerate.kernels.cuda import launch, timing_cache
from cellerate.kernels.lstm.cuda import plan, select, selfcheck
from cellerate.layers import cudnn_choice, fused, fused_lstm
from cellerate.layers.accelerate import accelerate, implementation_of
from cellerate.layers.explain import explain
from support.kernels import gpu_cases

BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's own path is cuDNN"),
    pytest.mark.usefixtures("gpu"),
]
B, T, D, H = 3, 4, 5, 6
STEP_US = selfcheck.step_us  # what the fixture `gpu` stands in for
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path))
    timing_cache._read.cache_clear()
    return tmp_path


def forget() -> None:
    """Forget the times in memory, as a new process that has only the file."""
    timing_cache._read.cache_clear()
    cudnn_choice._answers.clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The arguments of all contests in order; each contest finds our kernel faster."""
    seen: list[dict[str, float]] = []

    class Timed:
        def __init__(self, seconds: float) -> None:
            self.median_s = seconds

    def alternate(contestants: Any, **_: Any) -> dict[str, Timed]:
        for work in contestants.values():
            work()
        seen.append({"cellerate-cuda": 1.0, "cudnn": 2.0})
        return {name: Timed(seen[-1][name]) for name in contestants}

    monkeypatch.setattr(cudnn_choice, "time_alternating", alternate)
    # Keras's own function for JAX refuses to run without a GPU.
    monkeypatch.setattr(cudnn_choice, "_keras", cudnn_choice._ours)
    return seen


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of Cellerate's kernels, except those of a contest."""
    seen: list[Any] = []
    run = fused_lstm.run
    monkeypatch.setattr(fused_lstm, "run", lambda *given: seen.append(given) or run(*given))
    return seen


def outputs(layer: Any, x: np.ndarray = X, **given: Any) -> np.ndarray:
    return ops.convert_to_numpy(layer(ops.convert_to_tensor(x), **given))


def test_contest_runs_once_and_its_result_is_kept_on_disk(
    measured: list[Any], ours: list[Any], cache: Path
) -> None:
    layer = accelerate(layers.LSTM(H))
    first = outputs(layer)
    outputs(layer)
    # Neighbouring sizes have the same answer; training and other sizes have their own.
    outputs(layer, X[:, ::-1])
    assert len(measured) == 1 and len(ours) == 3
    outputs(layer, training=True)
    outputs(layer, np.concatenate([X, X]))
    assert len(measured) == 3
    forget()
    np.testing.assert_array_equal(outputs(layer), first)
    assert len(measured) == 3
    remembered = json.loads((cache / "cuda-times.json").read_text())
    assert all(name.startswith("emulated, CUDA 13.0; ") for name in remembered) and len(remembered) == 3


def test_layer_that_cudnn_runs_faster_goes_to_keras(
    measured: list[Any], ours: list[Any], cache: Path
) -> None:
    layer = layers.LSTM(H)
    stock = outputs(layer)
    outputs(accelerate(layer))
    del ours[:]
    file = cache / "cuda-times.json"
    turned = {name: {"cellerate-cuda": 2.0, "cudnn": 1.0} for name in json.loads(file.read_text())}
    file.write_text(json.dumps(turned))
    forget()
    np.testing.assert_array_equal(outputs(layer), stock)
    assert ours == [] and len(measured) == 1
    # A named implementation runs without a contest.
    outputs(accelerate(layer, "cellerate-cuda"))
    assert len(ours) == 1


def plain_lstm(x: Any, h0: Any, c0: Any, kernel: Any, recurrent_kernel: Any, bias: Any) -> Any:
    """A replacement for cuDNN, built from operations of the framework."""
    h, c, outputs = h0, c0, []
    for t in range(x.shape[1]):
        z = ops.matmul(x[:, t], kernel) + ops.matmul(h, recurrent_kernel) + bias
        i, f, g, o = ops.split(z, 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        outputs.append(h)
    return ops.stack(outputs, axis=1)


# The seconds of cuDNN's nine rounds, where each of ours takes 1; the first two warm up. Then whether cuDNN wins, and
# whether the call is one of training.
CONTESTS = {
    "faster": ([0.99] * 9, True, False),
    "faster-in-training": ([0.99] * 9, True, True),
    "slower": ([1.01] * 9, False, False),
    "slower-in-training": ([1.01] * 9, False, True),
    "tie": ([1.0] * 9, False, False),
    "faster-once-warm": ([90.0] * 2 + [0.5] * 7, True, False),
    "faster-but-for-three-of-seven-rounds": ([0.5] * 6 + [90.0] * 3, True, False),
    "slower-but-for-three-of-seven-rounds": ([0.5] * 5 + [1.5] * 4, False, False),
}


@pytest.mark.parametrize(("seconds", "wins", "training"), CONTESTS.values(), ids=CONTESTS)
def test_contest_goes_to_the_faster_kernel_and_a_tie_to_ours(
    ours: list[Any],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    wins: bool,
    training: bool,
) -> None:
    now, rounds = [0.0], iter(seconds)
    blocking = fused.bridge().blocking

    def on_the_clock(function: Any, *given: Any, **named: Any) -> Any:
        work = blocking(function, *given, **named)

        def run() -> None:
            work()
            now[0] += next(rounds) if function is plain_lstm and started else 1.0

        return run

    def clock() -> float:
        started.append(True)
        return now[0]

    # Before the rounds cuDNN is tried once, to see whether it refuses.
    started: list[bool] = []
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(fused.bridge(), "blocking", on_the_clock)
    monkeypatch.setattr(cudnn_choice, "_keras", plain_lstm)
    layer = layers.LSTM(H)
    stock = outputs(layer)
    found = outputs(accelerate(layer), training=training)
    assert next(rounds, None) is None
    assert bool(ours) is not wins
    np.testing.assert_allclose(found, stock, rtol=0, atol=0 if wins else 1e-6)
    (times,) = json.loads((cache / "cuda-times.json").read_text()).values()
    assert times == pytest.approx({"cellerate-cuda": 1.0, "cudnn": sorted(seconds[2:])[3]})


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 3}', "\x00"])
def test_damaged_file_of_times_is_measured_anew(measured: list[Any], cache: Path, content: str) -> None:
    (cache / "cuda-times.json").write_text(content)
    outputs(accelerate(layers.LSTM(H)))
    assert len(measured) == 1
    assert len(json.loads((cache / "cuda-times.json").read_text())) == 1 + ("x" in content)


def test_times_that_cannot_be_written_are_kept_in_memory(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLERATE_CACHE", "/dev/null/nowhere")
    layer = accelerate(layers.LSTM(H))
    outputs(layer)
    outputs(layer)
    assert len(measured) == 1


@pytest.mark.parametrize(
    "options", [{"activation": "relu"}, {"recurrent_dropout": 0.2}, {"use_bias": False}], ids=str
)
def test_layer_that_cudnn_cannot_run_needs_no_contest(
    measured: list[Any], ours: list[Any], options: Any
) -> None:
    outputs(accelerate(layers.LSTM(H, **options)))
    outputs(accelerate(layers.LSTM(H)), mask=ops.convert_to_tensor(np.ones((B, T), bool)))
    assert measured == [] and len(ours) == 2


def test_contest_during_tracing_times_both_kernels(ours: list[Any], cache: Path) -> None:
    model = keras.Sequential([keras.Input((T, D)), layers.LSTM(H), layers.Dense(1)])
    assert not (cache / "cuda-times.json").exists()
    accelerate(model).compile("sgd", "mse")
    assert implementation_of(model.layers[0]) == "cellerate-cuda"
    model.fit(X, np.zeros((B, 1)), batch_size=B, verbose=0)
    (times,) = json.loads((cache / "cuda-times.json").read_text()).values()
    assert times["cellerate-cuda"] > 0
    assert ("cudnn" in times) is (BACKEND == "torch")


def test_contest_of_a_batch_larger_than_one_wave_measures_each_row_count_and_ends(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(selfcheck, "step_us", STEP_US)
    monkeypatch.setattr(selfcheck, "_TIMED_STEPS", 1)
    monkeypatch.setattr(selfcheck, "_TIMED_LAUNCHES", 1)
    monkeypatch.setattr(plan, "ROWS", (8, 16))
    monkeypatch.setattr(plan, "WAYS", {way: plan.WAYS[way] for way in ("plain", "turns")})
    select._chosen.cache_clear()
    x = np.random.default_rng(0).normal(size=(17, T, D)).astype("float32")
    layer = accelerate(layers.LSTM(H))
    done: list[np.ndarray] = []
    # A thread, so that a deadlock fails the test instead of hanging the suite.
    thread = threading.Thread(target=lambda: done.append(outputs(layer, x, training=True)), daemon=True)
    thread.start()
    thread.join(timeout=120)
    assert len(done) == 1
    times = json.loads((cache / "cuda-times.json").read_text())
    steps = [name for name in times if "step of Variant" in name]
    # The plain kernels with 8 and 16 rows, forward and backward, and the backward kernel in turns with 16 rows.
    assert len(steps) == 5 and sum("'backward'" in name for name in steps) == 3
    assert sum(" LSTM, (B, T, D, H) = (32, 4, 8, 6)" in name for name in times) == 1


def test_contest_is_kept_for_the_gpu_that_holds_the_arrays(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    gpu_cases.emulated_gpu.replace_driver(monkeypatch, count=2)
    monkeypatch.setattr(fused.bridge(), "gpu_number", lambda array=None: 1)
    monkeypatch.setattr(launch, "gpu_name", lambda device: f"GPU {device}")
    outputs(accelerate(layers.LSTM(H)))
    assert [name.split(";")[0] for name in json.loads((cache / "cuda-times.json").read_text())] == ["GPU 1"]


def test_bidirectional_layer_does_not_go_to_cudnn_as_a_whole() -> None:
    layer = layers.Bidirectional(layers.LSTM(H))
    before = dict(vars(layer))
    accelerate(layer)
    assert layer._can_attempt_fused_lstm(None, None) is False
    accelerate(layer, "keras")
    assert vars(layer) == before


@pytest.mark.skipif(BACKEND != "torch", reason="the other backends compile a step themselves")
def test_training_step_on_torch_is_captured_unless_the_user_overrides_it(measured: list[Any]) -> None:
    from cellerate.bridges.torch_capture import CapturedStep

    class Own(keras.Sequential):
        def train_step(self, *given: Any) -> Any:
            return super().train_step(*given)

    for make, captured in ((keras.Sequential, True), (Own, False)):
        model = make([keras.Input((T, D)), layers.LSTM(H), layers.Dense(1)])
        model.compile("sgd", "mse")
        accelerate(model)
        planned = "a CUDA graph, once three steps of its shape have run"
        assert explain(model).training_step == (planned if captured else None)
        model.fit(X, np.zeros((B, 1)), batch_size=1, epochs=2, verbose=0)
        assert isinstance(model.train_function, CapturedStep) is captured
        # There is no CUDA here, so the step runs without a capture and says why.
        assert not captured or model.train_function.refused in str(explain(model))
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(X, np.zeros((B, 1)), batch_size=B, verbose=0)
        assert not isinstance(model.train_function, CapturedStep)
        accelerate(model, "keras")
        assert "make_train_function" not in vars(model)


def test_failed_kernel_check_leaves_the_layer_to_keras_unless_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        selfcheck, "failure", lambda device, way="plain": "the self-check of the GPU kernels failed: wrong"
    )
    model = accelerate(keras.Sequential([keras.Input((T, D)), layers.LSTM(H)]))
    assert implementation_of(model.layers[0]) is None
    assert "failed: wrong" in str(explain(model))
    accelerate(model, "cellerate-cuda")
    assert implementation_of(model.layers[0]) == "cellerate-cuda"
