"""What the GPU suite checks and times, as far as it runs without a GPU: on the emulated one, and of made-up figures."""

from typing import Any

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("torch's own", allow_module_level=True)

import torch

from benchmarks.gpu import checks, device, generation, goals, layers, sizes, timings
from cellerate.kernels.lstm.cuda import plan
from support.kernels.gpu_cases import emulate

pytestmark = [pytest.mark.keras, pytest.mark.backends]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(checks, "DEVICE", "cpu")


def test_checks_find_the_kernels_right_and_a_wrong_one_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = sizes.VARIANTS["masked, backwards, recurrent dropout"]
    found = checks.checked("float32", 3, 40, **variant)
    assert found["errors"].keys() >= {"outputs", "h_T", "c_T", "d_x", "d_recurrent_kernel"}
    assert found["right"] and 0 < found["worst"] < 1
    product = checks.torch_cuda._shifted_product
    monkeypatch.setattr(checks.torch_cuda, "_shifted_product", lambda *given: product(*given) * 1.001)
    assert not checks.checked("float32", 3, 40)["right"]


def test_checks_take_a_layer_without_bias() -> None:
    found = checks.checked("float32", 3, 40, **sizes.VARIANTS["no bias"])
    assert found["right"] and "d_bias" not in found["errors"]


def test_checks_find_a_nan_wrong_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = checks.torch_cuda.forward

    def with_nan(*given: Any, **more: Any) -> Any:
        outputs, h_T, c_T, reserve = forward(*given, **more)
        c_T[0, 0] = torch.nan
        return outputs, h_T, c_T, reserve

    monkeypatch.setattr(checks.torch_cuda, "forward", with_nan)
    found = checks.checked("float32", 3, 40)
    assert found["errors"]["outputs"] < 1 and not found["right"]


def test_robustness_is_found() -> None:
    assert checks.poisoned() == {"others_same": True, "its_own": True, "right": True}
    assert checks.soak(30)["right"]


def test_selfcheck_has_the_cases_of_the_trials() -> None:
    items = {item.name: item for item in device.selfcheck()}
    found = items["plain, float32 H64 dropped"].run()
    assert found["right"] and 0 < found["worst"] < 1


def test_items_have_names_of_their_own_and_their_kernels_are_compiled_beforehand(monkeypatch) -> None:
    monkeypatch.setattr(layers, "_prepare", lambda *_: None)
    parts = [
        checks.checks, checks.small, checks.robustness, timings.recurrence, timings.sizes,
        timings.variants, generation.generation, layers.fit, layers.tensorflow, layers.crossover,
        device.selfcheck,
    ]  # fmt: skip
    for part in parts:
        names = [item.name for item in part()]
        assert names and len(names) == len(set(names))
    compiled = set(sizes.kernels())
    wanted: list[tuple[str, int, dict[str, Any]]] = []

    def call(number: str, batch: int, units: int, **variant: Any) -> dict[str, Any]:
        wanted.append((number, units, variant))
        return {}

    monkeypatch.setattr(checks, "checked", call)
    for item in checks.checks():
        item.run()
    assert len(wanted) == len(checks.checks())
    for number, units, variant in wanted:
        for kernel in sizes._layer(number, units, **variant):
            assert compiled >= set(plan.fitting(kernel, plan.WAYS))


def test_goals_are_reached_by_figures_alone() -> None:
    missing = list(goals.goals({}))
    assert len(missing) > 90 and not any(goal["reached"] for goal in missing)
    names = ("forward", "forward and backward")
    times = {name: {"median_ms": 0.5} for name in names}
    times |= {f"cuDNN bfloat16 {name}": {"median_ms": 2.0} for name in names}
    times |= {f"cuDNN float16 {name}": {"median_ms": 0.6} for name in names}
    timing = {"number": "bfloat16", "units": 512, "batch": 112, "times": times}

    def race(backend: str, policy: str, speed: float | None, apart: float | None) -> dict[str, Any]:
        return {"backend": backend, "policy": policy, "characters_per_s": speed, "losses_apart": apart}

    alone = {"number": "bfloat16", "units": 512, "batch": 112}
    alone["kernel_us_a_step"] = {"cellerate_lstm_forward": 1.4}
    relu = {n: {"median_ms": 1.0} for n in ("plain", "variant")}
    result = {
        "recurrence": [timing, alone],
        "sizes": [{**timing, "batch": 256}, {**timing, "number": "float16", "batch": 64}],
        "variants": [{"number": "bfloat16", "variant": "relu", "times": relu}],
        "fit": [
            {**race("jax", "mixed_bfloat16", 9e6, None), "contestants": [{"losses": [2.0, 1.01]}, {}]},
            {**race("jax", "float32", 7e6, 0.1), "contestants": [{}, {"losses": [2.0, 1.0]}]},
            {**race("torch", "float32", None, None), "contestants": [{}, {}]},
        ],
        "generation": [
            {"item": "check H512", "units": 512},
            {"units": 512, "batch": 1, "characters_per_s": 3e5},
        ],
    }
    found = {goal["goal"]: goal for goal in goals.goals(result) if goal["figure"] is not None}
    assert {name: goal["reached"] for name, goal in found.items()} == {
        "µs a step, forward recurrence, bf16, H=512, B=112": False,
        "µs a step, all of training, bf16, H=512, B=112": True,
        "times cuDNN's bfloat16, forward, bf16, H=512, B=256": True,
        "times cuDNN's bfloat16, forward and backward, bf16, H=512, B=256": True,
        "times cuDNN's float16, forward, bf16, H=512, B=256": False,
        "times cuDNN's float16, forward and backward, bf16, H=512, B=256": False,
        "times the plain layer, relu, bfloat16": True,
        "characters/s of training": True,
        "losses apart from Keras's, jax, mixed_bfloat16 and float32": True,
        "losses apart from Keras's, jax, float32": False,
        "characters/s of generation, H=512, B=1": False,
    }
    assert found["µs a step, all of training, bf16, H=512, B=112"]["figure"] == 5.0
    assert found["times cuDNN's bfloat16, forward, bf16, H=512, B=256"]["figure"] == 4.0


def test_losses_with_a_nan_are_no_close_ones() -> None:
    assert goals.losses_apart({"losses": [1.0, 3.0]}, {"losses": [1.0, 2.0]}) == 0.5
    apart = goals.losses_apart({"losses": [1.0, float("nan"), 1.0]}, {"losses": [1.0, 1.0, 1.0]})
    assert apart is not None and not apart <= 1


def test_goals_are_those_that_were_set() -> None:
    limits = {goal["goal"]: goal["limit"] for goal in goals.goals({})}
    assert limits["µs a step, forward recurrence, bf16, H=512, B=224"] == 2.2
    assert limits["µs a step, all of training, bf16, H=512, B=224"] == 11
    for units, batch, theirs, least in (
        (128, 16, "bfloat16", 3), (512, 256, "float16", 1.5), (512, 1024, "bfloat16", 1), (1024, 64, "bfloat16", 1.2),
        (1024, 64, "float16", 1),
    ):  # fmt: skip
        assert limits[f"times cuDNN's {theirs}, forward, bf16, H={units}, B={batch}"] == least
    assert limits["times the plain layer, no bias, float32"] == 1.3
    assert limits["characters/s of generation, H=256, B=1"] == 7e5
