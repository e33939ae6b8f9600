"""The LSTM layer on a GPU as JAX calls it, held against the oracle; the GPU is an emulated one."""

import dataclasses
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

import jax
import jax.numpy as jnp

from cellerate.bridges import jax as jax_bridge, jax_cuda
from cellerate.kernels import native
from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import select
from support.kernels.gpu_cases import ALLOWED, CASES, emulate, emulated_gpu, error

pytestmark = [pytest.mark.keras, pytest.mark.backends]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def launcher() -> None:
    jax.ffi.register_ffi_target("cellerate_launch", native.core().xla_launch_on_host(), platform="cpu")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_layer_equals_the_oracle(case):
    wanted, cotangents, wanted_gradients = case.expected()

    @jax.jit
    def both(given, cotangents):
        call = jax_cuda.Call(given, case.options, case.sequences)
        done = jax_cuda.forward(call, keep=True)
        plain = jax_cuda.forward(call, keep=False)
        return done, plain, jax_cuda.backward(call, done, *cotangents)

    given = {name: jnp.asarray(array) for name, array in case.given().items()}
    done, plain, gradients = both(given, [jnp.asarray(a, given["h0"].dtype) for a in cotangents])
    allowed, allowed_of_gradients = ALLOWED[case.precision]
    for name, expected in zip(("outputs", "h_T", "c_T"), wanted, strict=True):
        assert done[name].dtype == given["h0"].dtype
        assert error(done[name], expected) < allowed
        np.testing.assert_array_equal(np.asarray(plain[name]), np.asarray(done[name]))
    assert gradients.keys() == wanted_gradients.keys()
    for name, found in gradients.items():
        assert found.dtype == given[name].dtype
        assert error(found, wanted_gradients[name]) < allowed_of_gradients, name


def test_float32_is_tf32_where_jax_is_told_so_and_only_there():
    case = CASES["float32"]
    given = {name: jnp.asarray(array) for name, array in case.given().items()}
    exact, _, _ = jax_bridge.cuda_lstm(given, case.options, True)
    with jax.default_matmul_precision("tensorfloat32"):
        assert jax_cuda.precision_of(jnp.dtype("float32")) == "tf32"
        found, _, _ = jax_bridge.cuda_lstm(given, case.options, True)
    assert 1e-5 < error(found, np.asarray(exact, np.float64)) < 1e-3
    assert jax_cuda.precision_of(jnp.dtype("float32")) == "float32"


def test_program_of_a_call_is_the_same_in_every_process_and_has_no_address():
    program = "import pytest, test_jax_cuda as t; t.emulate(pytest.MonkeyPatch()); print(t.lowered(), end='')"
    command = [sys.executable, "-W", "ignore", "-c", program]
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    here = lowered()
    assert here == other
    assert here.count('kernel = "cellerate_lstm_forward-float16-64-') == 1
    call = jax_cuda.Call(CASES["float16"].given(), CASES["float16"].options, True)
    launcher, _ = launch.handles(call.plan.kernel("forward"), 0)
    assert str(launcher) not in here and str(launcher) not in other


def lowered() -> str:
    """The program of a layer's forward pass, as XLA is given it."""
    case = CASES["float16"]
    given = {name: jnp.asarray(array) for name, array in case.given().items()}
    return jax.jit(lambda given: jax_bridge.cuda_lstm(given, case.options, True)).lower(given).as_text()


def test_kernels_of_other_sources_and_other_gpus_have_other_keys():
    call = jax_cuda.Call(CASES["float16"].given(), CASES["float16"].options, True)
    forward = call.plan.kernel("forward")
    others = [call.plan.kernel("backward"), dataclasses.replace(forward, masked=True)]
    keys = [jax_cuda._key(forward, "one"), jax_cuda._key(forward, "another")]
    assert len({*keys, *(jax_cuda._key(one, "one") for one in others)}) == 4


def test_kernel_that_is_not_loaded_in_this_process_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(jax_cuda, "_loaded", lambda variant, device: "cellerate_lstm_forward-of-another")
    case = CASES["float16"]
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"-of-another is not loaded in this process; .* lower"
    ):
        jax.block_until_ready(jax_bridge.cuda_lstm(case.given(), case.options, True))


def test_kernel_is_chosen_and_loaded_for_the_gpu_that_jax_computes_on(monkeypatch):
    emulated_gpu.replace_driver(monkeypatch, count=3)
    asked = []

    def noting(function, place):
        def noted(*given, **named):
            asked.append((function.__name__, named["device"] if place is None else given[place]))
            return function(*given, **named)

        return noted

    monkeypatch.setattr(jax_cuda, "gpu_number", lambda *arrays: 2)
    monkeypatch.setattr(select, "variant_of", noting(select.variant_of, None))
    monkeypatch.setattr(launch, "handles", noting(launch.handles, 1))
    lowered()
    assert asked == [("variant_of", 2), ("handles", 2)]


def test_gpu_is_that_of_arrays_that_were_put_there_else_of_the_default_device(monkeypatch):
    def device(number, platform="gpu"):
        return types.SimpleNamespace(platform=platform, local_hardware_id=number)

    def array(*numbers, committed=True, platform="gpu"):
        on = {(number, platform): device(number, platform) for number in numbers}
        return types.SimpleNamespace(committed=committed, devices=lambda: on.values())

    config = types.SimpleNamespace(jax_default_device=None)
    local = [device(5), device(6)]
    fake = types.SimpleNamespace(config=config, core=jax.core, local_devices=lambda: local)
    monkeypatch.setattr(jax_cuda, "jax", fake)
    host, anywhere = np.zeros(2), array(3, committed=False)
    number = jax_cuda.gpu_number
    # A process of several sees GPUs of its own, and JAX's first is not CUDA's.
    assert number() == number(host) == number(anywhere, array(0, platform="cpu")) == 5
    assert number(host, anywhere, array(7)) == 7
    assert number(array(4, 2)) == jax_bridge.gpu_number(array(4, 2)) == 2
    config.jax_default_device = device(6)
    assert (number(anywhere), number(array(7))) == (6, 7)
    config.jax_default_device = "gpu"
    assert number() == 5
    local = [device(0, "cpu")]
    config.jax_default_device = None
    assert number() == 0
    assert jax.jit(lambda x: x + number(x))(1) == 1


@pytest.mark.parametrize(("rows", "adds"), [(select.MOST_ONES, False), (select.MOST_ONES + 1, True)])
def test_gradient_of_a_table_is_a_product_up_to_so_many_rows(rows, adds):
    # In bfloat16 itself a sum of ones ends at 256.
    ids, d = jnp.full(3000, rows - 1), jnp.ones((3000, 8), jnp.bfloat16)
    found = np.asarray(jax_cuda._d_table(ids, d, rows))
    assert found.dtype == np.float32
    assert (found[-1] == 3000).all() and not found[:-1].any()
    program = str(jax.make_jaxpr(lambda ids, d: jax_cuda._d_table(ids, d, rows))(ids, d))
    assert ("scatter-add" in program, "dot_general" in program) == (adds, not adds)
    if not adds:
        # The ones and zeros are as narrow as what they are multiplied with.
        assert f"bf16[{rows},3000]" in program and f"f32[{rows},3000]" not in program
