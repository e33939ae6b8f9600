"""A machine made of files, packages and settings, as the doctor reads it."""

from cellerate.machine import gpu
from cellerate.machine.doctor import Core, examine, settings
from cellerate.machine.doctor.examination import Surroundings
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
    """100 GFLOP/s for each core, half of it with AVX2, twice as much in bfloat16 on newer targets."""
    return 1e11 * threads * (0.5 if target == "avx2" else 2.0 if precision == "bfloat16" else 1.0)


CORE = Core(target="avx512", targets=("avx512", "avx2", "scalar"), threads=4, measure=peak)


class Machine:
    """A healthy machine, and the findings of `examine` after some changes to it."""

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
        """The findings on the healthy machine with the given changes."""
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
        where = Surroundings(
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
        return examine(core, where, kernels=lambda facts: kernels)


def said(findings):
    """All findings except those with the status ok."""
    return [finding for finding in findings if finding.status != "ok"]


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
