"""Each fault in turn: the doctor finds it and no other, and nothing where nothing is lost."""

import dataclasses
import json

import pytest

from cellerate.machine import gpu
from cellerate.machine.doctor import Core
from cellerate.machine.doctor.packages import Package
from support.machine.machines import CORE, FILES, GB, H100, HALF_CORES, WITH_GPU, peak, processor_times, said


def quota(period_share, periods=0, throttled=0):
    return {
        "sys/fs/cgroup/box/cpu.max": f"{int(100000 * period_share)} 100000\n",
        "sys/fs/cgroup/box/cpu.stat": f"usage_usec 7\nnr_periods {periods}\nnr_throttled {throttled}\n",
    }


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
