"""The trials that kernels go through on a GPU, on the emulated one: what is right passes, what is wrong does not."""

import contextlib
import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cellerate.kernels.cuda import timing_cache
from cellerate.kernels.lstm.cuda import plan, select, selfcheck, tiles
from cellerate.kernels.lstm.spec import LstmOptions
from support.kernels import emulated_gpu


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> emulated_gpu.Driver:
    timing_cache._read.cache_clear()
    selfcheck.failure.cache_clear()
    return emulated_gpu.replace_driver(monkeypatch)


def cases() -> list[Any]:
    """Each case and its way; those of thousands of threads and many steps are slow."""
    found = [(case, way) for way, cases in selfcheck.CASES.items() for case in cases]
    return [
        pytest.param(
            case,
            way,
            marks=[pytest.mark.slow] if case.units > 512 or case.units * case.steps > 10_000 else [],
            id=f"{way.replace(' ', '-')}-{case.precision}-{case.units}",
        )
        for case, way in found
    ]


@pytest.mark.parametrize(("case", "way"), cases())
def test_check_passes_every_case(case, way):
    assert 0 < selfcheck.check(case, 0, way) < 1


def test_every_way_is_checked_with_kernels_of_its_own():
    assert set(selfcheck.CASES) == set(plan.WAYS)
    for way, cases in selfcheck.CASES.items():
        for case in cases:
            forward, backward = (case.variant(direction, way) for direction in ("forward", "backward"))
            assert forward.way == ("plain" if way == "turns" else way)
            assert backward.way == ("plain" if way == "wide" else way)


def replaced(monkeypatch: pytest.MonkeyPatch, text: str, by: str) -> None:
    """Plants a fault into the source of all kernels that are compiled from now on."""
    source = plan.Variant.source.fget
    monkeypatch.setattr(plan.Variant, "source", property(lambda one: source(one).replace(text, by)))
    emulated_gpu._compiled.cache_clear()


def wrong(monkeypatch: pytest.MonkeyPatch, case: selfcheck.Case, way: str) -> bool:
    """True if the kernels compute something wrong, or hang, in one of a few orders in which threads may take turns."""
    for seed in range(1, 9):
        monkeypatch.setattr(emulated_gpu, "seed", seed)
        with contextlib.suppress(RuntimeError):
            if selfcheck.check(case, 0, way) < 1:
                continue
        return True
    return False


def test_turns_that_do_not_wait_for_their_gradients_are_wrong(monkeypatch):
    case = selfcheck.Case("bfloat16", 64, rows=16, batch=16)
    assert selfcheck.check(case, 0, "turns") < 1
    # The second turn waits for the gradients of the first.
    replaced(monkeypatch, "wait_for(shared_.arrived[2 * Turn::kIndex + now]", "wait_for(shared_.arrived[now]")
    assert wrong(monkeypatch, case, "turns")
    emulated_gpu._compiled.cache_clear()


def test_h_of_a_step_stays_in_memory_until_every_block_has_it(monkeypatch):
    case = selfcheck.Case("bfloat16", 192, rows=40, batch=40)
    assert case.variant("forward", "wide").through_memory and selfcheck.check(case, 0, "wide") < 1
    replaced(monkeypatch, "(here_.cluster * 2l + next)", "here_.cluster * 2l")
    assert wrong(monkeypatch, case, "wide")
    emulated_gpu._compiled.cache_clear()


def test_wide_products_that_nobody_waits_for_are_wrong(monkeypatch):
    case = selfcheck.Case("bfloat16", 64)
    assert selfcheck.check(case, 0, "wide") < 1
    replaced(monkeypatch, "finish_wide_products(sums);", "")
    assert selfcheck.check(case, 0, "wide") > 1
    emulated_gpu._compiled.cache_clear()


# By what a block does too early without them.
WAITS = {
    "send-h-where-another-is-in-use": "wait_for(chunks_.room[part], step & 1);",
    "send-h-that-is-not-computed": "wait_for(shared_.state_computed, step & 1);",
    "bring-weights-where-others-are-in-use": "wait_for(chunks_.weights_used[next.slot], next.parity ^ 1);",
    "multiply-by-h-that-has-not-come": "wait_forever_for(chunks_.arrived[come.slot], come.parity);",
    "multiply-weights-that-have-not-come": (
        "wait_forever_for(chunks_.weights_arrived[streamed.slot], streamed.parity);"
    ),
    "send-gradients-that-are-not-computed": "wait_for(shared_.gates_computed, done & 1);",
    "add-sums-that-are-not-given": "wait_for(shared_.sums_given, done & 1);",
    "free-what-is-being-multiplied": "wait_for_wide_groups<1>();",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_tiles_are_wrong_without_each_of_their_waits(monkeypatch, wait):
    case = selfcheck.Case("bfloat16", 320, rows=112, batch=112, masked=True)
    replaced(monkeypatch, wait, "")
    assert wrong(monkeypatch, case, "tiled")
    emulated_gpu._compiled.cache_clear()


def test_tiles_wait_for_slow_outputs(monkeypatch):
    case = selfcheck.Case("bfloat16", 256, rows=48, batch=48, steps=3)
    slow = "for (int n = 0; n < 5000; ++n) sync_warp();\n"
    before = "if (in_.outputs != nullptr) write_chunk("
    replaced(monkeypatch, before, slow + before)
    assert selfcheck.check(case, 0, "tiled") < 1
    replaced(monkeypatch, "wait_for(shared_.state_read, step & 1);", "")
    assert wrong(monkeypatch, case, "tiled")
    emulated_gpu._compiled.cache_clear()


@pytest.mark.parametrize("steps", [4, 5])
def test_tiles_wait_for_slow_helpers(monkeypatch, steps):
    case = selfcheck.Case("bfloat16", 256, rows=48, batch=48, steps=steps)
    before = "const int step = in_.steps - 2 - done;"
    replaced(monkeypatch, before, "for (int n = 0; n < 5000; ++n) sync_warp();\n" + before)
    assert selfcheck.check(case, 0, "tiled") < 1
    emulated_gpu._compiled.cache_clear()


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
    case = next(case for case in selfcheck.CASES["plain"] if case.dropped and case.masked)
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
    case = next(case for case in selfcheck.CASES["plain"] if case.units == 64)
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


def test_measured_times_decide_the_way_among_those_to_choose_from():
    plain = plan.Variant("forward", "bfloat16", 512, 8)
    us = {"plain": 2.0, "turns": 1.5, "wide": 1.2, "tiled": 3.0}

    def chosen(batch: int, *ways: str) -> tuple[int, str]:
        found = plan.choose(plain, batch, lambda one: 7, lambda one: us[one.way], ways)
        return found.rows, found.way

    assert chosen(112, "plain", "wide") == (16, "wide")
    assert chosen(112, *plan.WAYS) == (16, "wide")
    assert chosen(56, "plain", "wide") == (8, "wide")
    # Eight rows cannot take turns, which are for the way back.
    back = dataclasses.replace(plain, direction="backward")
    found = plan.choose(back, 56, lambda one: 7, lambda one: us[one.way], plan.WAYS)
    assert (found.rows, found.way) == (16, "turns")
    # Tiles are for what takes three waves of 7 clusters of 40 rows.
    assert chosen(600, *plan.WAYS) == (112, "tiled")
    small = plan.Variant("backward", "float16", 256, 8)
    assert plan.choose(small, 90, lambda one: 2, lambda one: 1.0, plan.WAYS).tiled
    us["tiled"] = 4.0
    assert chosen(600, *plan.WAYS) == (32, "wide")


def test_tiled_kernels_are_not_even_asked_for_where_a_wave_of_few_rows_is_enough():
    plain = plan.Variant("forward", "bfloat16", 1024, 8)
    asked: set[str] = set()

    def resident(one: plan.Variant) -> int:
        asked.add(one.way)
        return 7

    assert plan.choose(plain, 112, resident, lambda one: 1.0, plan.WAYS).rows == 16
    assert asked == {"plain"}
    us = {"plain": 15.0, "tiled": 12.0}
    assert plan.choose(plain, 280, resident, lambda one: us[one.way], plan.WAYS).way == "tiled"


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("masked", [False, True])
def test_tiles_of_every_size_have_room_for_what_is_on_its_way(direction, masked):
    for units in range(tiles.FEWEST_UNITS, plan.MOST_UNITS + 1, tiles.BLOCK_UNITS):
        for rows in tiles.ROWS:
            found = tiles.tile(direction, units, rows, masked=masked)
            assert found.fits and found.slots >= 4
            if found.weight_slots:
                assert found.resident < found.chunks
                assert not dataclasses.replace(found, resident=found.resident + 2).fits
            else:
                assert found.resident == found.chunks


def test_a_way_that_fails_its_check_is_left_out_and_the_plain_one_is_not(monkeypatch):
    def run(command: list[str], **_: Any) -> Any:
        way = command[-1]
        return subprocess.CompletedProcess(command, 0, "7.5\n" if way in ("plain", "turns") else "0.4\n", "")

    monkeypatch.setattr(selfcheck.subprocess, "run", run)
    monkeypatch.setattr(selfcheck, "step_us", lambda variant, device: 2.0 if variant.way == "plain" else 1.0)
    select._chosen.cache_clear()
    options = LstmOptions()
    backward, forward = (
        select.variant_of(direction, "bfloat16", (16, 3, 64), options, masked=False, dropped=False, device=0)
        for direction in ("backward", "forward")
    )
    assert (backward.way, forward.way) == ("plain", "wide")
    assert "7.5 times the allowed error" in selfcheck.failure(0, "turns")
    select._chosen.cache_clear()
