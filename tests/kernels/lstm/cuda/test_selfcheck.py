"""The trials that kernels go through on a GPU, on the emulated one: what is right passes, what is wrong does not."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cellerate.kernels.cuda import timing_cache
from cellerate.kernels.lstm.cuda import plan, selfcheck
from support import emulated_gpu


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> emulated_gpu.Driver:
    timing_cache._read.cache_clear()
    selfcheck.failure.cache_clear()
    return emulated_gpu.replace_driver(monkeypatch)


def cases() -> list[Any]:
    slow = pytest.mark.slow
    return [
        pytest.param(c, marks=[slow] if c.units > 512 else [], id=f"{c.precision}-{c.units}")
        for c in selfcheck.CASES
    ]


@pytest.mark.parametrize("case", cases())
def test_check_passes_every_case(case):
    assert 0 < selfcheck.check(case, 0) < 1


def answer(returncode: int, stdout: str = "", stderr: str = "") -> Any:
    return lambda command, **_: subprocess.CompletedProcess(command, returncode, stdout, stderr)


def test_failure_is_none_once_the_check_has_passed_and_is_not_run_again(monkeypatch):
    monkeypatch.setattr(selfcheck.subprocess, "run", answer(0, "0.4\n"))
    assert selfcheck.failure(0) is None
    selfcheck.failure.cache_clear()
    monkeypatch.setattr(selfcheck.subprocess, "run", answer(1, stderr="it is not run"))
    assert selfcheck.failure(0) is None


def hangs(command: Any, timeout: float, **_: Any) -> Any:
    raise subprocess.TimeoutExpired(command, timeout)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (answer(0, "1.7\n"), "1.7 times the allowed error"),
        (answer(0, "nan\n"), "nan times"),
        (answer(1, stderr="first\nCUDA_ERROR_ILLEGAL_ADDRESS\n"), "failed: CUDA_ERROR_ILLEGAL_ADDRESS"),
        (answer(-11), "ended with -11"),
        (hangs, "did not finish within"),
    ],
    ids=["wrong", "nan", "error", "crash", "hang"],
)
def test_failure_says_what_went_wrong_and_tries_again_in_another_process(monkeypatch, run, reason):
    monkeypatch.setattr(selfcheck.subprocess, "run", run)
    assert reason in selfcheck.failure(0)
    selfcheck.failure.cache_clear()
    monkeypatch.setattr(selfcheck.subprocess, "run", answer(0, "0.4\n"))
    assert selfcheck.failure(0) is None


def test_check_where_no_gpu_is_says_so_without_a_traceback():
    command = [sys.executable, "-m", "cellerate.kernels.lstm.cuda.selfcheck"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "driver" in done.stderr


def test_check_of_a_kernel_that_forgets_a_mask_fails(monkeypatch):
    case = next(case for case in selfcheck.CASES if case.dropped and case.masked)
    run = selfcheck._run
    monkeypatch.setattr(
        selfcheck, "_run", lambda variant, arrays, *rest: run(variant, arrays | {"mask": ones(case)}, *rest)
    )
    assert selfcheck.check(case, 0) > 1


def ones(case: selfcheck.Case) -> np.ndarray:
    return np.ones((case.batch, case.steps), np.uint8)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dropped", [False, True])
def test_step_is_timed_on_memory_of_its_own_and_remembered(monkeypatch, driver, direction, dropped):
    monkeypatch.setattr(selfcheck, "_TIMED_STEPS", 2)
    monkeypatch.setattr(selfcheck, "_TIMED_LAUNCHES", 3)
    variant = plan.Variant(direction, "bfloat16", 32, 8, masked=dropped, dropped=dropped)
    us = selfcheck.step_us(variant, 0)
    assert us > 0
    assert len(driver.contexts) == 2 * selfcheck._TIMED_LAUNCHES
    assert selfcheck.step_us(variant, 0) == us and len(driver.contexts) == 2 * selfcheck._TIMED_LAUNCHES


def test_kernel_starts_in_the_context_of_its_gpu_in_any_thread(monkeypatch):
    driver = emulated_gpu.replace_driver(monkeypatch, count=2)
    case = next(case for case in selfcheck.CASES if case.units == 64)
    with ThreadPoolExecutor(1) as pool:
        assert all(0 < error < 1 for error in pool.map(selfcheck.check, [case, case], [1, 0]))
    assert driver.contexts == [1, 1, 0, 0]


def test_measured_times_decide_where_clusters_run_in_waves():
    plain = plan.Variant("forward", "bfloat16", 512, 8)
    slow_beyond_16 = {8: 1.0, 16: 1.1, 24: 2.4, 32: 2.5, 40: 2.6}
    chosen = plan.choose(plain, 224, lambda one: 7, lambda one: slow_beyond_16[one.rows])
    assert chosen.rows == 16
    # One wave is measured for nothing.
    assert plan.choose(plain, 56, lambda one: 7, lambda one: 1 / 0).rows == 8
