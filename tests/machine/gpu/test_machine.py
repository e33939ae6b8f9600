"""The facts of a machine's GPUs, with a CUDA driver and a `pynvml` made of Python."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from cellerate.machine import gpu
from cellerate.machine.gpu import builds

H100 = SimpleNamespace(
    name=b"NVIDIA H100 80GB HBM3", capability=(9, 0), total=85_000_000_000, free=84_000_000_000, bus=0x1B
)
A100 = SimpleNamespace(
    name=b"NVIDIA A100-SXM4-40GB", capability=(8, 0), total=42_000_000_000, free=1_000_000_000, bus=0x3C
)
KERNEL_DRIVER = "proc/driver/nvidia/version"
FILES = ("dev/nvidia0", "dev/nvidiactl", "dev/nvidia-uvm", KERNEL_DRIVER)
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: 12\n"


def put(pointer, value):
    """Writes where a C function would."""
    pointer._obj.value = value
    return 0


def cuda_library(*cards, code=0, version=13000, count=None):
    """A CUDA driver that lists some GPUs."""

    def text(buffer, size, value):
        assert size == len(buffer) > len(value)
        buffer.value = value
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: code,
        cuDriverGetVersion=lambda pointer: put(pointer, version),
        cuDeviceGetCount=lambda pointer: put(pointer, len(cards) if count is None else count),
        cuDeviceGet=lambda pointer, index: put(pointer, 100 + index) if index < len(cards) else 101,
        cuDeviceGetName=lambda buffer, size, device: text(buffer, size, cards[device - 100].name),
        cuDeviceGetAttribute=lambda pointer, which, device: put(
            pointer, cards[device - 100].capability[{75: 0, 76: 1}[which]]
        ),
        cuDeviceTotalMem_v2=lambda pointer, device: put(pointer, cards[device - 100].total),
        cuDeviceGetPCIBusId=lambda buffer, size, device: text(
            buffer, size, b"0000:%02X:00.0" % cards[device - 100].bus
        ),
    )


class NVMLError(Exception):
    """What `pynvml` raises where NVML answers with a code other than 0."""

    def __init__(self, value):
        self.value = value


class LibraryNotFoundError(NVMLError):
    pass


NVML_ABSENT, NO_FUNCTION, INVALID_ARGUMENT = 12, 13, 2


def management_library(*cards, code=0, driver=b"580.65.06", count=None, closed=None, absent=()):
    """A `pynvml` whose NVML lists some GPUs and lacks the functions of `absent`; it writes to `closed` at the end."""

    def start():
        if code != 0:
            raise (LibraryNotFoundError if code == NVML_ABSENT else NVMLError)(code)

    def handle(index):
        if index >= len(cards):
            raise NVMLError(INVALID_ARGUMENT)
        return 1000 + index

    def card(handle):
        return cards[handle - 1000]

    def shutdown():
        if closed is not None:
            closed.append(True)

    def missing(*arguments):
        raise NVMLError(NO_FUNCTION)

    functions = {
        "nvmlInit": start,
        "nvmlShutdown": shutdown,
        "nvmlSystemGetDriverVersion": lambda: driver.decode(),
        "nvmlDeviceGetCount": lambda: len(cards) if count is None else count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda handle: card(handle).name.decode(),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: card(handle).capability,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            total=card(handle).total, free=card(handle).free
        ),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(domain=0, bus=card(handle).bus, device=0),
    }
    functions |= dict.fromkeys(absent, missing)
    return SimpleNamespace(**functions, NVMLError=NVMLError, NVMLError_LibraryNotFound=LibraryNotFoundError)


FUNCTIONS = tuple(name for name in vars(management_library()) if name.startswith("nvml"))
NO_PACKAGE = "no package"


@pytest.fixture
def find(tmp_path, monkeypatch):
    """The facts of a machine with these libraries, environment variables and files."""

    def facts(cuda=None, management=None, environ=(), files=FILES):
        def load(name):
            if cuda is None:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            return {"libcuda.so.1": cuda}[name]

        nvml = management_library(code=NVML_ABSENT) if management is None else management
        monkeypatch.setitem(sys.modules, "pynvml", None if nvml is NO_PACKAGE else nvml)
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(NVRM if name == KERNEL_DRIVER else "")
        return gpu.facts(load=load, environ=dict(environ), root=tmp_path)

    return facts


def test_facts_of_a_machine_with_two_gpus_are_those_of_both_libraries(find):
    closed = []
    # NVML has an order of its own: by place on the bus.
    found = find(cuda_library(A100, H100), management_library(H100, A100, closed=closed))
    assert found == gpu.GpuFacts(
        driver="580.65.06",
        cuda="13.0",
        devices=(
            gpu.Device("NVIDIA A100-SXM4-40GB", (8, 0), 42_000_000_000, 1_000_000_000),
            gpu.Device("NVIDIA H100 80GB HBM3", (9, 0), 85_000_000_000, 84_000_000_000),
        ),
        hidden=(),
        settings={},
        problems=(),
    )
    assert closed == [True]


@pytest.mark.parametrize(
    "management", [None, management_library(H100, code=9), NO_PACKAGE], ids=["none", "fails", "no package"]
)
def test_facts_without_nvml_lack_the_free_memory_and_take_the_driver_of_the_kernel(find, management):
    found = find(cuda_library(H100, version=12080), management)
    assert (found.driver, found.cuda) == ("550.54.14", "12.8")
    assert found.devices == (gpu.Device("NVIDIA H100 80GB HBM3", (9, 0), 85_000_000_000, None),)
    assert (found.incomplete is not None) == (management is NO_PACKAGE)


@pytest.mark.parametrize("cuda", [None, cuda_library(H100)], ids=["no GPU", "a GPU"])
def test_facts_without_the_package_for_nvml_say_what_they_lack_and_how_to_get_it(find, cuda):
    found = find(cuda, NO_PACKAGE)
    assert found.incomplete == (
        "free memory, hidden GPUs and part of the diagnosis are missing, because the package nvidia-ml-py is not "
        "installed: pip install nvidia-ml-py"
    )


def test_free_memory_is_no_more_than_cuda_says_there_is(find):
    reserved = SimpleNamespace(**vars(H100) | {"total": 83_000_000_000})
    assert find(cuda_library(reserved), management_library(H100)).devices[0].free_bytes == 83_000_000_000


def test_free_memory_of_a_part_of_a_gpu_is_unknown(find):
    part = SimpleNamespace(**vars(H100) | {"total": 10_000_000_000})
    found = find(cuda_library(part), management_library(H100))
    assert found.devices[0].memory_bytes == 10_000_000_000
    assert found.devices[0].free_bytes is None


@pytest.mark.parametrize(
    ("value", "hidden"), [("1", ["NVIDIA H100 80GB HBM3"]), (None, [])], ids=["hidden", "not hidden"]
)
def test_gpus_that_only_nvml_lists_are_hidden_if_the_variable_is_set(find, value, hidden):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = find(cuda_library(A100), management_library(H100, A100), environ)
    assert [device.name for device in found.devices] == ["NVIDIA A100-SXM4-40GB"]
    assert [device.name for device in found.hidden] == hidden
    assert found.problems == ()


def test_settings_are_those_that_are_set_and_matter(find):
    environ = {"PATH": "/bin", "JAX_PLATFORMS": "cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}
    found = find(environ=environ).settings
    assert found == {"JAX_PLATFORMS": "cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}


def strange(**changes):
    return SimpleNamespace(**vars(H100) | changes)


@pytest.mark.parametrize(
    ("cuda", "management", "names"),
    [
        (cuda_library(strange(name=b"\xff\xfeH\x07\n100")), None, ["\ufffd\ufffdH100"]),
        (cuda_library(strange(name=b"")), management_library(strange(name=b"")), ["a GPU without a name"]),
        (cuda_library(strange(capability=(-1, -7), total=0)), None, ["NVIDIA H100 80GB HBM3"]),
        (cuda_library(H100, count=-3), management_library(H100, count=-3), []),
        (cuda_library(H100, count=2**31 - 1), management_library(H100, count=2**31 - 1), ["NVIDIA H100 80GB HBM3"]),
        (cuda_library(H100, version=-1), management_library(H100, driver=b"\xff"), ["NVIDIA H100 80GB HBM3"]),
        (SimpleNamespace(), management_library(H100, absent=FUNCTIONS), []),
        (SimpleNamespace(cuInit=lambda flags: 0), management_library(H100, absent=FUNCTIONS[1:]), []),
        (cuda_library(H100), management_library(H100, code=-5), ["NVIDIA H100 80GB HBM3"]),
        (cuda_library(H100, code=-5), management_library(H100), []),
    ],
    ids=[
        "name that is not text",
        "no name",
        "numbers below zero",
        "count below zero",
        "count beyond all",
        "versions that are none",
        "no functions",
        "first function alone",
        "NVML fails",
        "driver fails",
    ],
)  # fmt: skip
def test_what_libraries_answer_wrongly_crashes_nothing(find, cuda, management, names):
    found = find(cuda, management)
    assert [device.name for device in found.devices] == names
    assert bool(found.problems) == (not names)
    assert all(device.compute_capability in ((9, 0), None) for device in found.devices)
    for backend in ("tensorflow", "jax", "torch"):
        assert gpu.describe(backend, found)


# Each reason, by words that no other has.
REASONS = {
    "no driver": "no NVIDIA driver was found",
    "elsewhere": "where it is not looked for",
    "no CUDA part": "without its part for CUDA",
    "not given": "this container was not given its GPUs",
    "capabilities": "NVIDIA_DRIVER_CAPABILITIES",
    "hidden": "unset CUDA_VISIBLE_DEVICES",
    "not running": "installed but not running",
    "no device file": "/dev/nvidia0 is missing",
    "no unified file": "nvidia-uvm is missing",
    "rights": "this user may not open",
    "closed": "CUDA may not use what",
    "no GPU": "finds no GPU",
    "stub": "is the stub",
    "old": "driver is too old",
    "taken": "holds the GPU for itself",
    "partition": "name a GPU that is not there",
    "system": "operating system refused",
    "switch": "nvidia-fabricmanager",
    "halves": "two halves differ",
    "compat": "cuda-compat",
    "MPS": "MPS server",
    "unnamed": "a reason it does not name",
    "unknown": "does not start: see `dmesg` (cuInit: 7)",
}
SEEN = management_library(H100)


@pytest.mark.parametrize(
    ("reason", "cuda", "management", "environ", "files"),
    [
        ("no driver", None, None, {}, ()),
        ("no driver", None, None, {"CUDA_VISIBLE_DEVICES": ""}, (".dockerenv",)),
        ("elsewhere", None, None, {}, ("usr/local/nvidia/lib64/libcuda.so.1",)),
        ("no CUDA part", None, None, {}, (KERNEL_DRIVER,)),
        ("no CUDA part", None, SEEN, {}, ()),
        ("not given", None, None, {}, (KERNEL_DRIVER, ".dockerenv")),
        ("not given", None, None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (KERNEL_DRIVER,)),
        ("not given", cuda_library(code=100), None, {}, (KERNEL_DRIVER, "run/.containerenv")),
        ("capabilities", None, SEEN, {}, (KERNEL_DRIVER, ".dockerenv")),
        ("hidden", cuda_library(code=100), SEEN, {"CUDA_VISIBLE_DEVICES": ""}, FILES),
        ("hidden", cuda_library(), SEEN, {"CUDA_VISIBLE_DEVICES": "3"}, FILES),
        ("hidden", cuda_library(code=100), SEEN, {"CUDA_VISIBLE_DEVICES": "-1,0"}, ()),
        ("hidden", cuda_library(code=100), None, {"CUDA_VISIBLE_DEVICES": "-1"}, FILES),
        ("not running", cuda_library(code=100), None, {"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ("no GPU", cuda_library(code=100), None, {"CUDA_VISIBLE_DEVICES": "0"}, FILES),
        ("closed", cuda_library(code=100), SEEN, {"CUDA_VISIBLE_DEVICES": "0"}, FILES),
        ("not running", cuda_library(code=999), None, {}, ()),
        ("no device file", cuda_library(code=999), None, {}, (KERNEL_DRIVER,)),
        ("no unified file", cuda_library(code=999), SEEN, {}, (KERNEL_DRIVER, "dev/nvidia0")),
        ("closed", cuda_library(code=100), SEEN, {}, FILES),
        ("no GPU", cuda_library(code=100), None, {}, FILES),
        ("no GPU", cuda_library(), None, {}, FILES),
        ("no GPU", cuda_library(code=100), None, {}, ("dev/dxg",)),
        ("stub", cuda_library(code=34), None, {}, ()),
        ("old", cuda_library(code=35), None, {}, FILES),
        ("old", cuda_library(code=36), None, {}, FILES),
        ("taken", cuda_library(code=46), SEEN, {}, FILES),
        ("partition", cuda_library(code=101), SEEN, {}, FILES),
        ("system", cuda_library(code=304), SEEN, {}, FILES),
        ("switch", cuda_library(code=802), SEEN, {}, FILES),
        ("halves", cuda_library(code=803), None, {}, FILES),
        ("halves", cuda_library(code=100), management_library(code=18), {}, FILES),
        ("compat", cuda_library(code=804), SEEN, {}, FILES),
        ("MPS", cuda_library(code=805), SEEN, {}, FILES),
        ("unnamed", cuda_library(code=999), SEEN, {}, FILES),
        ("unnamed", cuda_library(code=999), SEEN, {"CUDA_VISIBLE_DEVICES": ""}, FILES),
        ("unknown", cuda_library(code=7), SEEN, {}, FILES),
    ],
)
def test_no_gpu_has_exactly_the_reason_of_its_condition(find, reason, cuda, management, environ, files):
    found = find(cuda, management, environ, files)
    assert found.devices == ()
    (problem,) = found.problems
    assert [name for name, words in REASONS.items() if words in problem] == [reason]
    for backend in ("tensorflow", "jax", "torch"):
        assert gpu.diagnose(backend, found) == problem
    assert gpu.diagnose_kernels(found) == problem


@pytest.mark.parametrize("closed", ["dev/nvidia0", "dev/nvidiactl", "dev/nvidia-uvm"])
def test_device_files_that_may_not_be_opened_are_named_with_their_group(find, monkeypatch, tmp_path, closed):
    def access(path, mode):
        return path.exists() and (mode == builds.os.F_OK or path != tmp_path / closed)

    monkeypatch.setattr("os.access", access)
    monkeypatch.setattr("pathlib.Path.group", lambda self: "video")
    (problem,) = find(cuda_library(code=100), management_library()).problems
    assert problem == (
        f"this user may not open {tmp_path / closed}: sudo usermod -aG video $USER, then log in again"
    )


def test_a_driver_that_cannot_be_loaded_is_quoted(tmp_path, monkeypatch):
    def load(name):
        raise OSError(f"{name}: file too short")

    monkeypatch.setitem(sys.modules, "pynvml", management_library(code=NVML_ABSENT))
    found = gpu.facts(load=load, environ={}, root=tmp_path)
    assert found.problems == ("no NVIDIA driver was found (libcuda.so.1: file too short)",)


def test_facts_of_this_machine_import_nothing_of_cuda_or_a_framework():
    program = (
        "import ctypes, sys\n"
        "asked, load = [], ctypes.CDLL\n"
        "ctypes.CDLL = lambda name: asked.append(name) or load(name)\n"
        "from cellerate.machine import gpu\n"
        "assert asked == []\n"
        "found = gpu.facts()\n"
        "assert asked == ['libcuda.so.1', 'libnvidia-ml.so.1']\n"
        "assert bool(found.devices) != bool(found.problems)\n"
        "for backend in ('tensorflow', 'jax', 'torch'): print(gpu.describe(backend, found))\n"
        "print(gpu.diagnose_kernels(found))\n"
        "assert not {'tensorflow', 'jax', 'torch', 'keras', 'cuda', 'numpy'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4
