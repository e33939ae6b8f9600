"""The doctor, on a machine made of files, packages and settings: each fault in turn, and no other is found."""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cellerate.kernels import native
from cellerate.machine import gpu
from cellerate.machine.doctor import Core, control_groups, examine, load, packages, settings
from cellerate.machine.doctor.finding import STATUSES, parted
from cellerate.machine.doctor.packages import Package

GB = 10**9
PROCESSORS = range(4)
NO_GPU = gpu.GpuFacts(None, None, (), (), {}, ("no NVIDIA driver was found (libcuda.so.1)",))
H100 = gpu.Device("NVIDIA H100", (9, 0), 80 * GB, 79 * GB)
WITH_GPU = gpu.GpuFacts("580.65.06", "13.0", (H100,), (), {}, ())
OURS = (
    "numpy>=2.1",
    'cellerate[train]; extra == "jax"',
    'jax>=0.7; extra == "jax"',
    'tensorflow>=2.20; extra == "tensorflow"',
    'torch>=2.8; extra == "torch"',
    'h5py<3.15,>=3.12; extra == "train"',
    'keras>=3.15; extra == "train"',
    'psutil>=6.1; extra == "train"',
)
PACKAGES = {
    "cellerate": Package("0.1.0", OURS),
    "numpy": Package("2.4.6"),
    "keras": Package("3.15.1", ("numpy", "h5py")),
    "h5py": Package("3.14.0", ("numpy>=1.19.3",)),
    "tensorflow": Package(
        "2.21.0",
        (
            "h5py<3.15.0,>=3.11.0",
            "protobuf<8.0.0,>=6.31.1",
            "keras>=3.12.0",
            'nvidia-cudnn-cu12; extra == "and-cuda"',
        ),
    ),
    "protobuf": Package("7.36.2"),
    "jax": Package("0.10.2", ("jaxlib<=0.10.2,>=0.10.1", "numpy>=2.0")),
    "jaxlib": Package("0.10.2", ("numpy>=2.0",)),
    "torch": Package("2.13.0+cpu", ("setuptools>=77", "nonsense ==")),
    "setuptools": Package("84.2.1"),
}
BACKENDS = ("tensorflow", "jax", "torch")


def processor_times(busy=0, idle=0, stolen=0):
    lines = [f"cpu{n} {100 + busy} 5 100 {1000 + idle} 0 0 0 {stolen} 0 0" for n in PROCESSORS]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "cpu4 9 9 9 9 9 9 9 9 9 9", "intr 1 2"])


FILES = {
    "proc/stat": processor_times(),
    "proc/loadavg": "0.10 0.20 0.30 1/100 1234\n",
    "proc/vmstat": "nr_free_pages 1\npswpin 5\npswpout 7\n",
    "proc/meminfo": (
        "MemTotal:  16000000 kB\nMemAvailable:  12000000 kB\nSwapTotal: 4000000 kB\nSwapFree: 3990000 kB\n"
    ),
    "proc/mounts": "proc /proc proc rw 0 0\n/dev/vda / ext4 rw,relatime 0 0\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f avx512bw avx512dq avx512vl\n",
    "proc/self/cgroup": "0::/box\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/pids.max": "max\n",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "dev/shm/segment": "",
}
for number in PROCESSORS:
    FILES[f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"] = f"{number}\n"
    FILES[f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor"] = "performance\n"
LATER = processor_times(busy=0, idle=20)
HALF_CORES = {
    f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n // 2 * 2}-{n // 2 * 2 + 1}\n"
    for n in PROCESSORS
}


def peak(target, precision, threads):
    """A core of 100 GFLOP/s, half that on older instructions, twice that in bfloat16 on the newest."""
    return 1e11 * threads * (0.5 if target == "avx2" else 2.0 if precision == "bfloat16" else 1.0)


CORE = Core(target="avx512", targets=("avx512", "avx2", "scalar"), threads=4, measure=peak)


class Machine:
    """A healthy machine, and what `examine` says of it after some changes."""

    def __init__(self, root, monkeypatch):
        self.root = root / "machine"
        self.work = root / "my work"
        self.work.mkdir()
        self.monkeypatch = monkeypatch

    def examine(
        self,
        *,
        files=(),
        later=LATER,
        vmstat_later=FILES["proc/vmstat"],
        environ=(),
        core=CORE,
        facts=NO_GPU,
        reasons=(),
        kernels=None,
        installed=(),
        backends=BACKENDS,
        python=(3, 12),
        free=100 * GB,
        shared=8 * GB,
        limits=(20000, -1),
        keras_file=None,
        xla=("xla_cpu_max_isa", "xla_backend_optimization_level", "xla_force_host_platform_device_count"),
        folders=None,
        usage=None,
    ):
        """Findings on the healthy machine, but for what is given."""
        for name, text in (FILES | dict(files)).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if isinstance(text, bytes):
                path.write_bytes(text)
            elif text is not None:
                path.write_text(text.replace("WORK", str(self.work).replace(" ", "\\040")))
        if keras_file is not None:
            (self.work / "keras.json").write_text(keras_file)

        def wait(seconds):
            assert 0.1 <= seconds <= 0.5
            if later is not None and (self.root / "proc/stat").exists():
                (self.root / "proc/stat").write_text(later)
            (self.root / "proc/vmstat").write_text(vmstat_later)

        def size_of(path):
            in_all = shared if path == self.root / "dev/shm" else 200 * GB
            return in_all, in_all - free, free

        self.monkeypatch.setattr(gpu, "diagnose", lambda backend, facts: dict(reasons).get(backend))
        self.monkeypatch.setattr(settings, "xla_knows", lambda flag: flag in xla)
        return examine(
            core,
            kernels=lambda facts: kernels,
            environ={"KERAS_HOME": str(self.work)} | dict(environ),
            root=self.root,
            facts=facts,
            find=(PACKAGES | dict(installed)).get,
            backends=backends,
            python=python,
            allowed=PROCESSORS,
            folders={"the current folder": self.work, "encoded texts": self.work / "not/made/yet"}
            if folders is None
            else folders,
            limits=limits,
            usage=size_of if usage is None else usage,
            wait=wait,
        )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def said(findings):
    """All but what is well."""
    return [finding for finding in findings if finding.status != "ok"]


def quota(period_share, periods=0, throttled=0):
    return {
        "sys/fs/cgroup/box/cpu.max": f"{int(100000 * period_share)} 100000\n",
        "sys/fs/cgroup/box/cpu.stat": f"usage_usec 7\nnr_periods {periods}\nnr_throttled {throttled}\n",
    }


def test_healthy_machine_gives_no_finding_but_what_is_well(machine):
    found = machine.examine()
    assert said(found) == []
    assert {finding.topic for finding in found} == {
        "gpu", "native core", "versions", "threads", "memory", "disk", "load"
    }  # fmt: skip
    assert all(finding.found and not finding.fix for finding in found)
    shown = {finding.topic: finding.found for finding in found}
    assert shown["native core"] == "avx512 on 4 threads, at most 400 GFLOP/s in float32, measured"
    assert shown["disk"] == "100 GB are free for the current folder and encoded texts"


def test_machine_with_a_gpu_that_all_backends_use_gives_no_finding_but_what_is_well(machine):
    found = machine.examine(facts=WITH_GPU)
    assert said(found) == []
    uses = [finding.found for finding in found if finding.topic == "gpu"]
    assert [text.split()[0] for text in uses] == ["TensorFlow", "JAX", "torch", "Cellerate's"]
    assert "takes nearly all GPU memory at its start" in uses[0]


def test_machine_that_tells_nothing_gives_no_problem(machine):
    """As where neither /proc nor /sys is mounted."""
    found = machine.examine(files=dict.fromkeys(FILES), vmstat_later="")
    assert [finding for finding in found if finding.status == "problem"] == []


FITTING = {"OMP_NUM_THREADS": "2", "PJRT_NPROC": "2", "TF_NUM_INTRAOP_THREADS": "2"}
# What is changed, and of the one finding: topic, status, words of what was found, of its cost, of its fix.
FAULTS = {
    # GPU
    "driver without a gpu for this user": (
        {"facts": gpu.GpuFacts("580.1", "13.0", (), (), {}, ("this user may not open /dev/nvidia0: sudo usermod -aG "
         "video $USER, then log in again",))},
        ("gpu", "problem", "this user may not open /dev/nvidia0", "on the CPU", "sudo usermod -aG video"),
    ),
    "driver that fails with a number": (
        {"facts": gpu.GpuFacts("580.1", "13.0", (), (), {}, ("the switch is not ready: start it (cuInit: 802)",))},
        ("gpu", "problem", "the switch is not ready", "on the CPU", "start it"),
    ),
    "driver's library elsewhere": (
        {"facts": gpu.GpuFacts(None, None, (), (), {}, ("libcuda.so.1 is in /x: export LD_LIBRARY_PATH=/x",))},
        ("gpu", "note", "libcuda.so.1 is in /x", "", "export LD_LIBRARY_PATH=/x"),
    ),
    "gpu hidden, and no other": (
        {"facts": gpu.GpuFacts("580.1", "13.0", (), (H100,), {}, ("CUDA_VISIBLE_DEVICES='' hides NVIDIA H100: unset "
         "CUDA_VISIBLE_DEVICES, or set it to 0",))},
        ("gpu", "note", "hides NVIDIA H100", "on the CPU", "unset CUDA_VISIBLE_DEVICES"),
    ),
    "gpu hidden beside another": (
        {"facts": dataclasses.replace(WITH_GPU, hidden=(H100,)), "environ": {"CUDA_VISIBLE_DEVICES": "0"}},
        ("gpu", "note", "CUDA_VISIBLE_DEVICES='0' hides NVIDIA H100", "nothing", "unset CUDA_VISIBLE_DEVICES"),
    ),
    "one backend of three without its gpu": (
        {"facts": WITH_GPU, "reasons": {"jax": "JAX 0.10.2 has no CUDA plugin: pip install 'jax[cuda13]'"}},
        ("gpu", "note", "JAX 0.10.2 has no CUDA plugin", "on JAX everything is computed on the CPU, beside NVIDIA H100",
         "pip install 'jax[cuda13]'"),
    ),
    "the chosen backend without its gpu": (
        {"facts": WITH_GPU, "reasons": {"jax": "JAX has no CUDA plugin: pip install 'jax[cuda13]'"},
         "environ": {"KERAS_BACKEND": "jax"}},
        ("gpu", "problem", "JAX has no CUDA plugin", "on the CPU", "pip install 'jax[cuda13]'"),
    ),
    "the only backend without its gpu": (
        {"facts": WITH_GPU, "reasons": {"torch": "torch is a build without CUDA: pip install torch"},
         "backends": ("torch",)},
        ("gpu", "problem", "torch is a build without CUDA", "on torch", "pip install torch"),
    ),
    "gpu memory taken": (
        {"facts": dataclasses.replace(WITH_GPU, devices=(dataclasses.replace(H100, free_bytes=4 * GB),))},
        ("gpu", "problem", "only 4 GB of 80 GB are free", "exhausted", "nvidia-smi"),
    ),
    "gpu memory half taken": (
        {"facts": dataclasses.replace(WITH_GPU, devices=(dataclasses.replace(H100, free_bytes=30 * GB),))},
        ("gpu", "note", "only 30 GB of 80 GB are free", "JAX and TensorFlow", "nvidia-smi"),
    ),
    "gpu setting": (
        {"facts": dataclasses.replace(WITH_GPU, settings={"NVIDIA_TF32_OVERRIDE": "0"})},
        ("gpu", "note", "NVIDIA_TF32_OVERRIDE='0'", "no float32 product is computed in TF32", ""),
    ),
    "gpu not fully known": (
        {"facts": dataclasses.replace(WITH_GPU, incomplete="free memory is missing: pip install nvidia-ml-py")},
        ("gpu", "note", "free memory is missing", "not known", "pip install nvidia-ml-py"),
    ),
    "kernels do not run on the gpu": (
        {"facts": WITH_GPU, "kernels": "there is no compiler: pip install 'cellerate[cuda]'"},
        ("gpu", "note", "do not run on the GPU: there is no compiler", "cuDNN", "pip install 'cellerate[cuda]'"),
    ),
    "jax sent to a gpu that is not there": (
        {"environ": {"JAX_PLATFORMS": "cuda"}},
        ("gpu", "problem", "JAX_PLATFORMS=cuda, and there is no GPU", "error", "unset JAX_PLATFORMS"),
    ),
    # Native core
    "core missing": (
        {"core": Core(missing="the native core is not installed (no: such): Install a C++20 compiler")},
        ("native core", "problem", "the native core is not installed (no: such)", "NumPy runs packed models",
         "Install a C++20 compiler"),
    ),
    "core refuses its setting": (
        {"core": Core(refused="CELLERATE_THREADS is 'many', expected a whole number")},
        ("native core", "problem", "CELLERATE_THREADS is 'many'", "nothing", "unset CELLERATE_THREADS"),
    ),
    "narrow target": (
        {"core": dataclasses.replace(CORE, target="avx2")},
        ("native core", "problem", "CELLERATE_TARGET=avx2, where avx512 can run",
         "200 GFLOP/s of 400 GFLOP/s in float32, 200 GFLOP/s of 800 GFLOP/s in bfloat16", "unset CELLERATE_TARGET"),
    ),
    "build of an old compiler": (
        {"core": dataclasses.replace(CORE, target="avx2", targets=("avx2", "scalar"))},
        ("native core", "problem", "compiled without avx512", "it computes with avx2", "and Cellerate again"),
    ),
    "few threads": (
        {"core": dataclasses.replace(CORE, threads=1)},
        ("native core", "problem", "it uses 1 thread, and there are 4 cores",
         "1 of 4 cores: 100 GFLOP/s of 400 GFLOP/s, measured", "unset CELLERATE_THREADS"),
    ),
    "few threads, not measured": (
        {"core": dataclasses.replace(CORE, threads=1, measure=None)},
        ("native core", "problem", "it uses 1 thread", "it computes on 1 of 4 cores", "unset CELLERATE_THREADS"),
    ),
    "more threads than processors": (
        {"core": dataclasses.replace(CORE, threads=8)},
        ("native core", "problem", "it uses 8 threads, and 4 can run at once", "wait", "export CELLERATE_THREADS=4"),
    ),
    "processors that are half cores": (
        {"core": dataclasses.replace(CORE, measure=lambda target, precision, threads: 1e11 * (1 + threads) / 2)},
        ("native core", "note", "4 threads reach 250 GFLOP/s, and one alone 100 GFLOP/s", "each gives 62 %", "cores"),
    ),
    "processor slower in bfloat16": (
        {"core": dataclasses.replace(CORE, measure=lambda target, precision, threads: peak("avx2", precision, threads)
         * (0.5 if precision == "bfloat16" else 1))},
        ("native core", "note", "avx512 reaches 100 GFLOP/s in bfloat16 and 200 GFLOP/s in float32, measured",
         "slower in bfloat16", "--precision auto"),
    ),
    # Versions
    "keras too old": (
        {"installed": {"keras": Package("3.14.9", ("numpy",))}},
        ("versions", "problem", "keras 3.14.9 is installed; cellerate 0.1.0 needs keras>=3.15", "fails",
         "pip install 'keras>=3.15'"),
    ),
    "numpy too old": (
        {"installed": {"numpy": Package("2.0.2")}},
        ("versions", "problem", "numpy 2.0.2 is installed", "fails", "pip install 'numpy>=2.1'"),
    ),
    "h5py too new for tensorflow": (
        {"installed": {"h5py": Package("3.15.1")}},
        ("versions", "problem", "tensorflow 2.21.0 needs h5py<3.15.0,>=3.11.0", "fails", "<3.15"),
    ),
    "h5py newer than we ask for, without tensorflow": (
        {"installed": {"h5py": Package("3.15.1"), "tensorflow": None}, "backends": ("jax", "torch")},
        ("versions", "note", "cellerate 0.1.0 needs h5py<3.15,>=3.12", "fails", "pip install 'h5py<3.15,>=3.12'"),
    ),
    "jaxlib that does not fit jax": (
        {"installed": {"jaxlib": Package("0.9.0")}},
        ("versions", "problem", "jaxlib 0.9.0 is installed; jax 0.10.2 needs jaxlib", "fails", "jaxlib<=0.10.2"),
    ),
    "jaxlib missing": (
        {"installed": {"jaxlib": None}},
        ("versions", "problem", "jaxlib is not installed; jax 0.10.2 needs", "fails", "pip install 'jaxlib"),
    ),
    "protobuf too new for tensorflow": (
        {"installed": {"protobuf": Package("8.0.1")}},
        ("versions", "problem", "protobuf 8.0.1 is installed", "fails", "pip install 'protobuf<8.0.0,>=6.31.1'"),
    ),
    "tensorflow twice": (
        {"installed": {"tensorflow-cpu": Package("2.21.0")}},
        ("versions", "problem", "tensorflow and tensorflow-cpu are both installed", "chance",
         "pip uninstall -y tensorflow tensorflow-cpu, then pip install tensorflow"),
    ),
    "tensorflow-cpu too old": (
        {"installed": {"tensorflow": None, "tensorflow-cpu": Package("2.19.1")}},
        ("versions", "problem", "tensorflow-cpu 2.19.1 is installed; cellerate 0.1.0 needs tensorflow-cpu>=2.20",
         "fails",
         "pip install 'tensorflow-cpu>=2.20'"),
    ),
    "tensorflow-cpu without keras": (
        {
            "installed": {"keras": None, "tensorflow": None, "tensorflow-cpu": Package("2.21.0")},
            "backends": ("tensorflow",),
        },
        ("versions", "problem", "tensorflow is installed without Keras", "error", "pip install 'cellerate[train]'"),
    ),
    "backend without keras": (
        {"installed": {"keras": None, "tensorflow": None}, "backends": ("jax",)},
        ("versions", "problem", "jax is installed without Keras", "error", "pip install 'cellerate[jax]'"),
    ),
    "no backend": (
        {"backends": ()},
        ("versions", "note", "no Keras backend", "packed models run", "pip install 'cellerate[jax]'"),
    ),
    "python that newer jax has left": (
        {"python": (3, 11)},
        ("versions", "note", "Python 3.11 gets no JAX newer than 0.10.2", "", "Python 3.12"),
    ),
    "cuda libraries over each other": (
        {
            "facts": WITH_GPU,
            "installed": {
                "nvidia-cudnn-cu12": Package("9.1", files=frozenset({"nvidia/cudnn/lib/libcudnn.so.9"})),
                "nvidia-cudnn-cu13": Package("9.2", files=frozenset({"nvidia/cudnn/lib/libcudnn.so.9"})),
            },
        },
        ("versions", "problem", "nvidia-cudnn-cu12 and nvidia-cudnn-cu13", "written over", "environment of its own"),
    ),
    "torch for gpus, and none there": (
        {
            "installed": {
                "torch": Package("2.13.0", ("nvidia-cublas==13.1; platform_system == 'Linux'", "setuptools")),
                "nvidia-cublas": Package("13.1", size_bytes=3 * GB),
            }
        },
        ("versions", "note", "torch 2.13.0 is a build for NVIDIA GPUs, and there is none", "3 GB of disk",
         "download.pytorch.org/whl/cpu"),
    ),
    # Settings
    "backend not installed": (
        {"environ": {"KERAS_BACKEND": "torch"}, "backends": ("jax",), "installed": {"torch": None}},
        ("settings", "problem", "KERAS_BACKEND=torch, which is not installed", "error", "'cellerate[torch]'"),
    ),
    "backend unknown": (
        {"environ": {"KERAS_BACKEND": "mxnet"}},
        ("settings", "problem", "KERAS_BACKEND=mxnet, which is not a backend", "error", "tensorflow, jax, torch"),
    ),
    "flag that xla does not know": (
        {"environ": {"XLA_FLAGS": "--xla_cpu_fastest=true"}},
        ("settings", "problem", "--xla_cpu_fastest=true", "ends the process", "take --xla_cpu_fastest=true out"),
    ),
    "xla that hardly optimizes": (
        {"environ": {"XLA_FLAGS": "--xla_backend_optimization_level=0"}},
        ("settings", "problem", "--xla_backend_optimization_level=0", "slower", "take --xla_backend"),
    ),
    "xla with narrow instructions": (
        {"environ": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}},
        ("settings", "note", "--xla_cpu_max_isa=AVX2", "narrower", "take --xla_cpu_max_isa=AVX2 out"),
    ),
    "xla with several cpus": (
        {"environ": {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}},
        ("settings", "note", "device_count=8", "8 devices", "out of XLA_FLAGS"),
    ),
    "keras computes in float64": (
        {"keras_file": json.dumps({"floatx": "float64", "backend": "jax"})},
        ("settings", "problem", 'keras.json has "floatx": "float64"', "leaves to Keras", 'set "floatx": "float32"'),
    ),
    "keras keeps weights in bfloat16": (
        {"keras_file": json.dumps({"floatx": "bfloat16"})},
        ("settings", "note", '"floatx": "bfloat16"', "small updates", 'set "floatx": "float32"'),
    ),
    # Threads
    "one thread for torch and numpy": (
        {"environ": {"OMP_NUM_THREADS": "1"}},
        ("threads", "problem", "OMP_NUM_THREADS=1", "torch and NumPy compute on 1 of 4 cores: 100 GFLOP/s of 400",
         "unset OMP_NUM_THREADS, or export OMP_NUM_THREADS=4"),
    ),
    "one thread for numpy alone": (
        {"environ": {"OMP_NUM_THREADS": "1"}, "backends": ("jax",)},
        ("threads", "note", "OMP_NUM_THREADS=1", "NumPy computes on 1 of 4", "unset OMP_NUM_THREADS"),
    ),
    "one thread for torch by mkl": (
        {"environ": {"MKL_NUM_THREADS": "1"}},
        ("threads", "problem", "MKL_NUM_THREADS=1", "torch computes on 1 of 4", "unset MKL_NUM_THREADS"),
    ),
    "one thread for numpy by openblas": (
        {"environ": {"OPENBLAS_NUM_THREADS": "1"}},
        ("threads", "note", "OPENBLAS_NUM_THREADS=1", "NumPy computes on 1 of 4", "unset OPENBLAS_NUM_THREADS"),
    ),
    "one thread for tensorflow": (
        {"environ": {"TF_NUM_INTRAOP_THREADS": "1"}},
        ("threads", "problem", "TF_NUM_INTRAOP_THREADS=1", "TensorFlow computes on 1 of 4", "unset TF_NUM_INTRAOP"),
    ),
    "one thread for jax": (
        {"environ": {"NPROC": "1"}},
        ("threads", "problem", "NPROC=1", "JAX computes on 1 of 4", "unset NPROC, or export NPROC=4"),
    ),
    "too many threads": (
        {"environ": {"OMP_NUM_THREADS": "64,2"}},
        ("threads", "problem", "OMP_NUM_THREADS=64,2", "64 threads, which take turns on 4", "export OMP_NUM_THREADS=4"),
    ),
    "no number of threads": (
        {"environ": {"OMP_NUM_THREADS": "all"}},
        ("threads", "problem", "OMP_NUM_THREADS='all' is not a number", "ignore", "export OMP_NUM_THREADS=4"),
    ),
    "torch binds its thread": (
        {"environ": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}},
        ("threads", "problem", "OMP_PROC_BIND=close and OMP_PLACES=cores", "one core", "OMP_PROC_BIND OMP_PLACES"),
    ),
    "container with less time than processors": (
        {"files": quota(1.5, 200, 50), "core": dataclasses.replace(CORE, threads=2)},
        ("threads", "problem", "the time of 1.5 processors and sees 4", "25 % of its periods",
         "export TF_NUM_INTRAOP_THREADS=2 NPROC=2 OMP_NUM_THREADS=2"),
    ),
    "container with less time, and one backend that does not know": (
        {
            "files": quota(2),
            "core": dataclasses.replace(CORE, threads=2),
            "environ": {"OMP_NUM_THREADS": "2", "PJRT_NPROC": "2"},
        },
        ("threads", "problem", "the time of 2 processors and sees 4", "stand still", "export TF_NUM_INTRAOP_THREADS=2"),
    ),
    "container whose threads fit and which is throttled": (
        {"files": quota(2, 100, 30), "core": dataclasses.replace(CORE, threads=2), "environ": FITTING},
        ("threads", "note", "the time of 2 processors and sees 4", "30 % of its periods", "docker run --cpus"),
    ),
    "fewer processors than the machine has": (
        {"files": {"sys/devices/system/cpu/online": "0-7,16\n"}},
        ("threads", "note", "may run on 4 of the machine's 9 processors", "nothing", "taskset"),
    ),
    "no room for threads": (
        {"files": {"sys/fs/cgroup/pids.max": "100\n", "sys/fs/cgroup/pids.current": "90\n"}},
        ("threads", "problem", "room for 10 more threads", "fails", "--pids-limit"),
    ),
    "processors that save power": (
        {"files": {"sys/devices/system/cpu/cpu2/cpufreq/scaling_governor": "powersave\n",
                   "sys/devices/system/cpu/cpu2/cpufreq/scaling_driver": "acpi-cpufreq\n"}},
        ("threads", "problem", "the governor 'powersave'", "low frequency", "cpupower frequency-set -g performance"),
    ),
    "processors that prefer to save power": (
        {"files": {"sys/devices/system/cpu/cpu2/cpufreq/energy_performance_preference": "power\n",
                   "sys/devices/system/cpu/cpu2/cpufreq/scaling_driver": "intel_pstate\n"}},
        ("threads", "problem", "the energy preference 'power'", "low frequency", "performance"),
    ),
    # Memory
    "container with less memory": (
        {"files": {"sys/fs/cgroup/box/memory.max": f"{8 * GB}\n", "sys/fs/cgroup/box/memory.current": f"{GB}\n"}},
        ("memory", "note", "the container may use 8 GB of the machine's 16.4 GB", "137", ""),
    ),
    "container whose memory was full": (
        {
            "files": {
                "sys/fs/cgroup/box/memory.max": f"{8 * GB}\n",
                "sys/fs/cgroup/box/memory.events": "low 0\noom 5\noom_kill 3\n",
            }
        },
        ("memory", "problem", "3 processes were ended", "137", "--memory"),
    ),
    "little memory": (
        {"files": {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 500000 kB\n"}},
        ("memory", "problem", "only 512 MB of 16.4 GB are free", "backend", "ps aux"),
    ),
    "not much memory": (
        {"files": {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 1200000 kB\n"}},
        ("memory", "note", "only 1.23 GB of 16.4 GB are free", "batch", "ps aux"),
    ),
    "swapping": (
        {"vmstat_later": "pswpin 45\n"},
        ("memory", "problem", "it read 40 pages back just now", "thousands", "end what else"),
    ),
    "swapped out": (
        {"files": {"proc/meminfo": FILES["proc/meminfo"].replace("SwapFree: 3990000", "SwapFree: 3000000")}},
        ("memory", "note", "1.02 GB are swapped out", "once", "end what else"),
    ),
    "no huge pages": (
        {"files": {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}},
        ("memory", "note", "transparent_hugepage", "0004", "echo madvise"),
    ),
    "another allocator": (
        {"environ": {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}},
        ("memory", "note", "LD_PRELOAD puts jemalloc", "0004", "unset LD_PRELOAD"),
    ),
    "small shared memory": (
        {"shared": 64 * 2**20},
        ("memory", "note", "/dev/shm has 67.1 MB", "DataLoader", "--shm-size"),
    ),
    "few files": (
        {"limits": (256, -1)},
        ("memory", "note", "may open 256 files", "cellerate serve", "ulimit -n 4096"),
    ),
    "few addresses": (
        {"limits": (20000, 4 * GB)},
        ("memory", "problem", "may reserve 4 GB of addresses", "fail", "ulimit -v unlimited"),
    ),
    # Disk
    "full disk": (
        {"free": GB // 2},
        ("disk", "problem", "only 500 MB are free for the current folder and encoded texts", "checkpoints", "TMPDIR"),
    ),
    "nearly full disk": (
        {"free": 3 * GB},
        ("disk", "note", "only 3 GB are free for", "may not fit", "CELLERATE_CACHE"),
    ),
    "folder on a network": (
        {"files": {"proc/mounts": "/dev/vda / ext4 rw 0 0\nserver:/data WORK nfs4 rw 0 0\n"}},
        ("disk", "note", "are on a network (nfs4)", "random access", "CELLERATE_CACHE"),
    ),
    "folder in memory": (
        {"files": {"proc/mounts": "/dev/vda / ext4 rw 0 0\ntmpfs WORK tmpfs rw 0 0\n"}},
        ("disk", "note", "are in memory (tmpfs)", "takes memory", "TMPDIR"),
    ),
    "folder of a container": (
        {"files": {"proc/mounts": "/dev/vda / ext4 rw 0 0\noverlay / overlay rw 0 0\n"}},
        ("disk", "note", "belongs to this container (overlay)", "gone", "docker run -v"),
    ),
    # Load
    "busy machine": (
        {"later": processor_times(busy=15, idle=5)},
        ("load", "problem", "use 3.0 of 4 processors now", "too low", "top"),
    ),
    "somewhat busy machine": (
        {"later": processor_times(busy=4, idle=16)},
        ("load", "note", "use 0.80 of 4 processors now", "too low", "top"),
    ),
    "machine that was busy": (
        {"files": {"proc/loadavg": "9.5 2.0 1.0 1/100 1234\n"}},
        ("load", "note", "in the last minute 9.5 processes wanted 4 processors", "too low", "top"),
    ),
    "host that takes time now": (
        {"later": processor_times(idle=16, stolen=4)},
        ("load", "problem", "takes 20 % of its time now", "wait", "dedicated"),
    ),
    "host that has taken time": (
        {"files": {"proc/stat": processor_times(idle=0, stolen=100)}, "later": processor_times(idle=20, stolen=100)},
        ("load", "note", "since it started", "wait", "dedicated"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_the_one_finding_with_its_cost_and_fix(machine, name):
    changes, expected = FAULTS[name]
    found = said(machine.examine(**changes))
    assert [(one.topic, one.status) for one in found] == [expected[:2]], found
    for text, words in zip((found[0].found, found[0].cost, found[0].fix), expected[2:], strict=True):
        assert words in text, found
        assert bool(words) == bool(text), found


@pytest.mark.parametrize(
    "changes",
    [
        {"environ": {"OMP_NUM_THREADS": "4", "TF_NUM_INTRAOP_THREADS": "0", "NPROC": ""}},
        {"environ": {"OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}},
        {"environ": {"OMP_PROC_BIND": "true"}, "backends": ("jax",)},
        {"environ": {"TF_NUM_INTRAOP_THREADS": "1"}, "backends": ("jax",)},
        {"environ": {"JAX_PLATFORMS": "cuda,cpu"}},
        {"environ": {"JAX_PLATFORMS": "cuda"}, "backends": ("torch",)},
        {"environ": {"XLA_FLAGS": "/home/me/flags.txt"}},
        {"environ": {"XLA_FLAGS": "--xla_nothing"}, "backends": ("torch",)},
        {"environ": {"XLA_FLAGS": "--xla_backend_optimization_level=3"}},
        {"environ": {"KERAS_BACKEND": "jax"}},
        {"environ": {"LD_PRELOAD": "/usr/lib/libmine.so"}},
        {"keras_file": json.dumps({"floatx": "float32"})},
        {"keras_file": "[]"},
        {"files": HALF_CORES, "core": dataclasses.replace(CORE, threads=2), "environ": {"OMP_NUM_THREADS": "4"}},
        {"files": quota(2), "core": dataclasses.replace(CORE, threads=2), "environ": FITTING},
        {"files": quota(8)},
        {"files": quota(3.5)},
        {"files": {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
                   "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate\n"}},
        {"files": {"sys/fs/cgroup/memory.max": f"{64 * GB}\n"}},
        {"files": {"proc/meminfo": "MemTotal: 16000000 kB\n"}},
        {"facts": dataclasses.replace(WITH_GPU, devices=(gpu.Device("old", None, 80 * GB, None),))},
        {"installed": {"torch": None}, "backends": ("jax",), "shared": 1000},
        {"installed": {"nvidia-cudnn-cu12": Package("9.1"), "nvidia-cudnn-cu13": Package("9.1")}},
        {"installed": {"jax": Package("0.11.0.dev20261101", ("jaxlib>=0.10",))}},
        {"installed": {"numpy": Package("of the system")}},
        {"facts": WITH_GPU, "installed": {
            "torch": Package("2.13.0", ("nvidia-cublas",)), "nvidia-cublas": Package("13.1", size_bytes=GB)}},
    ],
)  # fmt: skip
def test_setting_that_costs_nothing_is_no_finding(machine, changes):
    assert said(machine.examine(**changes)) == []


@pytest.mark.parametrize(
    ("busy", "own_s", "used", "costs"),
    [(15, 0.3, 1.5, True), (15, 0.6, 0.0, False), (0, 0.5, 0.0, False), (1, 0.0, 0.2, False), (20, 0.0, 4.0, True)],
)  # fmt: skip
def test_others_are_what_is_busy_beside_this_process(monkeypatch, busy, own_s, used, costs):
    """Of a fifth of a second on four processors."""
    texts = iter([processor_times(), processor_times(busy=busy, idle=20 - busy)])
    times = iter([(1.0, 1.0, 2.0, 1.0, 9.0), (1.0 + own_s / 2, 1.0, 2.0 + own_s / 2, 1.0, 9.0)])
    monkeypatch.setattr(load, "allowed_processors", lambda: PROCESSORS)
    monkeypatch.setattr(load, "read", lambda path: next(texts))
    monkeypatch.setattr(load.os, "times", lambda: next(times))
    others = load.Others()
    said, cost = others.told()
    assert said == f"other processes used {used} of 4 processors"
    assert bool(cost) is costs


def test_others_of_a_system_that_does_not_tell_are_not_named(monkeypatch):
    monkeypatch.setattr(load, "read", lambda path: None)
    assert load.Others().told() == ("", "")


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tf-nightly"])
def test_tensorflow_by_another_name_is_among_what_fits(machine, name):
    installed = {"tensorflow": None, name: PACKAGES["tensorflow"]}
    found = machine.examine(installed=installed)
    assert said(found) == []
    (versions,) = [finding.found for finding in found if finding.topic == "versions"]
    assert f", {name} 2.21.0, jax 0.10.2, " in versions


def test_libraries_for_gpus_are_not_in_vain_where_a_driver_is(machine):
    facts = gpu.GpuFacts("580.1", None, (), (), {}, ("the driver does not start: reboot",))
    installed = {
        "torch": Package("2.13.0", ("nvidia-cublas",)),
        "nvidia-cublas": Package("13.1", size_bytes=GB),
    }
    assert [one.topic for one in said(machine.examine(facts=facts, installed=installed))] == ["gpu"]


@pytest.mark.parametrize(("before", "after"), [(None, LATER), (LATER, None)])
def test_load_that_the_system_does_not_tell_is_no_finding(tmp_path, before, after):
    assert list(load.check_load(tmp_path, before, after, PROCESSORS)) == []


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (
            processor_times(busy=15, idle=5),
            "other processes use 3.0 of 4 processors now: trainings and measurements share the processors with them; "
            "figures measured now are too low",
        ),
        (
            processor_times(idle=16, stolen=4),
            "the host of this virtual machine takes 20 % of its time now: all threads of a layer wait for the one that "
            "does not run",
        ),
        # Somewhat busy, as desktops are, is no reason to warn of every figure.
        (processor_times(busy=4, idle=16), ""),
        (processor_times(idle=20), ""),
        (None, ""),
    ],
)
def test_load_that_spoils_figures_now_is_a_line(monkeypatch, after, line):
    texts = [processor_times(), after]
    slept = []
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda _: PROCESSORS, raising=False)
    monkeypatch.setattr(load.time, "sleep", slept.append)
    monkeypatch.setattr(load, "read", lambda path: texts.pop(0) if path.name == "stat" else None)
    assert load.busy_now() == line
    assert slept == [load.MOMENT_S]


def test_processors_that_share_cores_are_said_to(machine):
    core = dataclasses.replace(CORE, threads=2)
    shown = [one.found for one in machine.examine(files=HALF_CORES, core=core) if one.topic == "threads"]
    assert shown == ["4 processors of 2 cores, all open to this process"]
    shown = [one.found for one in machine.examine() if one.topic == "threads"]
    assert shown == ["4 processors, all open to this process"]


def test_threads_are_compared_with_cores_where_two_processors_share_one(machine):
    core = dataclasses.replace(CORE, threads=2)
    (found,) = said(machine.examine(files=HALF_CORES, core=core, environ={"OMP_NUM_THREADS": "1"}))
    assert "compute on 1 of 2 cores: 100 GFLOP/s of 200 GFLOP/s" in found.cost
    assert found.fix.endswith("export OMP_NUM_THREADS=2")


DEBUGGING = {
    "KERAS_MAX_EPOCHS": ("1", None, "problem"),
    "KERAS_MAX_STEPS_PER_EPOCH": ("5", None, "problem"),
    "TF_USE_LEGACY_KERAS": ("1", "0", "problem"),
    "TF_ENABLE_ONEDNN_OPTS": ("0", "1", "note"),
    "TF_DETERMINISTIC_OPS": ("1", "0", "note"),
    "JAX_DISABLE_JIT": ("true", "False", "problem"),
    "JAX_DEBUG_NANS": ("1", "0", "problem"),
    "JAX_NUM_CPU_DEVICES": ("4", "1", "note"),
    "JAX_DEFAULT_MATMUL_PRECISION": ("highest", None, "note"),
    "XLA_PYTHON_CLIENT_ALLOCATOR": ("platform", "default", "problem"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "0", "problem"),
    "CUDA_LAUNCH_BLOCKING": ("1", "0", "problem"),
    "MALLOC_PERTURB_": ("165", "0", "problem"),
    "PYTHONDEVMODE": ("1", None, "note"),
    "PYTHONMALLOC": ("debug", "malloc", "note"),
    "ATEN_CPU_CAPABILITY": ("default", None, "note"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2", None, "note"),
    "DNNL_MAX_CPU_ISA": ("AVX2", None, "note"),
    "OPENBLAS_CORETYPE": ("Haswell", None, "note"),
    "NPY_DISABLE_CPU_FEATURES": ("AVX512F", None, "note"),
}
ON_A_GPU = (
    "JAX_DEFAULT_MATMUL_PRECISION", "XLA_PYTHON_CLIENT_ALLOCATOR", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip


@pytest.mark.parametrize("name", DEBUGGING)
def test_setting_for_debugging_is_found_with_what_unsets_it(machine, name):
    bites, harmless, status = DEBUGGING[name]
    facts = WITH_GPU if name in ON_A_GPU else NO_GPU
    (found,) = said(machine.examine(environ={name: bites}, facts=facts))
    assert (found.topic, found.status, found.found, found.fix) == (
        "settings", status, f"{name}={bites}", f"unset {name}"
    )  # fmt: skip
    assert found.cost
    for value in filter(None, (harmless, " ")):
        assert said(machine.examine(environ={name: value}, facts=facts)) == []


@pytest.mark.parametrize("name", ON_A_GPU)
def test_setting_for_a_gpu_is_no_finding_without_one(machine, name):
    assert said(machine.examine(environ={name: DEBUGGING[name][0]})) == []


@pytest.mark.parametrize(
    ("name", "backend"),
    [("TF_USE_LEGACY_KERAS", "jax"), ("JAX_DISABLE_JIT", "torch"), ("ATEN_CPU_CAPABILITY", "jax")],
)
def test_setting_of_a_backend_that_is_not_installed_is_no_finding(machine, name, backend):
    assert said(machine.examine(environ={name: DEBUGGING[name][0]}, backends=(backend,))) == []


@pytest.mark.parametrize("later", [processor_times(busy=4, idle=16), processor_times(idle=16, stolen=4)])
def test_nothing_is_measured_while_others_use_the_processors(machine, later):
    def fail(*_):
        raise AssertionError

    core = dataclasses.replace(CORE, measure=fail)
    found = machine.examine(core=core, environ={"OMP_NUM_THREADS": "1"}, later=later)
    assert [one.topic for one in said(found)] == ["threads", "load"]
    assert said(found)[0].cost == "torch and NumPy compute on 1 of 4 cores"
    assert [one.found for one in found if one.topic == "native core"] == ["avx512 on 4 threads"]


def test_findings_come_in_the_order_of_their_weight_and_topic(machine):
    found = machine.examine(
        environ={"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cuda", "LD_PRELOAD": "libtcmalloc.so"},
        later=processor_times(busy=15, idle=5),
        python=(3, 11),
    )
    assert [(one.status, one.topic) for one in said(found)] == [
        ("problem", "gpu"), ("problem", "threads"), ("problem", "load"), ("note", "versions"), ("note", "memory")
    ]  # fmt: skip
    weights = [STATUSES.index(one.status) for one in found]
    assert weights == sorted(weights)


def test_each_rate_is_measured_once(machine):
    calls = []

    def count(*what):
        calls.append(what)
        return peak(*what)

    core = dataclasses.replace(CORE, threads=1, measure=count)
    machine.examine(core=core, environ={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1"})
    assert sorted(calls) == [("avx512", "bfloat16", 1), ("avx512", "float32", 1), ("avx512", "float32", 4)]


@pytest.mark.parametrize(
    ("name", "text", "topic"),
    [
        ("proc/stat", "cpu0 1 2\n", "load"),
        ("proc/loadavg", "much\n", "load"),
        ("proc/meminfo", b"\xff\xfe", "memory"),
        ("proc/mounts", "nonsense\n", "disk"),
        ("proc/cpuinfo", b"\xff\xfe", "native core"),
        ("proc/self/cgroup", "nonsense\n", "threads"),
        ("sys/fs/cgroup/cpu.max", "many\n", "threads"),
        ("sys/fs/cgroup/cpu.max", "100\n", "threads"),
        ("sys/fs/cgroup/memory.max", "much\n", "memory"),
        ("sys/fs/cgroup/pids.max", "many\n", "threads"),
        ("sys/devices/system/cpu/online", "all\n", "threads"),
    ],
)
def test_file_of_the_kernel_that_cannot_be_read_is_a_note_and_stops_no_other_check(
    machine, name, text, topic
):
    files = {name: text, "sys/fs/cgroup/pids.current": "3\n"}
    found = machine.examine(files=files, later=None, environ={"JAX_PLATFORMS": "cuda"})
    failed = [one for one in found if "could not read what it needs" in one.found]
    assert topic in {one.topic for one in failed}
    assert {one.status for one in failed} == {"note"}
    assert [one.topic for one in found if one.status == "problem"] == ["gpu"]
    assert {one.topic for one in found} >= {"gpu", "native core", "versions", "memory", "disk", "load"}


def test_configuration_of_keras_that_is_not_json_is_a_note(machine):
    (found,) = said(machine.examine(keras_file="{"))
    assert (found.topic, found.status) == ("settings", "note")
    assert "JSONDecodeError" in found.found


def test_folder_that_cannot_be_asked_is_a_note(machine):
    def denied(path):
        raise PermissionError(13, "denied", str(path))

    found = said(machine.examine(usage=denied))
    assert {(one.topic, one.status) for one in found} == {("disk", "note"), ("memory", "note")}
    assert all("denied" in one.found for one in found)


def test_folders_on_two_disks_are_told_apart(machine):
    folders = {"the current folder": machine.work, "temporary files": Path("/proc/self")}
    found = [one for one in machine.examine(folders=folders) if one.topic == "disk"]
    assert [one.found for one in found] == [
        "100 GB are free for the current folder", "100 GB are free for temporary files"
    ]  # fmt: skip


def test_versions_without_packaging_are_a_note_that_says_what_to_install(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    (found,) = said(machine.examine())
    assert (found.topic, found.status, found.fix) == ("versions", "note", "pip install 'cellerate[cli]'")
    assert "packaging" in found.found


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cpu_quota_of_nested_groups_is_the_lowest(tmp_path):
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_usec 9\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
        },
    )
    assert control_groups.cpu_quota(tmp_path) == control_groups.CpuQuota(1.5, 10, 4)


def test_limits_of_version_1_are_those_of_each_controller(tmp_path):
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/box\n8:pids:/\n2:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/box/memory.stat": "cache 7\ntotal_inactive_file 300\n",
            "sys/fs/cgroup/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/pids/pids.max": "100\n",
            "sys/fs/cgroup/pids/pids.current": "120\n",
        },
    )
    assert control_groups.cpu_quota(tmp_path) == control_groups.CpuQuota(0.5, 0, 0)
    assert control_groups.memory_limit(tmp_path) == control_groups.MemoryLimit(1000, 600, 2)
    assert control_groups.threads_left(tmp_path) == 0


@pytest.mark.parametrize("own", ["0::/../../elsewhere\n", "0::/docker/abc\n", None])
def test_limit_of_a_container_that_sees_its_own_groups_alone_is_that_of_the_mount(tmp_path, own):
    files = {"sys/fs/cgroup/cpu.max": "200000 100000\n"} | ({} if own is None else {"proc/self/cgroup": own})
    plant(tmp_path, files)
    assert control_groups.cpu_quota(tmp_path).processors == 2


def test_free_memory_of_a_container_counts_what_the_kernel_can_drop(machine):
    files = {
        "sys/fs/cgroup/box/memory.max": f"{8 * GB}\n",
        "sys/fs/cgroup/box/memory.current": f"{7 * GB}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {5 * GB}\n",
    }
    shown = [one.found for one in machine.examine(files=files) if one.topic == "memory"]
    assert "6 GB of 8 GB are free" in shown


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("JAX has no CUDA plugin: pip install 'jax[cuda13]'", ("JAX has no CUDA plugin", "pip install 'jax[cuda13]'")),
        ("no driver (libcuda.so.1: cannot open): install it", ("no driver (libcuda.so.1: cannot open)", "install it")),
        ("no driver (libcuda.so.1: cannot open)", ("no driver (libcuda.so.1: cannot open)", "")),
        ("/dev/nvidia0 is missing: do x (in a container: y)", ("/dev/nvidia0 is missing", "do x (in a container: y)")),
    ],
)  # fmt: skip
def test_reason_is_parted_at_its_colon(reason, parts):
    assert parted(reason) == parts


@pytest.fixture
def jaxlib(tmp_path, monkeypatch):
    """An installed jaxlib whose library is made up."""
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib/__init__.py").touch()
    importlib.invalidate_caches()
    return tmp_path / "jaxlib/libjax_common.so"


def test_flag_of_xla_is_known_by_its_name_in_the_library(jaxlib):
    jaxlib.write_bytes(b"\0xla_cpu_max_isa\0intra_op_parallelism_threads\0")
    assert settings.xla_knows("xla_cpu_max_isa")
    assert not settings.xla_knows("xla_cpu_fastest")
    assert not settings.xla_knows("intra_op_parallelism_threads")


def test_flag_of_an_xla_that_cannot_be_read_is_taken_as_known(jaxlib):
    assert settings.xla_knows("xla_cpu_fastest")


def test_package_is_found_with_its_requirements_and_nvidia_s_with_its_files(tmp_path, monkeypatch):
    plant(
        tmp_path,
        {
            "nvidia_cudnn_cu12-9.1.dist-info/METADATA": (
                "Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.1\nRequires-Dist: nvidia-cublas-cu12\n"
            ),
            "nvidia_cudnn_cu12-9.1.dist-info/RECORD": (
                "nvidia/cudnn/lib/libcudnn.so.9,sha256=x,1000\nnvidia/__init__.py,,\nnvidia/LICENSE,sha256=x,24\n"
            ),
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert packages.find_package("nvidia-cudnn-cu12") == Package(
        "9.1",
        ("nvidia-cublas-cu12",),
        frozenset({"nvidia/cudnn/lib/libcudnn.so.9", "nvidia/__init__.py", "nvidia/LICENSE"}),
        1024,
    )
    assert packages.find_package("no-such-package-here") is None
    numpy = packages.find_package("numpy")
    assert numpy.version and not numpy.files


# What the runtime has beside NumPy, taken away.
ALONE = """
import sys
class Nothing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"psutil", "packaging", "pynvml", "typer", "rich", "pydantic"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing)
"""
REAL = """
import dataclasses, json, sys
from cellerate.machine.doctor import Core, examine
found = examine(Core(target="scalar", targets=("scalar",), threads=1))
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([[dataclasses.asdict(one) for one in found], sorted(loaded)]))
"""


@pytest.mark.parametrize("before", ["", ALONE], ids=["all packages", "numpy alone"])
def test_examination_of_this_machine_imports_no_framework(before):
    done = subprocess.run(
        [sys.executable, "-c", before + REAL], capture_output=True, text=True, check=True, timeout=60
    )
    found, loaded = json.loads(done.stdout)
    assert done.stderr == ""
    assert not {"tensorflow", "jax", "jaxlib", "torch", "keras"} & set(loaded)
    assert {one["topic"] for one in found} >= {
        "gpu",
        "native core",
        "versions",
        "threads",
        "memory",
        "disk",
        "load",
    }
    assert all(one["status"] in STATUSES for one in found)
    # A core that runs on the narrowest target is slower than this machine's can be.
    assert any("compiled without" in one["found"] for one in found) == (native.target() != "scalar")
    unread = [one["found"] for one in found if "could not read" in one["found"]]
    assert all("packaging" in text for text in unread) and bool(unread) == bool(before)
