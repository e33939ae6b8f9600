"""The LSTM layer on a GPU as torch calls it, held against the oracle; the GPU is an emulated one."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("torch's own", allow_module_level=True)

import torch
from torch.library import opcheck

from cellerate.bridges import torch_cuda, torch_operators
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.cuda import selfcheck
from support.kernels.gpu_cases import ALLOWED, CASES, LARGE_CASES, Arrays, Case, emulate, emulated_gpu, error

pytestmark = [pytest.mark.keras, pytest.mark.backends]
EVERY_CASE = CASES | LARGE_CASES


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    # What no kernel has written shows.
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: poisoned(empty(*a, **k)))


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(255 if tensor.dtype == torch.uint8 else torch.nan)


def call_of(case: Case, given: Arrays | None = None) -> torch_cuda.Call:
    given = case.given() if given is None else given
    return torch_cuda.Call({n: tensor(a) for n, a in given.items()}, case.options, case.sequences)


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array)


def numbers(found: torch.Tensor) -> np.ndarray:
    return found.double().numpy()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    with pytest.MonkeyPatch.context() as patch:
        emulate(patch)
        calls = [call_of(case) for case in EVERY_CASE.values()]
        emulated_gpu.prepare(call.plan.kernel(d) for call in calls for d in ("forward", "backward"))


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE.keys())
def test_layer_equals_the_oracle(case):
    check(case, ALLOWED[case.precision])


def test_layer_in_tf32_with_saturated_gates_equals_the_oracle(tf32):
    check(CASES["saturated-float32"], selfcheck.ALLOWED["tf32"])


def check(case: Case, bounds: tuple[float, float]) -> None:
    call = call_of(case)
    wanted, cotangents, wanted_gradients = case.expected()
    *results, reserve = torch_cuda.forward(call, keep=True)
    allowed, allowed_of_gradients = bounds
    for found, expected in zip(results, wanted, strict=True):
        assert found.dtype == call.dtype
        assert error(numbers(found), expected) < allowed
    *without, nothing = torch_cuda.forward(call, keep=False)
    assert all(torch.equal(a, b) for a, b in zip(without, results, strict=True))
    assert nothing.numel() == 0

    given = [torch.from_numpy(a).to(call.dtype) for a in cotangents]
    gradients = torch_cuda.backward(call, results[0], reserve, *given)
    assert gradients.keys() == wanted_gradients.keys()
    for name, found in gradients.items():
        assert found.dtype == call.need(name).dtype
        # A gate near its limit has small gradients, which those of the others would hide.
        by_gate = 4 if name in ("kernel", "recurrent_kernel", "bias") and any(case.saturated) else 1
        parts = (np.split(array, by_gate, axis=-1) for array in (numbers(found), wanted_gradients[name]))
        for gate, (one, wanted_one) in enumerate(zip(*parts, strict=True)):
            assert error(one, wanted_one) < allowed_of_gradients, (name, gate)


def test_cotangents_that_are_not_there_are_zeros():
    call = call_of(Case())
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    zeros = torch_cuda.backward(call, outputs, reserve, *map(torch.zeros_like, (outputs, h_T, c_T)))
    absent = torch_cuda.backward(call, outputs, reserve, None, None, None)
    assert all(torch.equal(zeros[name], absent[name]) for name in zeros)
    assert not any(gradient.any() for gradient in absent.values())


@pytest.mark.parametrize("name", ["float16", "masked-last-output", "lookup"])
def test_operators_keep_the_rules_of_torch_and_give_the_same(name):
    case = CASES[name]
    call = call_of(case)
    *expected, reserve = torch_cuda.forward(call, keep=True)
    cotangents = [torch.from_numpy(a).to(call.dtype) for a in case.expected()[1]]
    expected_gradients = torch_cuda.backward(call, expected[0], reserve, *cotangents)

    given = {n: t.clone().requires_grad_(n in expected_gradients) for n, t in call.given.items()}
    results = torch_operators.cuda_lstm(given, case.options, case.sequences)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    trained = [given[n] for n in expected_gradients]
    gradients = torch.autograd.grad(results, trained, cotangents, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients.values(), strict=True))
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(gradients[0].sum(), trained)

    codes = cpu.codes(case.options, case.sequences)
    arguments = [given.get(name) for name in cpu.LSTM.arguments]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for keep in (True, False):
        opcheck(torch.ops.cellerate.cuda_lstm_forward, (*arguments, codes, keep), test_utils=tests)


@pytest.mark.parametrize("precision", ALLOWED)
def test_nan_of_one_row_stays_in_that_row_and_is_not_lost(precision):
    case = Case(batch=9, units=33, precision=precision)
    given = case.given()
    clean = torch_cuda.forward(call_of(case, given), keep=False)
    given["h0"][3, 5] = np.nan
    dirty = torch_cuda.forward(call_of(case, given), keep=False)
    others = [row for row in range(9) if row != 3]
    for before, after in zip(clean[:3], dirty[:3], strict=True):
        assert torch.equal(before[others], after[others])
        assert after[3].isnan().all()


@pytest.mark.parametrize("seed", range(5))
def test_any_order_in_which_threads_take_turns_gives_the_same(monkeypatch, seed):
    case = Case(precision="bfloat16", units=96, batch=8, steps=9)
    first = torch_cuda.forward(call_of(case), keep=False)
    monkeypatch.setattr(emulated_gpu, "seed", 100 + seed)
    again = torch_cuda.forward(call_of(case), keep=False)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_float32_is_tf32_where_torch_allows_that_and_only_there(request):
    case = Case(precision="float32", with_=("bias", "c0", "mask"))
    call = call_of(case)
    assert call.plan.kernel("forward").precision == "float32"
    exact = torch_cuda.forward(call, keep=False)[0]
    request.getfixturevalue("tf32")
    assert call_of(case).plan.kernel("backward").precision == "tf32"
    found = torch_cuda.forward(call_of(case), keep=False)[0]
    assert 1e-5 < error(numbers(found), numbers(exact)) < 1e-3
