"""How the native core is called: what it refuses, its targets and threads, its memory, forks."""

import functools
import itertools
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu, reference
from cellerate.kernels.lstm.spec import LstmOptions

# Without the extension this raises, and so fails the run: nothing here may be skipped.
TARGETS = native.available_targets()
pytestmark = pytest.mark.usefixtures("native_settings")
B, T, D, H, V = 5, 4, 7, 19, 11


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


WEIGHTS = {"kernel": random(D, 4 * H), "recurrent_kernel": random(H, 4 * H), "bias": random(4 * H)}
OTHERS = {
    "h0": random(B, H),
    "c0": random(B, H) + 1,
    "mask": random(B, T) < 0.5,
    "recurrent_dropout": random(4, B, H),
}
DENSE = WEIGHTS | OTHERS | {"x": random(B, T, D), "dropout": random(4, B, D)}
LOOKUP = (
    WEIGHTS | OTHERS | {"ids": np.arange(B * T, dtype=np.int32).reshape(B, T) % V, "embeddings": random(V, D)}
)
COTANGENTS = {"d_outputs": random(B, T, H), "d_h_T": random(B, H), "d_c_T": random(B, H)}


def test_targets_are_all_that_this_processor_can_run():
    if platform.machine() == "aarch64":
        flags = set(
            re.search("^Features.*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split()
        )
        assert [*(["neondot"] if "asimddp" in flags else []), "neon", "scalar"] == TARGETS
        return
    flags = set(re.search("^flags.*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    needed = {
        "amx": avx512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"},
        "avx512bf16": avx512 | {"avx512_vnni", "avx512_bf16"},
        "avx512vnni": avx512 | {"avx512_vnni"},
        "avx512": avx512,
        "avx2vnni": {"avx2", "fma", "avx_vnni"},
        "avx2": {"avx2", "fma"},
        "scalar": set(),
    }
    assert [name for name in needed if needed[name] <= flags] == TARGETS


def test_targets_differ_in_what_they_keep_for_backward():
    kept = set()
    # These keep what avx512, avx512bf16 and avx2 do.
    others = [name for name in TARGETS if name not in ("avx512vnni", "amx", "avx2vnni")]
    for name in others:
        native.set_target(name)
        kept.add(cpu.reserve_bytes((16, 1, 1), "bfloat16", masked=False, return_sequences=True))
    assert len(kept) == len(others), "one target runs for another"


@pytest.mark.skipif("amx" not in TARGETS, reason="this processor has no AMX, or Linux does not give it")
def test_tiles_of_amx_add_up_bfloat16_in_their_own_order_and_floats_as_ever():
    found = {}
    for name, dtype in itertools.product(("amx", "avx512bf16"), (ml_dtypes.bfloat16, np.float32)):
        native.set_target(name)
        arguments = cpu.Arguments(**WEIGHTS, x=random(B, T, D).astype(dtype))
        done = cpu.forward(arguments)
        gradients = cpu.backward(arguments, done, d_outputs=COTANGENTS["d_outputs"].astype(dtype))
        found[name, np.dtype(dtype).name] = gradients["recurrent_kernel"]
    assert np.array_equal(found["amx", "float32"], found["avx512bf16", "float32"])
    assert not np.array_equal(found["amx", "bfloat16"], found["avx512bf16", "bfloat16"])


def test_calls_of_two_threads_at_once_give_the_results_of_one():
    def gradients(units: int) -> dict[str, np.ndarray]:
        arguments = cpu.Arguments(
            random(24, 4 * units), random(units, 4 * units) / units, x=random(20, 30, 24)
        )
        done = cpu.forward(arguments)
        return cpu.backward(arguments, done, d_outputs=done.outputs)

    right = {units: gradients(units) for units in (100, 300)}
    with ThreadPoolExecutor(2) as pool:
        for units, found in zip((100, 300) * 10, pool.map(gradients, (100, 300) * 10), strict=True):
            for name, gradient in found.items():
                assert gradient.tobytes() == right[units][name].tobytes()


@pytest.mark.parametrize("arrays", [DENSE, LOOKUP], ids=["x", "ids"])
def test_forward_of_an_argument_of_another_shape_or_dtype_names_it(arrays):
    for name, array in arrays.items():
        for wrong in (array[np.newaxis], array.astype(np.float64)):
            with pytest.raises(ConfigError, match=f"^{name} has .*; expected "):
                cpu.forward(cpu.Arguments(**arrays | {name: wrong}))


@pytest.mark.parametrize("name", COTANGENTS)
def test_backward_of_a_cotangent_of_another_shape_or_dtype_names_it(name):
    arguments, right = cpu.Arguments(**DENSE), COTANGENTS[name]
    done = cpu.forward(arguments)
    for wrong in (right[1:], right[np.newaxis], right.astype(np.float64), right.astype(ml_dtypes.bfloat16)):
        with pytest.raises(ConfigError, match=f"^{name}: expected .*, got "):
            cpu.backward(arguments, done, **{name: wrong})


@pytest.mark.parametrize("arrays", [DENSE, LOOKUP], ids=["x", "ids"])
def test_core_given_an_array_that_does_not_fit_names_it(arrays):
    core, done = native.core(), cpu.forward(cpu.Arguments(**arrays))
    fitting = arrays | COTANGENTS | {"outputs": done.outputs, "reserve": done.reserve}
    fitting |= {f"d_{name}": array.copy() for name, array in arrays.items()}
    _, *orders, _ = core.CALLS["lstm_backward"]
    for name in [name for order in orders for name in order if name in fitting]:
        array = fitting[name]
        wide, fixed = np.repeat(array, 2, axis=-1), array.copy()
        fixed.flags.writeable = False
        wrongs = [array[np.newaxis], np.zeros(array.shape), wide[..., ::2]]
        # x, ids and embeddings tell how wide the others are.
        wrongs += [wide] * (name not in ("x", "ids", "embeddings")) + [fixed] * (name in orders[1])
        for wrong in wrongs:
            inputs, results = (tuple((fitting | {name: wrong}).get(n) for n in order) for order in orders)
            with pytest.raises(ValueError, match=f"^{name}: expected "):
                core.call("lstm_backward", cpu.codes(LstmOptions(), True), inputs, results)


@pytest.mark.parametrize("wrong", [-1, V, 2**31 - 1])
def test_id_that_is_no_row_of_the_embeddings_is_refused(wrong):
    done = cpu.forward(cpu.Arguments(**LOOKUP))
    ids = LOOKUP["ids"].copy()
    ids[3, 2] = wrong
    arguments = cpu.Arguments(**LOOKUP | {"ids": ids})
    for call in (functools.partial(cpu.forward, arguments), functools.partial(cpu.backward, arguments, done)):
        with pytest.raises(ConfigError, match=rf"^ids: expected values in \[0, {V}\).*; got {wrong}$"):
            call()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (DENSE | {"x": None}, "expected x, or ids and embeddings"),
        (DENSE | {"ids": LOOKUP["ids"]}, "expected x, or ids and embeddings"),
        (LOOKUP | {"embeddings": None}, "expected x, or ids and embeddings"),
        (LOOKUP | {"dropout": DENSE["dropout"]}, "dropout: expected none with ids"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arrays, said):
    with pytest.raises(ConfigError, match=said):
        cpu.forward(cpu.Arguments(**arrays))


@pytest.mark.parametrize("count", [0, -1, 1025, 2.0, "2", True, None])
def test_setting_a_number_of_threads_that_is_none_is_refused(count):
    with pytest.raises(ConfigError, match=f"^count: expected .*, got {count!r}"):
        native.set_num_threads(count)
    assert native.num_threads() == 2


@pytest.mark.parametrize("name", ["avx", "", "AVX2"])
def test_setting_an_unknown_target_is_refused_with_those_that_can_run(name):
    before = native.target()
    with pytest.raises(ConfigError, match=f'the target "{name}" cannot run here.*{", ".join(TARGETS)}'):
        native.set_target(name)
    assert native.target() == before


PROLOGUE = """
import multiprocessing, os, resource
import numpy as np
from cellerate.errors import ConfigError
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu

def ones(*shape):
    return np.ones(shape, np.float32)

def run():
    arguments = cpu.Arguments(ones(64, 256), ones(64, 256) / 99, x=ones(32, 9, 64))
    done = cpu.forward(arguments)
    return cpu.backward(arguments, done, d_outputs=done.outputs)["kernel"]
"""


def python(code: str, **environment: str) -> list[str]:
    """The words that a fresh process prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CELLERATE_")}
    command = [sys.executable, "-c", PROLOGUE + code]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", TARGETS)
def test_target_and_threads_named_in_the_environment_are_taken(name):
    code = "run(); print(native.target(), native.num_threads())"
    assert python(code, CELLERATE_TARGET=name, CELLERATE_THREADS="3") == [name, "3"]


@pytest.mark.parametrize("call", ["native.target", "run"])
def test_wrong_target_in_the_environment_is_refused_by_what_needs_it(call):
    assert_refused("CELLERATE_TARGET", ["avx", "AVX2", " avx2", "0"], call)


@pytest.mark.parametrize("call", ["native.num_threads", "run"])
def test_wrong_number_of_threads_in_the_environment_is_refused_by_what_needs_it(call):
    assert_refused("CELLERATE_THREADS", ["0", "-3", "2.5", "two", "1025", "9" * 30], call)


def assert_refused(variable: str, values: list[str], call: str) -> None:
    code = f"""
for value in {values}:
    os.environ[{variable!r}] = value
    try:
        {call}()
    except ConfigError as error:
        print({variable!r} in str(error) and value in str(error))
del os.environ[{variable!r}]
run()
"""
    assert python(code) == ["True"] * len(values)


def test_working_memory_that_cannot_be_had_is_a_memory_error_and_the_next_call_works():
    code = """
right = run()
most = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**29
resource.setrlimit(resource.RLIMIT_AS, (most, most))
# The table of this lookup takes 1 GiB, and all its arrays together 17 MB.
arguments = cpu.Arguments(ones(1, 64), ones(16, 64), ids=np.zeros((1, 1), np.int32), embeddings=ones(2**22, 1))
try:
    cpu.forward(arguments)
except MemoryError:
    print((run() == right).all())
"""
    assert python(code) == ["True"]


def test_child_of_a_fork_computes_what_its_parent_does():
    # In a process of its own, for Python and some frameworks warn of a fork beside threads.
    code = """
def child():
    assert (run() == right).all()

native.set_num_threads(2)
right = run()
for _ in range(3):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0 and (run() == right).all()
"""
    python(code)


@pytest.mark.skipif(len(TARGETS) < 2, reason="this processor runs one target only")
def test_backward_on_another_target_than_forward_is_refused():
    # With 16 units every target keeps as many bytes, each in an order of its own.
    arguments = cpu.Arguments(x=random(B, T, D), kernel=random(D, 64), recurrent_kernel=random(16, 64))
    native.set_target(TARGETS[-2])
    done = cpu.forward(arguments)
    native.set_target(TARGETS[-1])
    with pytest.raises(ConfigError, match="another target"):
        cpu.backward(arguments, done, d_outputs=done.outputs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
def test_infinite_input_reaches_no_more_than_the_oracle_says(target, dtype):
    # 19 units leave lanes without one on every target; their weights of zero times infinity are NaN.
    native.set_target(target)
    x = DENSE["x"].copy()
    x[1, 0, 0] = np.inf
    states = {name: COTANGENTS[name].astype(dtype) for name in ("d_outputs", "d_h_T", "d_c_T")}
    given = WEIGHTS | {"x": x.astype(dtype)}
    done = cpu.forward(cpu.Arguments(**given))
    gradients = cpu.backward(cpu.Arguments(**given), done, **states)
    with np.errstate(all="ignore"):
        exact = reference.forward(cpu.Arguments(**given))
        expected = reference.backward(exact, *states.values())
    for got, wanted in [(done.outputs, exact.outputs), *((gradients[n], expected[n]) for n in gradients)]:
        np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), np.isnan(wanted))


def test_exponential_reaches_infinity_where_float32_does():
    arguments = cpu.Arguments(
        x=np.array([88.5, 100, -200], np.float32).reshape(3, 1, 1),
        kernel=np.array([[0, 0, 1, 0]], np.float32),
        recurrent_kernel=np.zeros((1, 4), np.float32),
        bias=np.array([1, 0, 0, 0], np.float32),
    )
    options = LstmOptions(activation="exponential", recurrent_activation="linear")
    np.testing.assert_allclose(
        cpu.forward(arguments, options).c_T[:, 0], [np.exp(np.float64(88.5)), np.inf, 0], rtol=1e-6
    )


@pytest.mark.parametrize("given", [DENSE, LOOKUP], ids=["inputs", "lookup"])
def test_watched_phases_are_those_of_the_calls_and_leave_results_alone(given):
    arguments = cpu.Arguments(**given)
    before = cpu.forward(arguments)
    began = time.perf_counter()
    with native.watched_phases() as found:
        for _ in range(3):
            done = cpu.forward(arguments)
            cpu.backward(arguments, done, **COTANGENTS)
        assert found == []
    took = time.perf_counter() - began
    np.testing.assert_array_equal(done.outputs, before.outputs)
    ways = {phases.backward: phases for phases in found}
    assert len(found) == len(ways) == 2
    for backward, phases in ways.items():
        assert (phases.inputs, phases.units, phases.calls) == (D, H, 3)
        assert phases.vocabulary == (V if given is LOOKUP else 0)
        assert phases.seconds["time steps"] > 0
        assert (phases.seconds["weight gradients"] > 0) == backward
        assert (phases.seconds["input products"] > 0) == (not backward and given is DENSE)
    assert 0 < sum(sum(phases.seconds.values()) for phases in found) < took
    # Nobody watches any more.
    cpu.forward(arguments)
    assert native.core().phase_times() == [tuple(phases) for phases in found]
