"""Generation on a GPU, on the emulated one: against float64, and against the native core's step model."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real_driver

from cellerate.errors import BackendError, ConfigError, DataError, ModelError
from cellerate.kernels.cuda import build, launch
from cellerate.kernels.cuda.launch import DeviceMemory
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.cuda import batch, model as cuda_model, plan
from cellerate.kernels.decoder.cuda.model import CudaStepModel
from cellerate.kernels.decoder.cuda.plan import Generator, Layer
from cellerate.kernels.decoder.sampling import DIVERGED, Cancellation, Request, SamplingRules
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.spec import Arguments
from support.kernels import emulated_gpu

Chain = list[dict[str, Any]]

# The errors that numbers of a type may have, as shares of the root mean square.
ALLOWED = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 5e-3}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model's sizes, and what is special about it."""

    vocabulary: int
    units: tuple[int, ...]
    masks_zero: bool = False
    bias: bool = True
    activations: tuple[str, str] = ("tanh", "sigmoid")

    def generator(self, precision: str, rows: int) -> Generator:
        layers = tuple(Layer(units, *self.activations) for units in self.units)
        return Generator(precision, layers, self.vocabulary, self.vocabulary, self.masks_zero, rows)

    def chain(self) -> Chain:
        rng = np.random.default_rng(self.vocabulary + sum(self.units))

        def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
            return (rng.standard_normal(shape) * scale).astype(np.float32)

        nodes: Chain = [
            {"op": "embedding", "embeddings": draw(self.vocabulary, 7), "masks_zero": self.masks_zero}
        ]
        inputs = 7
        for units in self.units:
            nodes.append(
                {
                    "op": "lstm",
                    "kernel": draw(inputs, 4 * units, scale=inputs**-0.5),
                    "recurrent_kernel": draw(units, 4 * units, scale=0.7 * units**-0.5),
                    "bias": draw(4 * units, scale=0.3) if self.bias else None,
                    "activation": self.activations[0],
                    "recurrent_activation": self.activations[1],
                }
            )
            inputs = units
        kernel = draw(inputs, self.vocabulary, scale=4 * inputs**-0.5)
        bias = draw(self.vocabulary, scale=0.3) if self.bias else None
        return [*nodes, {"op": "dense", "kernel": kernel, "bias": bias, "activation": "linear"}]


# One block, whose warps share the tiles of logits; two blocks, the second with some units only; layers of one to three
# blocks; more tiles of logits than warps; blocks of 64 units.
ONE = Shape(23, (20,), masks_zero=True, bias=False)
TWO = Shape(40, (64, 33))
THREE = Shape(29, (40, 96, 32), activations=("softsign", "hard_sigmoid"))
WIDE = Shape(300, (32,))
TALL = Shape(17, (544,))


# What is compiled for the tests, so that several are at once.
COMPILED = [(ONE, "float32", 8), (TWO, "float32", 16), (TWO, "bfloat16", 8), (THREE, "bfloat16", 32)]
COMPILED += [(THREE, "float16", 8), (WIDE, "float32", 8), (TALL, "bfloat16", 8)]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    emulated_gpu.prepare(shape.generator(precision, rows) for shape, precision, rows in COMPILED)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_gpu.replace_driver(monkeypatch)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


def _texts(shape: Shape, rows: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids (B, T) and how many of them each row has, from 1 to T."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(1, steps + 1, rows)
    lengths[0] = steps
    return rng.integers(shape.vocabulary, size=(rows, steps)), lengths


def _expected(chain: Chain, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The state (S,) after the ids of a row, and the logits (V,), in float64."""
    mask = (ids != 0)[None] if chain[0]["masks_zero"] else None
    x, states = chain[0]["embeddings"].astype(np.float64)[ids][None], []
    for node in chain[1:-1]:
        options = reference.LstmOptions(
            activation=node["activation"],
            recurrent_activation=node["recurrent_activation"],
            masked_output="previous_state",
        )
        found = reference.forward(
            Arguments(node["kernel"], node["recurrent_kernel"], node["bias"], x=x, mask=mask), options
        )
        x = found.outputs
        states += [found.h_T[0], found.c_T[0]]
    logits = x[0, -1] @ chain[-1]["kernel"].astype(np.float64)
    return np.concatenate(states), logits if chain[-1]["bias"] is None else logits + chain[-1]["bias"]


@pytest.mark.parametrize(
    ("shape", "precision", "rows"),
    [
        (ONE, "float32", 3),
        (TWO, "float32", 19),
        (TWO, "bfloat16", 1),
        (THREE, "bfloat16", 40),
        (THREE, "float16", 5),
        (WIDE, "float32", 2),
        (TALL, "bfloat16", 2),
    ],
    ids=str,
)
def test_states_and_logits_equal_float64(shape: Shape, precision: str, rows: int) -> None:
    chain = shape.chain()
    model = CudaStepModel(chain, precision=precision)
    ids, lengths = _texts(shape, rows, 5)
    state, logits = model.read(model.initial_state(rows), ids, lengths)
    expected = [_expected(chain, ids[row, :length]) for row, length in enumerate(lengths)]
    assert _error(state, np.stack([one for one, _ in expected])) < ALLOWED[precision]
    assert _error(logits, np.stack([one for _, one in expected])) < ALLOWED[precision]


@pytest.mark.parametrize(("shape", "rows"), [(ONE, 9), (TWO, 19), (WIDE, 9)], ids=str)
def test_scores_equal_the_native_core(shape: Shape, rows: int) -> None:
    chain = shape.chain()
    found, expected = CudaStepModel(chain), StepModel(chain)
    ids, lengths = _texts(shape, rows, 6)
    state, scores = found.log_probabilities(found.initial_state(rows), ids, lengths)
    wanted_state, wanted = expected.log_probabilities(expected.initial_state(rows), ids, lengths)
    assert _error(state, wanted_state) < ALLOWED["float32"]
    np.testing.assert_allclose(scores, wanted, rtol=2e-6, atol=5e-6)
    assert not scores[np.arange(5) >= lengths[:, None] - 1].any()
    assert found.log_probabilities(state, ids[:, :1])[1].shape == (rows, 0)


def _requests(shape: Shape, rows: int, count: int) -> list[Request]:
    """Requests that differ in everything a request has."""
    rng = np.random.default_rng(rows)
    options = itertools.cycle(
        [
            {"temperature": 0.0},
            {},
            {"temperature": 0.7, "top_k": 5},
            {"top_p": 0.7},
            {"min_p": 0.1, "temperature": 1.3},
            {"repetition_penalty": 1.4, "penalty_window": 6},
            {"temperature": 0.0, "repetition_penalty": 1.2},
            {"temperature": 0.9, "top_k": 9, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 0.8},
            {"repetition_penalty": 1.1, "penalty_window": 400},
        ]
    )
    return [
        Request(
            [count, count - 1, 1, 0, count][row % 5],
            SamplingRules(**one, seed=11, stream=row),
            position=2**33 * (row % 2) + row,
            previous=rng.integers(shape.vocabulary, size=row),
            stop_ids=rng.integers(shape.vocabulary, size=row % 3),
        )
        for row, one in zip(range(rows), options, strict=False)
    ]


def _start(model: Any, shape: Shape, rows: int) -> tuple[np.ndarray, np.ndarray]:
    ids, lengths = _texts(shape, rows, 3)
    return model.read(model.initial_state(rows), ids, lengths)


@pytest.mark.parametrize(("shape", "rows"), [(ONE, 4), (TWO, 19), (WIDE, 9)], ids=str)
def test_ids_equal_the_native_core(shape: Shape, rows: int) -> None:
    chain = shape.chain()
    expected, found = StepModel(chain), CudaStepModel(chain)
    state, logits = _start(expected, shape, rows)
    requests = _requests(shape, rows, 24)
    wanted, wanted_state, wanted_logits = expected.generate_rows(state, logits, requests)
    drawn, after, following = found.generate_rows(state, logits, requests)
    assert [one.ids.tolist() for one in drawn] == [one.ids.tolist() for one in wanted]
    for one, other in zip(drawn, wanted, strict=True):
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, rtol=2e-6, atol=5e-6)
    assert _error(after, wanted_state) < 2 * ALLOWED["float32"]
    assert _error(following, wanted_logits) < 2 * ALLOWED["float32"]
    assert {len(one.ids) for one in drawn} >= {0, 1, 24} - ({24} if rows < 6 else set())


def _same(found: Any, expected: Any) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.log_probabilities, other.log_probabilities)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("vocabulary", "changed"),
    [
        (41, {"_MOST_SHARED_LOGITS_BYTES": 0}),
        (42, {"_PRODUCTS_IN_REGISTERS": {256: 5}, "SHARED_BYTES": 40_000}),
    ],
    ids=["logits through memory", "weights from memory"],
)
def test_what_has_no_room_near_by_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, changed: dict[str, Any]
) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(plan, name, value)
    # Sizes that no other test has: a kernel is known by them.
    shape = Shape(vocabulary, (64, 40))
    found, expected = CudaStepModel(shape.chain()), StepModel(shape.chain())
    assert not (found.generator.shared_logits and all(one.streamed == 0 for one in found.generator.tiers))
    state, logits = _start(found, shape, 6)
    requests = _requests(shape, 6, 10)
    drawn, _, after = found.generate_rows(state, logits, requests)
    wanted, _, wanted_after = expected.generate_rows(state, logits, requests)
    assert [one.ids.tolist() for one in drawn] == [one.ids.tolist() for one in wanted]
    assert _error(after, wanted_after) < 2 * ALLOWED["float32"]


def test_the_order_in_which_threads_run_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CudaStepModel(TWO.chain(), precision="bfloat16")
    state, logits = _start(model, TWO, 7)
    requests = _requests(TWO, 7, 6)
    wanted = model.generate_rows(state, logits, requests)
    for seed in (2, 3, 4):
        monkeypatch.setattr(emulated_gpu, "seed", seed)
        _same(model.generate_rows(state, logits, requests), wanted)


def test_to_draw_5_and_then_7_is_to_draw_12() -> None:
    model = CudaStepModel(TWO.chain(), precision="bfloat16")
    state, logits = _start(model, TWO, 1)
    rules = SamplingRules(temperature=0.8, repetition_penalty=1.2, penalty_window=4, seed=5)
    whole = model.generate(state, logits[0], 12, rules, position=3, previous=[1, 2])
    first = model.generate(state, logits[0], 5, rules, position=3, previous=[1, 2])
    rest = model.generate(first[2], first[3], 7, rules, position=8, previous=[1, 2, *first[0]])
    np.testing.assert_array_equal(np.concatenate([first[0], rest[0]]), whole[0])
    np.testing.assert_array_equal(np.concatenate([first[1], rest[1]]), whole[1])
    np.testing.assert_array_equal(rest[2], whole[2])
    np.testing.assert_array_equal(rest[3], whole[3])


def test_how_many_steps_a_kernel_runs_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CudaStepModel(TWO.chain(), precision="bfloat16")
    ids, lengths = _texts(TWO, 9, 13)
    requests = _requests(TWO, 9, 20)

    def results() -> tuple[Any, ...]:
        read = model.read(model.initial_state(9), ids, lengths)
        scored = model.log_probabilities(model.initial_state(9), ids, lengths)
        return *read, *scored, model.generate_rows(*read, requests)

    monkeypatch.setattr(batch, "_LEAST_STEPS", 1000)
    *wanted, wanted_rows = results()
    monkeypatch.setattr(batch, "_LEAST_STEPS", 4)
    for name in ("_SECONDS_PER_LAUNCH", "_SECONDS_UNCANCELLED"):
        monkeypatch.setattr(cuda_model, name, 0.0)
    *found, found_rows = results()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    _same(found_rows, wanted_rows)


def test_rows_that_the_counts_of_the_penalty_have_no_room_for_come_one_call_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = CudaStepModel(ONE.chain())
    state, logits = _start(model, ONE, 13)
    requests = _requests(ONE, 13, 4)
    wanted = model.generate_rows(state, logits, requests)
    monkeypatch.setattr(cuda_model, "_MOST_COUNTS_BYTES", 1)
    _same(model.generate_rows(state, logits, requests), wanted)


def test_logits_that_are_no_numbers_end_with_an_error() -> None:
    model = CudaStepModel(ONE.chain())
    state, logits = _start(model, ONE, 3)
    logits[1, 22] = np.nan
    with pytest.raises(ModelError) as error:
        model.generate_rows(state, logits, [Request(5)] * 3)
    assert str(error.value) == DIVERGED
    chain = ONE.chain()
    # Finite weights whose sums are not: h of all units is above 0.
    chain[-1]["kernel"][:] = 3e38
    model, state = CudaStepModel(chain), np.full((1, 40), 9, np.float32)
    with pytest.raises(ModelError):
        model.generate(state, np.log(np.arange(1, 24, dtype=np.float32)), 5)
    assert np.isnan(model.log_probabilities(state, np.array([[1, 2, 3]]))[1]).all()


def test_a_cancelled_row_draws_nothing_more() -> None:
    model = CudaStepModel(ONE.chain())
    state, logits = _start(model, ONE, 2)
    cancellation = Cancellation()
    cancellation.cancel()
    drawn, after, _ = model.generate_rows(state, logits, [Request(4, cancellation=cancellation), Request(4)])
    assert [len(one.ids) for one in drawn] == [0, 4]
    np.testing.assert_array_equal(after[0], state[0])


def test_no_rows_and_no_ids_are_nothing() -> None:
    model = CudaStepModel(ONE.chain())
    state, logits = model.read(model.initial_state(0), np.zeros((0, 3), np.int64))
    assert (state.shape, logits.shape) == ((0, 40), (0, 23))
    assert model.generate_rows(state, logits, [])[0] == []


def test_ids_that_are_none_are_refused() -> None:
    model = CudaStepModel(ONE.chain())
    with pytest.raises(DataError, match="ids run from 0 to 22"):
        model.step(model.initial_state(1), np.array([23]))
    with pytest.raises(ConfigError, match="NaN"):
        model.step(np.full((1, 40), np.nan, np.float32), np.array([1]))


def _with(place: int, **changes: Any) -> Chain:
    chain = ONE.chain()
    chain[place] = {**chain[place], **changes}
    return chain


def test_logits_that_are_no_ids_can_be_read_and_not_drawn_from() -> None:
    chain = ONE.chain()
    chain[2]["kernel"] = chain[2]["kernel"][:, :5].copy()
    found, expected = CudaStepModel(chain), StepModel(chain)
    state, logits = found.step(found.initial_state(2), np.array([3, 0]))
    wanted_state, wanted = expected.step(expected.initial_state(2), np.array([3, 0]))
    assert max(_error(state, wanted_state), _error(logits, wanted)) < ALLOWED["float32"]
    with pytest.raises(ConfigError, match="5 logits but reads ids below 23"):
        found.generate_rows(state, logits, [Request(1)] * 2)


NORM = {"op": "layer_norm", "gamma": None, "beta": None, "epsilon": 1e-3}


@pytest.mark.parametrize(
    ("chain", "kind", "message"),
    [
        (
            [*ONE.chain()[:2], NORM, ONE.chain()[2]],
            ModelError,
            r"chain\[2\] has the op 'layer_norm'.*device='cpu'",
        ),
        (_with(2, activation="relu"), ModelError, r"the dense chain\[2\] has the activation relu"),
        (_with(1, kernel=np.full((7, 80), np.nan, np.float32)), ModelError, "kernel holds a NaN"),
        (_with(2, kernel=np.zeros((19, 23), np.float32)), ConfigError, "takes 19 features"),
        (ONE.chain()[1:], ConfigError, "embedding first"),
        (ONE.chain()[:2], ModelError, r"chain\[1\] has the op 'lstm', not 'dense'"),
        (
            [ONE.chain()[0], _with(2, kernel=np.zeros((7, 23), np.float32))[2]],
            ConfigError,
            "at least one lstm",
        ),
        (Shape(9, (1025,)).chain(), ModelError, "1025 units; at most 1024 are possible"),
        (Shape(9, (512,) * 9).chain(), ModelError, "too many or too wide"),
        (Shape(9000, (32,)).chain(), ModelError, "9000 logits, too many for the 1 thread blocks"),
    ],
)
def test_chain_that_a_gpu_does_not_run_is_refused(chain: Chain, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        CudaStepModel(chain)


def test_precision_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="bfloat16, float16, float32"):
        CudaStepModel(ONE.chain(), precision="int8")


def test_memory_of_a_gpu_is_written_read_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = emulated_gpu.replace_driver(monkeypatch)
    memory, found = DeviceMemory(24, 0), np.zeros(2)
    memory.write(np.array([1.0, 2.0, 3.0]))
    memory.read(found, 8)
    assert (found.tolist(), list(driver.memory)) == ([2.0, 3.0], [memory.address])
    del memory
    assert driver.memory == {}
    out_of_memory = real_driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(driver, "cuMemAlloc", lambda count: (out_of_memory, None))
    with pytest.raises(BackendError, match="OUT_OF_MEMORY"):
        DeviceMemory(24, 0)


def test_no_gpu_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "why_unavailable", lambda device: "there is none")
    with pytest.raises(BackendError, match=r"'cuda:3'.*there is none.*device='cpu'"):
        CudaStepModel(ONE.chain(), device=3)


@pytest.mark.parametrize(
    "generator",
    [
        Generator("bfloat16", (Layer(512),), 96, 96, rows=16),
        Generator("float32", (Layer(256), Layer(256)), 96, 96),
        Generator("float16", (Layer(1000, "gelu"),), 8192, 8192, masks_zero=True),
    ],
    ids=str,
)
def test_kernel_compiles_for_hopper(generator: Generator) -> None:
    assert generator.name.encode() in build.build(generator, "sm_90a").code


def test_fewest_waves_and_of_those_the_fewest_rows_are_chosen() -> None:
    generator = Generator("bfloat16", (Layer(512),), 96, 96)
    chosen = [plan.choose(generator, batch, lambda one: 7).rows for batch in (1, 56, 57, 112, 113, 9999)]
    assert chosen == [8, 8, 16, 16, 32, 32]
