import pytest

from cellerate.errors import BackendError
from cellerate.machine import gpu
from cellerate.optimization.sweep import devices
from cellerate.optimization.sweep.settings import SweepSettings
from support.optimization import sweeps


def test_gpu_that_no_backend_can_use_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(gpu, "facts", lambda: None)
    monkeypatch.setattr(gpu, "diagnose", lambda backend, facts: f"{backend} is a build without CUDA")
    with pytest.raises(
        BackendError, match=r"torch is a build without CUDA. To sweep without it, give device='cpu'"
    ):
        devices.check_devices(["cpu", "gpu"], "torch")
    devices.check_devices(["auto", "cpu"], "torch")


def test_gpu_that_can_be_used_is_taken(monkeypatch):
    monkeypatch.setattr(gpu, "facts", lambda: None)
    monkeypatch.setattr(gpu, "diagnose", lambda backend, facts: None)
    devices.check_devices(["gpu"], "jax")


def test_processes_see_the_device_of_their_point(tmp_path, monkeypatch):
    sweeps.made_up(monkeypatch)
    seen = []

    class Seen(sweeps.MadeUpProcess):
        def __init__(self, module, opened, **options):
            super().__init__(module, opened, **options)
            seen.append((opened["device"], dict(self.environment)))

    monkeypatch.setattr("cellerate.optimization.sweep.points.MeasuringProcess", Seen)
    sweeps.run_made_up(tmp_path, SweepSettings(seconds=1.0), device="cpu,gpu")
    assert seen == [
        ("gpu", {"JAX_PLATFORMS": None, "JAX_PLATFORM_NAME": None}),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}),
    ]
