import os
import platform
import subprocess
import sys

import pytest

import cellerate
from cellerate.errors import BackendError
from cellerate.machine import environment


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_keep_freed_memory_keeps_what_is_freed_in_the_process():
    """64 MiB written and freed, ten times: the kernel hands out fresh pages once, not ten times."""
    program = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from cellerate.machine.environment import keep_freed_memory\n"
        "if sys.argv[1] == 'keep': assert keep_freed_memory()\n"
        "np.ones(16 << 20, np.float32)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): np.ones(16 << 20, np.float32)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {
        how: int(subprocess.run([sys.executable, "-c", program, how], check=True, capture_output=True).stdout)
        for how in ("keep", "leave")
    }
    assert faults["keep"] < faults["leave"] / 5


def test_select_backend_of_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match="tensorflow, jax, torch"):
        environment.select_backend("mxnet")


def test_select_backend_takes_the_argument_before_the_environment(monkeypatch):
    monkeypatch.setattr(environment, "installed_backends", lambda: ["tensorflow", "jax", "torch"])
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert environment.select_backend("jax") == "jax"
    assert os.environ["KERAS_BACKEND"] == "jax"


def test_select_backend_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(environment, "installed_backends", lambda: ["jax"])
    with pytest.raises(BackendError, match=r"cellerate\[torch\]"):
        environment.select_backend("torch")


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tf-nightly", "jax-cuda13-plugin", "keras-nightly"])
def test_versions_name_a_backend_under_the_name_it_is_installed_by(monkeypatch, name):
    installed = {name: "2.21.0", "numpy": "2.4.6"}
    monkeypatch.setattr(environment, "package_version", installed.get)
    assert environment.versions() == {"cellerate": cellerate.__version__} | installed


def test_require_of_a_missing_package_names_the_extra():
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[plots\]'"):
        environment.require("no_such_package_here", "plots", "Drawing")


def test_peak_memory_is_that_of_the_largest_moment_and_not_of_the_parent():
    """64 MiB written and freed stay in the peak; 512 MiB of the process that starts this one are not part of it."""
    program = (
        "import mmap\n"
        "from cellerate.machine.environment import peak_memory_bytes, resident_memory_bytes\n"
        "resident = resident_memory_bytes()\n"
        "before = peak_memory_bytes()\n"
        "assert before >= resident > 0\n"
        "block = mmap.mmap(-1, 64 << 20)\n"
        "for place in range(0, 64 << 20, 4096): block[place] = 1\n"
        "block.close()\n"
        "print(before, peak_memory_bytes())\n"
    )
    filled = bytearray(os.urandom(1 << 20)) * 512
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    before, after = map(int, found.stdout.split())
    assert before < 256 << 20 < len(filled)
    assert 60 << 20 < after - before < 80 << 20


def test_peak_memory_where_the_system_does_not_say_is_none(monkeypatch):
    def missing(self, *_):
        raise FileNotFoundError(self)

    monkeypatch.setattr(environment.Path, "read_text", missing)
    assert environment.peak_memory_bytes() is None
    assert environment.available_memory_bytes() is None


MEMINFO = "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  5000 kB\nHugetlb:  0 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 5000 * 1024),
        ({"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "7\n"}, 5000 * 1024),
        ({"/sys/fs/cgroup/memory.max": "3000\n", "/sys/fs/cgroup/memory.current": "1000\n"}, 2000),
        ({"/sys/fs/cgroup/memory.max": "1000\n", "/sys/fs/cgroup/memory.current": "3000\n"}, 0),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
            },
            5000 * 1024,
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
            },
            1000,
        ),
    ],
    ids=["no group", "no limit", "limit", "beyond its limit", "version 1 without limit", "version 1"],
)
def test_available_memory_is_of_the_machine_and_its_control_group(monkeypatch, files, expected):
    known = {"/proc/meminfo": MEMINFO} | files

    def read(self, *_):
        if str(self) not in known:
            raise FileNotFoundError(str(self))
        return known[str(self)]

    monkeypatch.setattr(environment.Path, "read_text", read)
    assert environment.available_memory_bytes() == expected


def test_available_memory_of_this_machine_is_no_more_than_it_has():
    import psutil

    found = environment.available_memory_bytes()
    assert found is None or 0 <= found <= psutil.virtual_memory().total
