"""What is said of GPUs, with a CUDA driver and a `pynvml` made of Python and packages made up in a folder."""

import dataclasses
import importlib
import platform
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
        "name that is no text",
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


ON_LINUX = '; platform_system == "Linux"'
TORCH = {"torch/version.py": "__version__ = '2.15.0'\ncuda: str | None = '13.2'\nhip: str | None = None\n"}
TORCH_CPU = {"torch/version.py": "from typing import Optional\ncuda: Optional[str] = None\nhip = None\n"}
TORCH_ROCM = {"torch/version.py": "cuda = None\nhip = '6.4.43482'\n"}


def build_info(**values):
    text = f"import collections\nbuild_info = collections.OrderedDict({list(values.items())!r})\n"
    return {"tensorflow/python/platform/build_info.py": text}


TENSORFLOW = build_info(
    is_cuda_build=True, cuda_version="12.5.1", cuda_compute_capabilities=["sm_60", "sm_89", "compute_90"]
)
WHEELS = [f"nvidia-{name}-cu12<13; extra == 'and-cuda'" for name in ("cublas", "cudnn", "nccl")]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes up an installed package; nothing else but Python's own is installed then."""
    folder = tmp_path / "packages"
    folder.mkdir()
    own = [path for path in sys.path if not path.rstrip("/").endswith(("site-packages", "dist-packages"))]
    monkeypatch.setattr(sys, "path", [str(folder), *own])
    monkeypatch.setattr(builds, "_LOADER_CACHE", tmp_path / "ld.so.cache")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")

    def package(name, version="1.0", requires=(), files=()):
        about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (about / "METADATA").write_text("\n".join(lines) + "\n")
        for file, text in dict(files).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        importlib.invalidate_caches()

    return package


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_backend_that_is_not_installed_has_no_build_and_says_how_to_install_it(install, backend):
    assert gpu.build_of(backend) is None
    assert f"pip install 'cellerate[{backend}]'" in gpu.diagnose(backend, HERE)


@pytest.mark.parametrize(
    ("version", "files", "cuda", "other"),
    [
        ("2.15.0", TORCH, "13.2", None),
        ("2.13.0+cpu", TORCH_CPU, None, None),
        ("2.13.0+rocm6.4", TORCH_ROCM, None, "ROCm 6.4.43482"),
        ("2.13.0+cu126", {}, "12.6", None),
        ("2.13.0+cpu", {}, None, None),
        ("2.13.0", {}, "", None),
        ("2.13.0", {"torch/version.py": "cuda = ("}, "", None),
    ],
    ids=["CUDA", "CPU", "ROCm", "CUDA by version", "CPU by version", "does not say", "broken"],
)
def test_build_of_torch_is_what_its_version_file_says(install, version, files, cuda, other):
    install("torch", version, files=files)
    found = gpu.build_of("torch")
    assert (found.version, found.cuda, found.other, found.absent) == (version, cuda, other, ())


def test_build_of_torch_misses_the_wheels_that_it_requires_on_this_machine(install):
    requires = [
        "sympy>=1.13",
        f"nvidia-cudnn-cu13==9.26.0.51{ON_LINUX}",
        f"nvidia-nccl-cu13==2.30.7{ON_LINUX}",
        f"cuda-toolkit[cublas,cudart]==13.2.2{ON_LINUX}",
        "nvidia-arm-cu13==1.0; platform_system == 'Linux' and platform_machine == 'aarch64'",
        "nvidia-intel-cu13==1.0; platform_system == 'Linux' and platform_machine == 'x86_64'",
        "nvidia-late-cu13==1.0; python_version >= '3.20'",
        "nvidia-wish-cu13==1.0; extra == 'wish'",
    ]
    install("torch", "2.15.0", requires, TORCH)
    install("nvidia-nccl-cu13", "2.30.7")
    assert gpu.build_of("torch").absent == ("nvidia-cudnn-cu13", "cuda-toolkit", "nvidia-intel-cu13")
    install("nvidia_cudnn_cu13", "9.26.0.51")
    found = gpu.build_of("torch")
    assert (found.cudnn, found.absent) == ("9.26.0.51", ("cuda-toolkit", "nvidia-intel-cu13"))


@pytest.mark.parametrize("major", [12, 13])
def test_build_of_jax_is_that_of_its_plugin(install, major):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    assert gpu.build_of("jax").cuda is None
    wheels = [f"nvidia-cudnn-cu{major}>=9.8; sys_platform == 'linux' and extra == 'with-cuda'"]
    install(f"jax-cuda{major}-plugin", "0.10.2", [f"jax-cuda{major}-pjrt==0.10.2", *wheels])
    found = gpu.build_of("jax")
    assert (found.cuda, found.misfit) == (str(major), None)
    assert found.absent == (f"jax-cuda{major}-pjrt", f"nvidia-cudnn-cu{major}")
    install(f"jax-cuda{major}-pjrt", "0.10.2")
    install(f"nvidia-cudnn-cu{major}", "9.12.0.46")
    found = gpu.build_of("jax")
    assert (found.cudnn, found.absent) == ("9.12.0.46", ())


@pytest.mark.parametrize(
    ("plugin", "fits"), [("0.10.2", True), ("0.10.2.post1", True), ("0.10.1", False), ("0.10", False)]
)
def test_plugin_of_jax_fits_by_the_numbers_of_jaxlib(install, plugin, fits):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2+local")
    install("jax-cuda12-plugin", plugin)
    assert (gpu.build_of("jax").misfit is None) == fits


def test_build_of_tensorflow_is_that_of_its_build_file_and_the_wheels_of_its_extra(install):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    found = gpu.build_of("tensorflow")
    assert (found.cuda, found.smallest_capability) == ("12.5.1", (6, 0))
    assert found.absent == ("nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12")
    for name in ("cublas", "cudnn", "nccl"):
        install(f"nvidia-{name}-cu12", "9.3.0.75")
    found = gpu.build_of("tensorflow")
    assert (found.cudnn, found.absent) == ("9.3.0.75", ())


@pytest.mark.parametrize(
    ("files", "cuda"),
    [(build_info(is_cuda_build=False), None), ({}, ""), (build_info(is_cuda_build=True, cuda_version="64_1"), "64_1")],
    ids=["without CUDA", "does not say", "strange"],
)  # fmt: skip
def test_build_of_tensorflow_cpu_is_known_by_its_build_file(install, files, cuda):
    install("tensorflow-cpu", "2.21.0", files=files)
    found = gpu.build_of("tensorflow")
    assert (found.distribution, found.cuda) == ("tensorflow-cpu", cuda)
    assert gpu.describe("tensorflow", HERE)


@pytest.mark.parametrize("where", ["LD_LIBRARY_PATH", "ld.so.cache"])
def test_cudnn_of_the_system_stands_for_the_wheels(install, tmp_path, monkeypatch, where):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    (tmp_path / "lib").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'none'}:{tmp_path / 'lib'}")
    (tmp_path / "ld.so.cache").write_bytes(b"\0libcudnn.so.90\0libcudnn.so.8\0")
    assert gpu.build_of("tensorflow").absent
    if where == "LD_LIBRARY_PATH":
        (tmp_path / "lib" / "libcudnn.so.9").touch()
    else:
        (tmp_path / "ld.so.cache").write_bytes(b"\0libcudnn.so.9\0/usr/lib/libcudnn.so.9\0")
    assert gpu.build_of("tensorflow").absent == ()


HERE = gpu.GpuFacts(
    driver="580.65.06",
    cuda="13.0",
    devices=(gpu.Device("NVIDIA H100 80GB HBM3", (9, 0), 85_000_000_000, 84_000_000_000),),
    hidden=(),
    settings={},
    problems=(),
)
TORCH_FOR_12 = "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"


def here(cuda="13.0", capability=(9, 0), **settings):
    """This machine with another driver, GPU or environment."""
    driver = {"13": "580.65.06", "12": "550.54.14", "11": "470.82.01"}[cuda[:2]]
    device = dataclasses.replace(HERE.devices[0], name="a GPU", compute_capability=capability)
    return dataclasses.replace(HERE, driver=driver, cuda=cuda, devices=(device,), settings=settings)


def test_backends_for_this_driver_and_gpu_compute_on_it(install):
    install("torch", "2.15.0", files=TORCH)
    install("nvidia-cudnn-cu13", "9.26.0.51")
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda12-plugin", "0.10.2")
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    assert [gpu.diagnose(backend, HERE) for backend in ("tensorflow", "jax", "torch")] == [None] * 3
    assert gpu.describe("torch", HERE) == "GPU: CUDA 13.2, cuDNN 9.26.0.51, takes GPU memory as it needs it"
    assert gpu.describe("jax", HERE).startswith("GPU: CUDA 12, takes 75 % of GPU memory at its start")
    assert gpu.describe("tensorflow", HERE).startswith("GPU: CUDA 12.5.1, takes nearly all GPU memory")


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (HERE, "pip install --force-reinstall torch"),
        (here("12.4"), TORCH_FOR_12),
        (here("13.0", (7, 0)), TORCH_FOR_12),
        (here("12.8", (12, 0)), "update the NVIDIA driver to 580 or newer, then pip install --force-reinstall torch"),
        (here("11.4", (8, 0)), f"update the NVIDIA driver to 525 or newer, then {TORCH_FOR_12}"),
        (here("13.0", None), "pip install --force-reinstall torch"),
    ],
    ids=["CUDA 13", "CUDA 12", "Volta", "Blackwell with CUDA 12", "CUDA 11", "no capability"],
)  # fmt: skip
def test_torch_without_cuda_is_told_the_build_for_this_driver_and_gpu(install, facts, fix):
    install("torch", "2.13.0+cpu", files=TORCH_CPU)
    assert gpu.diagnose("torch", facts) == f"torch 2.13.0+cpu is a build without CUDA: {fix}"


def test_torch_for_other_gpus_says_so(install):
    install("torch", "2.13.0+rocm6.4", files=TORCH_ROCM)
    assert gpu.diagnose("torch", HERE) == (
        "torch 2.13.0+rocm6.4 is a build for ROCm 6.4.43482: pip install --force-reinstall torch"
    )


@pytest.mark.parametrize(("cuda", "major"), [("13.0", 13), ("12.4", 12)])
def test_jax_without_a_plugin_is_told_the_one_for_this_driver(install, cuda, major):
    install("jax", "0.10.2")
    reason = f"JAX 0.10.2 has no CUDA plugin: pip install 'jax[cuda{major}]'"
    assert gpu.diagnose("jax", here(cuda)) == reason


def test_jax_with_a_plugin_of_another_version_is_told_to_upgrade_both(install):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.9.0")
    assert gpu.diagnose("jax", HERE) == (
        "jax-cuda13-plugin 0.9.0 does not fit jaxlib 0.10.2, so JAX does not use it: "
        "pip install --upgrade 'jax[cuda13]'"
    )


@pytest.mark.parametrize(
    ("platforms", "kept"),
    [("cpu", True), ("cpu,cuda", True), ("tpu", True), ("", False), ("cuda,cpu", False), ("gpu", False)],
)
def test_jax_platforms_keeps_jax_from_the_gpu_where_the_first_is_another(install, platforms, kept):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.10.2")
    reason = f"JAX_PLATFORMS={platforms!r} keeps JAX from the GPU: unset JAX_PLATFORMS"
    assert gpu.diagnose("jax", here(JAX_PLATFORMS=platforms)) == (reason if kept else None)


def test_tensorflow_without_cuda_is_told_to_be_replaced_where_there_is_one_with_it(install, monkeypatch):
    install("tensorflow-cpu", "2.21.0", files=build_info(is_cuda_build=False))
    assert gpu.diagnose("tensorflow", HERE) == (
        "tensorflow-cpu 2.21.0 is a build without CUDA: pip uninstall tensorflow-cpu, "
        "then pip install 'tensorflow[and-cuda]'"
    )
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "use JAX or torch" in gpu.diagnose("tensorflow", HERE)
    assert "pip" not in gpu.diagnose("tensorflow", HERE)


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        ((), "nvidia-cublas-cu12 and 2 more packages, which are"),
        (("nccl",), "nvidia-cublas-cu12 and nvidia-cudnn-cu12, which are"),
        (("cublas", "nccl"), "nvidia-cudnn-cu12, which is"),
    ],
)
def test_tensorflow_without_its_libraries_names_them(install, installed, missing):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    for name in installed:
        install(f"nvidia-{name}-cu12")
    assert gpu.diagnose("tensorflow", HERE) == (
        f"TensorFlow 2.21.0 needs {missing} not installed: pip install 'tensorflow[and-cuda]'"
    )


@pytest.mark.parametrize(
    ("facts", "instead"),
    [
        (here("12.4"), f"update the driver to 580 or newer, or {TORCH_FOR_12}"),
        (here("12.8", (10, 0)), "update the driver to 580 or newer"),
        (here("11.4", (8, 0)), "update the driver to 580 or newer"),
    ],
    ids=["CUDA 12", "Blackwell", "CUDA 11"],
)
def test_torch_for_a_newer_cuda_than_the_drivers_says_both(install, facts, instead):
    install("torch", "2.15.0", files=TORCH)
    assert gpu.diagnose("torch", facts) == (
        f"torch 2.15.0 is built for CUDA 13.2, and the driver ({facts.driver}) runs CUDA {facts.cuda} "
        f"at most: {instead}"
    )


@pytest.mark.parametrize(("cuda", "fits"), [("11.4", False), ("12.0", True), ("13.0", True)])
def test_driver_fits_tensorflow_from_the_same_first_number_on(install, cuda, fits):
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    reason = gpu.diagnose("tensorflow", here(cuda))
    assert (reason is None) == fits
    if reason is not None:
        assert reason.endswith("runs CUDA 11.4 at most: update the driver to 525 or newer")


@pytest.mark.parametrize(
    ("backend", "capability", "fits"),
    [
        ("torch", (7, 0), False),
        ("torch", (7, 5), True),
        ("jax", (6, 1), False),
        ("tensorflow", (5, 2), False),
        ("tensorflow", (6, 0), True),
    ],
)
def test_gpu_below_the_smallest_capability_of_a_build_is_too_old(install, backend, capability, fits):
    install("torch", "2.15.0", files=TORCH)
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.10.2")
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    facts = here(capability=capability)
    reason = gpu.diagnose(backend, facts)
    fix = {
        "torch": f"compute capability 7.5 or later, here is a GPU with {capability[0]}.{capability[1]}: {TORCH_FOR_12}",
        "jax": "here is a GPU with 6.1: pip install --upgrade 'jax[cuda12]'",
        "tensorflow": "compute capability 6.0 or later, here is a GPU with 5.2: use JAX or torch",
    }[backend]
    assert reason is None if fits else reason.endswith(fix)
    newer = (*facts.devices, *HERE.devices)
    assert gpu.diagnose(backend, dataclasses.replace(facts, devices=newer)) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (HERE, None),
        (here("13.0", (12, 0)), None),
        (here("13.0", None), None),
        (here("13.0", (8, 9)), "they need compute capability 9.0 (Hopper) or later, here is a GPU with 8.9"),
        (
            here("12.4"),
            "they are compiled for CUDA 13, and the driver (550.54.14) runs CUDA 12.4 at most: "
            "update the driver to 580 or newer",
        ),
        (dataclasses.replace(HERE, cuda=None), None),
    ],
)
def test_kernels_need_hopper_and_a_driver_for_cuda_13(facts, reason):
    assert gpu.diagnose_kernels(facts) == reason


@pytest.mark.parametrize(
    ("backend", "settings", "words"),
    [
        ("torch", {}, "takes GPU memory as it needs it"),
        ("tensorflow", {}, "takes nearly all"),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, "takes nearly all"),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "takes GPU memory as it needs it"),
        ("jax", {}, "takes 75 % of"),
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, "takes 75 % of"),
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "takes GPU memory as it needs it"),
        ("jax", {"XLA_CLIENT_MEM_FRACTION": ".5"}, "takes the share '.5' of"),
        ("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4"}, "takes the share '.4' of"),
    ],
)
def test_memory_says_what_a_backend_takes_and_how_to_change_it(backend, settings, words):
    said = gpu.memory(backend, settings)
    assert said.startswith(words)
    assert ("as it needs it" in said) and (said.endswith(")") == ("start" in said))
