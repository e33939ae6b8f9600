import json
import os
import resource
import subprocess
import sys

import pytest

from cellerate.cli.inspection import doctor as verb
from cellerate.kernels import native
from cellerate.machine import doctor, gpu
from cellerate.machine.doctor import Finding

PROBLEM = Finding(
    "threads", "problem", "OMP_NUM_THREADS=1", "torch computes on 1 of 8", "unset OMP_NUM_THREADS"
)
NOTE = Finding("versions", "note", "Python 3.11 gets no newer JAX")
WELL = Finding("gpu", "ok", "no GPU was found")
TWO_GPUS = gpu.GpuFacts(
    "580.65.06", "13.0", (gpu.Device("NVIDIA H100", (9, 0), 85 * 2**30, 84 * 2**30),) * 2, (), {}, ()
)
# Runs the command and says on stderr which modules it has loaded.
REAL = """
import sys
from cellerate.cli.main import main
sys.argv = ["cellerate", "doctor", "--json"]
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.fixture
def findings(monkeypatch):
    """The findings, filled in by a test."""
    found = []
    monkeypatch.setattr(doctor, "examine", lambda core, **_: found)
    return found


def test_doctor_with_a_problem_shows_cost_and_fix_and_exits_with_1(cellerate, findings):
    findings += [PROBLEM, NOTE, WELL]
    code, out, err = cellerate("doctor")
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "problem  threads: OMP_NUM_THREADS=1",
        "         costs: torch computes on 1 of 8",
        "         fix:   unset OMP_NUM_THREADS",
        "note     versions: Python 3.11 gets no newer JAX",
        "ok       gpu: no GPU was found",
        "1 problem, 1 note",
    ]


def test_doctor_without_a_problem_exits_with_0(cellerate, findings):
    findings += [NOTE, NOTE, WELL]
    code, out, err = cellerate("doctor")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "0 problems, 2 notes"


@pytest.mark.parametrize(("found", "problems"), [([PROBLEM, PROBLEM, WELL], 2), ([WELL], 0)])
def test_doctor_json_has_every_finding_and_the_same_exit_code(cellerate, findings, found, problems):
    findings += found
    code, out, err = cellerate("doctor", "--json")
    assert (code, err) == (min(problems, 1), "")
    said = json.loads(out)
    assert set(said) == {"findings", "problems"}
    assert said["problems"] == problems
    assert [Finding(**one) for one in said["findings"]] == found


def test_doctor_help_explains_its_exit_code(cellerate):
    code, out, _ = cellerate("doctor", "--help")
    assert code == 0
    assert "exit code is 1 if there is a problem" in out
    assert "cellerate doctor --json" in out


def test_doctor_on_this_machine_imports_no_framework_and_takes_less_than_3_s():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        # Each thread of the native core is measured equally long, so many threads take long in total.
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2]),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said, loaded = json.loads(done.stdout), set(done.stderr.split())
    assert done.returncode == (1 if said["problems"] else 0)
    assert "cellerate" in loaded
    assert not {"tensorflow", "jax", "jaxlib", "torch", "keras"} & loaded
    # Processor time, because other programs on a busy machine do not add to it.
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 3
    topics = {one["topic"] for one in said["findings"]}
    assert topics >= {"gpu", "native core", "versions", "threads", "memory", "disk", "load"}


@pytest.mark.parametrize(
    ("name", "value", "found", "cost", "fix"),
    [
        ("CELLERATE_TARGET", "sse9", "sse9", "nothing that needs the native core runs", "unset CELLERATE_TARGET"),
        ("CELLERATE_THREADS", "many", "many", "nothing that needs the native core runs", "unset CELLERATE_THREADS"),
        ("CELLERATE_TARGET", "scalar", "CELLERATE_TARGET=scalar", "slower", "unset CELLERATE_TARGET"),
        ("CELLERATE_THREADS", "1000", "it uses 1000 threads", "wait", "export CELLERATE_THREADS="),
    ],
)  # fmt: skip
def test_doctor_reports_a_setting_that_limits_the_native_core(
    start_cellerate, monkeypatch, name, value, found, cost, fix
):
    # The core reads its environment once, so this needs a separate process.
    monkeypatch.delenv("CELLERATE_TARGET", raising=False)
    monkeypatch.setenv(name, value)
    process = start_cellerate("doctor", "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")
    core = [one for one in json.loads(out)["findings"] if one["topic"] == "native core"]
    (problem,) = (one for one in core if one["status"] == "problem")
    assert found in problem["found"] and cost in problem["cost"] and problem["fix"].startswith(fix)


def test_doctor_without_the_native_core_says_what_is_missing(cellerate, monkeypatch):
    monkeypatch.setattr(native, "why_unavailable", lambda: "it was not compiled: install g++")
    code, out, _ = cellerate("doctor")
    assert code == 1
    assert "problem  native core: it was not compiled\n" in out
    assert "         fix:   install g++\n" in out


@pytest.mark.parametrize("reason", ["there is no compiler", None])
def test_doctor_with_a_gpu_says_if_cellerate_kernels_run_on_it(cellerate, monkeypatch, reason):
    monkeypatch.setattr(gpu, "facts", lambda **_: TWO_GPUS)
    monkeypatch.setattr("cellerate.kernels.cuda.launch.why_unavailable", lambda device: reason)
    _, out, _ = cellerate("doctor")
    said = [line for line in out.splitlines() if "Cellerate's own kernels" in line]
    assert said == [
        "ok       gpu: Cellerate's own kernels can run on the GPU"
        if reason is None
        else "note     gpu: Cellerate's own kernels do not run on the GPU: there is no compiler"
    ]


def test_measuring_another_target_restores_the_target():
    before = native.target()
    rates = {target: verb._measure(target, "float32", 1) for target in (before, "scalar")}
    assert native.target() == before
    assert 1e7 < rates["scalar"] < rates[before] or before == "scalar"
