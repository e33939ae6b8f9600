"""The LSTM layer on a GPU as torch calls it, held against the oracle; the GPU is an emulated one."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cellerate.bridges import torch_cuda
from cellerate.kernels import reference
from cellerate.kernels.cuda import launch
from cellerate.kernels.spec import MASKED_OUTPUTS, LstmOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
import emulated_gpu

# Root mean squares of the error as shares of the results', and of the gradients', by type.
ALLOWED = {torch.bfloat16: (5e-3, 2e-2), torch.float16: (1e-3, 5e-3), torch.float32: (1e-6, 5e-6)}
D, V = 5, 7


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "launch", emulated_gpu.launch)
    monkeypatch.setattr(launch, "resident", resident)
    # What no kernel has written shows.
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: poisoned(empty(*a, **k)))


def resident(variant: Any, device: int) -> int:
    return 2


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(255 if tensor.dtype == torch.uint8 else torch.nan)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and what it is given."""

    batch: int = 5
    steps: int = 6
    units: int = 40
    number: torch.dtype = torch.float16
    lookup: bool = False
    with_: tuple[str, ...] = ("bias", "c0")
    options: LstmOptions = LstmOptions()  # noqa: RUF009 (it is frozen)
    sequences: bool = True
    vocabulary: int = V

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(3)
        b, t, h = self.batch, self.steps, self.units
        every = {
            "x": rng.normal(size=(b, t, D)),
            "ids": rng.integers(0, self.vocabulary, (b, t)),
            "embeddings": rng.normal(size=(self.vocabulary, D)),
            "kernel": rng.normal(size=(D, 4 * h)) * 0.4,
            "recurrent_kernel": rng.normal(size=(h, 4 * h)) * 0.8 / np.sqrt(h),
            "bias": rng.normal(size=4 * h) * 0.5,
            "h0": rng.uniform(-1, 1, (b, h)),
            "c0": rng.normal(size=(b, h)),
            "mask": rng.random((b, t)) < 0.6,
            "dropout": (rng.random((4, b, D)) < 0.6) / 0.6,
            "recurrent_dropout": (rng.random((4, b, h)) < 0.7) / 0.7,
        }
        # A row without a step that counts.
        every["mask"][0] = False
        names = ["kernel", "recurrent_kernel", "h0", *self.with_]
        names += ["ids", "embeddings"] if self.lookup else ["x"]
        # As the kernel is given them: what rounding its arguments costs is no error of its own.
        return {n: every[n] if n in ("ids", "mask") else rounded(every[n], self.number) for n in names}


def rounded(array: np.ndarray, number: torch.dtype) -> np.ndarray:
    return torch.from_numpy(array).to(number).double().numpy()


def tensors(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    kinds = {"ids": torch.int32, "mask": torch.bool, **dict.fromkeys(("x", "h0", "c0"), case.number)}
    return {n: torch.from_numpy(a).to(kinds.get(n, torch.float32)) for n, a in arrays.items()}


def error(found: torch.Tensor, expected: np.ndarray) -> float:
    assert tuple(found.shape) == expected.shape
    difference = found.double().numpy() - expected
    return float(np.sqrt((difference**2).mean() / ((expected**2).mean() + 1e-30)))


def check(case: Case) -> None:
    arrays = case.arrays()
    call = torch_cuda.Call(tensors(case, arrays), case.options, case.sequences)
    plain = {n: a for n, a in arrays.items() if n not in ("ids", "embeddings")}
    if case.lookup:
        plain["x"] = arrays["embeddings"][arrays["ids"]]
    done = reference.forward(**plain, options=case.options)  # type: ignore[arg-type]
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    expected = done.outputs if case.sequences else done.outputs[:, -1]
    allowed, allowed_of_gradients = ALLOWED[case.number]
    for found, wanted in ((outputs, expected), (h_T, done.h_T), (c_T, done.c_T)):
        assert found.dtype == case.number
        assert error(found, wanted) < allowed
    without = torch_cuda.forward(call, keep=False)
    assert all(torch.equal(a, b) for a, b in zip(without[:3], (outputs, h_T, c_T), strict=True))
    assert without[3].numel() == 0

    rng = np.random.default_rng(4)
    cotangents = [rounded(rng.normal(size=a.shape), case.number) for a in (expected, done.h_T, done.c_T)]
    d_outputs = cotangents[0]
    if not case.sequences:
        d_outputs = np.zeros_like(done.outputs)
        d_outputs[:, -1] = cotangents[0]
    wanted_gradients = reference.backward(done, d_outputs, *cotangents[1:])
    if case.lookup:
        d_table = np.zeros_like(arrays["embeddings"])
        np.add.at(d_table, arrays["ids"], wanted_gradients.pop("x"))
        wanted_gradients["embeddings"] = d_table
    given = [torch.from_numpy(a).to(case.number) for a in cotangents]
    gradients = torch_cuda.backward(call, outputs, reserve, *given)
    assert gradients.keys() == {n for n in wanted_gradients if n in arrays}
    for name, found in gradients.items():
        assert found.dtype == call.need(name).dtype
        assert error(found, wanted_gradients[name]) < allowed_of_gradients, name


OPTIONS: dict[str, Any] = {
    "relu": {"activation": "relu"},
    "kept-as-pre-activations": {"activation": "silu", "recurrent_activation": "softsign"},
    "go-backwards": {"go_backwards": True},
}
CASES = {
    "float16": Case(),
    "bfloat16": Case(number=torch.bfloat16, units=64, batch=19, steps=11),
    "float32": Case(number=torch.float32, units=70, batch=17, steps=9, with_=("bias", "c0", "mask")),
    "float32-recurrent-dropout": Case(
        number=torch.float32, with_=("bias", "recurrent_dropout"), sequences=False
    ),
    "one-row-one-step": Case(batch=1, steps=1, units=1),
    "two-steps": Case(batch=9, steps=2, units=33, with_=()),
    "last-output": Case(sequences=False),
    "lookup": Case(lookup=True),
    "lookup-of-many-rows": Case(lookup=True, vocabulary=1100),
    "dropout": Case(with_=("bias", "c0", "dropout")),
    "recurrent-dropout": Case(with_=("bias", "recurrent_dropout"), sequences=False),
    "lookup-masked-recurrent-dropout-backwards": Case(
        lookup=True, with_=("mask", "recurrent_dropout"), options=LstmOptions(go_backwards=True)
    ),
    "masked-last-output": Case(with_=("bias", "mask"), sequences=False),
    **{
        f"masked-{name}": Case(with_=("c0", "mask"), steps=9, options=LstmOptions(masked_output=name))
        for name in MASKED_OUTPUTS
    },
    **{name: Case(steps=3, options=LstmOptions(**options)) for name, options in OPTIONS.items()},
}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "resident", resident)
        calls = [torch_cuda.Call(tensors(c, c.arrays()), c.options, c.sequences) for c in CASES.values()]
        emulated_gpu.prepare(call.variant(d, 0) for call in calls for d in ("forward", "backward"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_layer_equals_the_oracle(case):
    check(case)


def test_cotangents_that_are_not_there_are_zeros():
    case = Case()
    call = torch_cuda.Call(tensors(case, case.arrays()), case.options, True)
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    zeros = torch_cuda.backward(call, outputs, reserve, *map(torch.zeros_like, (outputs, h_T, c_T)))
    absent = torch_cuda.backward(call, outputs, reserve, None, None, None)
    assert all(torch.equal(zeros[name], absent[name]) for name in zeros)
    assert not any(gradient.any() for gradient in absent.values())
