"""The GPU's benchmark, as far as it runs without one: its checks on the emulated GPU, and what it makes of figures."""

import sys
from pathlib import Path

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("torch's own", allow_module_level=True)

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from gpu_cases import emulate

import gpu_checks
import gpu_timings

pytestmark = pytest.mark.keras


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(gpu_checks, "DEVICE", "cpu")


def test_checks_find_the_kernels_right_and_a_wrong_one_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = gpu_checks.VARIANTS["masked, backwards, recurrent dropout"]
    errors = gpu_checks.check(torch.float32, 3, 40, **variant)
    assert errors.keys() >= {"outputs", "h_T", "c_T", "d_x", "d_recurrent_kernel"}
    assert max(errors.values()) < 1
    product = gpu_checks.torch_cuda._shifted_product
    monkeypatch.setattr(gpu_checks.torch_cuda, "_shifted_product", lambda *given: product(*given) * 1.001)
    assert max(gpu_checks.check(torch.float32, 3, 40).values()) > 1


def test_robustness_is_found() -> None:
    assert gpu_checks.poisoned() == {"others_same": True, "its_own": True}
    found = gpu_checks.soak(30)
    assert found["same"] and found["finite"]


def test_goals_are_reached_by_figures_alone() -> None:
    missing = list(gpu_timings.goals({}))
    assert len(missing) > 60 and not any(goal["reached"] for goal in missing)
    names = ("forward", "forward and backward", "cuDNN forward", "cuDNN forward and backward")
    times = {name: {"median_ms": 2.0 if name.startswith("cuDNN") else 0.5} for name in names}
    timing = {"number": "bfloat16", "units": 512, "batch": 112, "times": times}
    timing["kernel_us_a_step"] = {"cellerate_lstm_forward": 1.6}
    plain = {
        "number": "bfloat16",
        "variant": "relu",
        "times": {n: {"median_ms": 1.0} for n in ("plain", "variant")},
    }
    result = {"timings": [timing, {**timing, "batch": 256}], "variants": [plain]}
    found = {goal["goal"]: goal for goal in gpu_timings.goals(result) if goal["figure"] is not None}
    assert len(found) == 5
    assert not found["µs a step, forward recurrence, bf16, H=512, B=112"]["reached"]
    assert found["µs a step, all of training, bf16, H=512, B=112"] == {
        "goal": "µs a step, all of training, bf16, H=512, B=112", "figure": 5.0, "limit": 6.5, "reached": True
    }  # fmt: skip
    assert found["times cuDNN's bfloat16, forward, bf16, H=512, B=256"]["figure"] == 4.0
    assert found["times the plain layer, relu, bfloat16"]["reached"]
