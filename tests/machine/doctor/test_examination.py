"""The whole examination: healthy machines, its order, files that cannot be read, this machine."""

import dataclasses
import json
import subprocess
import sys

import pytest

from cellerate.kernels import native
from cellerate.machine.doctor.finding import STATUSES
from support.machine.machines import CORE, FILES, WITH_GPU, peak, processor_times, said


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
