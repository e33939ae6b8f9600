"""What a process takes of the machine; of GPUs, with a management library that is made up."""

import mmap
import sys
import time
import types

import pytest

from cellerate.machine import readings
from cellerate.machine.readings import MachineReadings


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """Three GPUs, of which the last says nothing of its power."""

    def by_number(number):
        if number > 2:
            raise NVMLError
        return number

    def by_name(name):
        if name not in ("GPU-b", "GPU-c"):
            raise NVMLError
        return ("GPU-a", "GPU-b", "GPU-c").index(name)

    def power(gpu):
        if gpu == 2:
            raise NVMLError("not supported")
        return 250_500 + gpu

    made = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=by_number,
        nvmlDeviceGetHandleByUUID=by_name,
        nvmlDeviceGetUtilizationRates=lambda gpu: types.SimpleNamespace(gpu=10 * gpu + 5),
        nvmlDeviceGetMemoryInfo=lambda gpu: types.SimpleNamespace(used=(gpu + 1) << 30),
        nvmlDeviceGetPowerUsage=power,
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_share_of_the_processors_and_memory_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(readings, "processors", lambda: 2)
    machine = MachineReadings({"CUDA_VISIBLE_DEVICES": ""})
    began, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < 0.2:
        pass
    found = machine.read()
    busy = 0.2 / (time.perf_counter() - began) / 2
    assert found["cpu"] == pytest.approx(busy, rel=0.2)
    time.sleep(0.2)
    assert machine.read()["cpu"] < busy / 2
    # Memory that nothing had before: an array may get what was freed and kept.
    with mmap.mmap(-1, 100 << 20) as held:
        before = machine.read()["memory_bytes"]
        held.write(b"x" * len(held))
        grown = machine.read()["memory_bytes"] - before
    assert 95e6 < grown < 250e6
    assert set(found) == {"cpu", "memory_bytes"}


def test_gpus_say_what_they_can(nvml):
    found = MachineReadings({}).read()
    assert found["gpu0_use"] == 0.05
    assert found["gpu1_memory_bytes"] == 2 << 30
    assert found["gpu1_power_w"] == 250.501
    assert found["gpu2_use"] == 0.25
    assert "gpu2_power_w" not in found


@pytest.mark.parametrize(
    ("visible", "uses"),
    [("2", [0.25]), ("1, 0", [0.15, 0.05]), ("GPU-c,GPU-b", [0.25, 0.15]), ("0,7,1", [0.05]), ("", [])],
)
def test_gpus_are_those_that_cuda_sees_in_its_order(nvml, visible, uses):
    found = MachineReadings({"CUDA_VISIBLE_DEVICES": visible}).read()
    assert [found[name] for name in found if name.endswith("_use")] == uses


def test_machine_without_a_driver_has_no_gpus(nvml):
    def fail():
        raise NVMLError("driver not loaded")

    nvml.nvmlInit = fail
    assert set(MachineReadings({}).read()) == {"cpu", "memory_bytes"}
