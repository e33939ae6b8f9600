"""What the driver is told: its own structures and constants, and functions that only note how they are called."""

import ctypes
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cuda.bindings import driver as real

from cellerate.errors import BackendError
from cellerate.kernels.cuda import build, launch
from cellerate.kernels.lstm.cuda.arguments import ForwardArguments
from cellerate.kernels.lstm.cuda.plan import Variant
from cellerate.machine import gpu

VARIANT = Variant("forward", "bfloat16", 512, 16)
CAPABILITIES = [(9, 0), (9, 0), (8, 0)]
CACHED = (
    launch.why_unavailable,
    launch.resident,
    launch._context,
    launch.gpu_name,
    launch._function,
    launch._driver,
)


class Driver:
    """The bindings, of a machine with three GPUs of which the last is older."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, Callable[..., Any]] = {
            "cuDeviceGet": lambda number: real.CUdevice(number),
            "cuDeviceGetCount": lambda: len(CAPABILITIES),
            "cuDeviceGetAttribute": self._attribute,
            "cuDeviceGetName": lambda size, device: b"GPU" + bytes(size - 3),
            "cuDriverGetVersion": lambda: 13010,
            "cuDevicePrimaryCtxRetain": lambda device: real.CUcontext(0),
            "cuOccupancyMaxActiveClusters": lambda function, config: 7,
        }
        self.failing: str | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(real, name)
        if not name.startswith("cu"):
            return found

        def call(*given: Any) -> tuple[Any, ...]:
            self.calls.append((name, given))
            if name == self.failing:
                return (real.CUresult.CUDA_ERROR_UNKNOWN,)
            return real.CUresult.CUDA_SUCCESS, self.answers.get(name, lambda *_: None)(*given)

        return call

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [given for called, given in self.calls if called == name]

    def _attribute(self, which: Any, device: Any) -> int:
        major, minor = CAPABILITIES[int(device)]
        attributes = real.CUdevice_attribute
        return {
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: major,
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: minor,
            attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: self.shared_bytes,
        }[which]

    shared_bytes = 232_448


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    for function in CACHED:
        function.cache_clear()
    found = Driver()
    monkeypatch.setattr(launch.importlib, "import_module", lambda name: found)
    monkeypatch.setattr(build, "why_unavailable", lambda: None)
    code = types.SimpleNamespace(get_kernel=lambda name: types.SimpleNamespace(handle=real.CUkernel(77)))
    monkeypatch.setattr(build, "build", lambda variant, architecture: code)
    yield found
    for function in CACHED:
        function.cache_clear()


def test_launch_gives_the_grid_the_memory_and_the_address_of_the_arguments(driver):
    arguments = ForwardArguments(batch=33, steps=5)
    addresses = []

    def start(config: Any, function: Any, pointers: int, extra: int) -> None:
        addresses.extend((ctypes.c_void_p * 1).from_address(pointers))

    driver.answers["cuLaunchKernelEx"] = start
    launch.launch(VARIANT, arguments, 0, 123)
    ((config, function, _, extra),) = driver.of("cuLaunchKernelEx")
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (3 * 16, 1, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (VARIANT.threads, 1, 1)
    assert config.sharedMemBytes == VARIANT.shared_bytes and int(config.hStream) == 123
    assert config.numAttrs == 0 and int(function) == 77 and extra == 0
    assert addresses == [ctypes.addressof(arguments)]


def test_kernel_may_have_its_memory_and_clusters_on_every_gpu_of_its_kind(driver):
    launch.launch(VARIANT, ForwardArguments(batch=1), 0, 0)
    names = real.CUfunction_attribute
    expected = {
        (names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, VARIANT.shared_bytes),
        (names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    }
    given = driver.of("cuKernelSetAttribute")
    assert {(which, value, int(device)) for which, value, _, device in given} == {
        (which, value, device) for which, value in expected for device in (0, 1)
    }


def test_resident_asks_for_clusters_of_the_right_size_in_the_context_of_the_gpu(driver):
    assert launch.resident(VARIANT, 1) == 7
    ((function, config),) = driver.of("cuOccupancyMaxActiveClusters")
    assert int(function) == 77 and config.blockDimX == VARIANT.threads
    (attribute,) = config.attrs
    assert attribute.id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    assert (size.x, size.y, size.z) == (16, 1, 1) and config.numAttrs == 1
    assert int(driver.of("cuDevicePrimaryCtxRetain")[0][0]) == 1
    order = [name for name, _ in driver.calls if "Ctx" in name or "Occupancy" in name]
    assert order[-3:] == ["cuCtxPushCurrent", "cuOccupancyMaxActiveClusters", "cuCtxPopCurrent"]


def test_elapsed_time_is_between_two_events_and_leaves_none(driver):
    driver.answers |= {"cuEventCreate": lambda flags: object(), "cuEventElapsedTime": lambda begin, end: 2.5}
    assert launch.elapsed_ms(lambda: driver.calls.append(("work", ())), 0) == 2.5
    order = [name for name, _ in driver.calls if "Event" in name or name == "work"]
    record, work, again = (
        order.index("cuEventRecord"),
        order.index("work"),
        order[3:].index("cuEventRecord") + 3,
    )
    assert record < work < again and order.count("cuEventDestroy") == 2


def test_gpu_name_has_the_name_and_the_version_of_the_driver(driver):
    assert launch.gpu_name(0) == "GPU, CUDA 13.1"


def test_missing_says_what_a_gpu_lacks(driver):
    assert launch.why_unavailable(0) is None
    assert "compute capability is 8.0" in launch.why_unavailable(2)
    Driver.shared_bytes, before = 101_376, Driver.shared_bytes
    try:
        assert "101,376 bytes of shared memory" in launch.why_unavailable(1)
    finally:
        Driver.shared_bytes = before


def test_driver_that_does_not_start_is_an_error_with_the_reason(driver, monkeypatch):
    driver.failing = "cuInit"
    monkeypatch.setattr(gpu, "facts", lambda: types.SimpleNamespace(problems=("it is asleep",)))
    assert launch.why_unavailable(0) == "it is asleep"
    launch.why_unavailable.cache_clear()
    monkeypatch.setattr(gpu, "facts", lambda: types.SimpleNamespace(problems=()))
    assert "CUDA_ERROR_UNKNOWN" in launch.why_unavailable(0)


def test_call_that_fails_is_an_error_with_the_code(driver):
    driver.failing = "cuLaunchKernelEx"
    with pytest.raises(BackendError, match="CUDA_ERROR_UNKNOWN"):
        launch.launch(VARIANT, ForwardArguments(batch=1), 0, 0)
