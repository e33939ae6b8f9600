"""The LSTM layer on a GPU as JAX calls it, held against the oracle; the GPU is an emulated one."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

import jax
import jax.numpy as jnp

from cellerate.bridges import jax as jax_bridge
from cellerate.bridges import jax_cuda
from cellerate.kernels import cpu

sys.path.insert(0, str(Path(__file__).parent))
from gpu_cases import ALLOWED, CASES, emulate, error

pytestmark = pytest.mark.keras


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def launcher() -> None:
    jax.ffi.register_ffi_target("cellerate_launch", cpu.core().xla_launch_on_host(), platform="cpu")


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
    allowed, allowed_of_gradients = ALLOWED[case.number]
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
        assert jax_cuda.number_name(jnp.dtype("float32")) == "tf32"
        found, _, _ = jax_bridge.cuda_lstm(given, case.options, True)
    assert 1e-5 < error(found, np.asarray(exact, np.float64)) < 1e-3
    assert jax_cuda.number_name(jnp.dtype("float32")) == "float32"
