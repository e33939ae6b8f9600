"""The native core is held against the oracle, on every target this machine can run."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.errors import ConfigError
from cellerate.kernels import native, operation
from cellerate.kernels.lstm import cpu, reference
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import ACTIVATIONS, MASKED_OUTPUTS, Arguments, LstmOptions
from support.kernels.pairwise import marked
from support.rounding import allowed

# Without the extension this raises, and so fails the run: nothing here may be skipped.
TARGETS = native.available_targets()
pytestmark = pytest.mark.usefixtures("native_settings")
DTYPES = {"fp32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
# The root mean square of an error, as a share of that of the value: forward, gradients. For bfloat16 that is less than
# the 6.8e-3 that nine roundings of a step come to (support/rounding.py; the factors of two products, x and h after
# dropout, a gate, h and c), and three times as much where backward meets them again, in the slopes and the states that
# it reads, beside its own. The most that these tests found is 3.3e-3, and 1.4e-2 for a gate whose slopes nearly vanish.
LIMITS = {"fp32": (1e-6, 5e-6), "bf16": (5e-3, 2e-2)}
VOCABULARY = 11


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and its arguments; `masked_output` is None where there is no mask, `levels` the bias of each gate."""

    B: int = 5
    T: int = 4
    D: int = 7
    H: int = 19
    storage: str = "fp32"
    masked_output: str | None = None
    bias: bool = True
    states: bool = False
    dropout: bool = False
    recurrent_dropout: bool = False
    lookup: bool = False
    x_beside: bool = False
    go_backwards: bool = False
    sequences: bool = True
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    scale: float = 1.0
    saturated: float = 0.0
    levels: tuple[float, ...] = ()
    live: float = 0.6
    seed: int = 0

    def __str__(self) -> str:
        said = [f"B{self.B}-T{self.T}-D{self.D}-H{self.H}-{self.storage}"]
        for field in dataclasses.fields(self)[5:]:
            value = getattr(self, field.name)
            if value != field.default:
                said.append(("" if value else "no_") + field.name if isinstance(value, bool) else str(value))
        return "-".join(said)

    @property
    def dtype(self) -> np.dtype:
        return DTYPES[self.storage]

    @property
    def options(self) -> LstmOptions:
        masked_output = self.masked_output or "previous_output"
        return LstmOptions(self.activation, self.recurrent_activation, self.go_backwards, masked_output)

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arguments by name. With bfloat16 all hold numbers of that type, so that rounding adds no error."""
        rng = np.random.default_rng([self.seed, self.B, self.T, self.D, self.H])
        B, T, D, H = self.B, self.T, self.D, self.H

        def draw(*shape: int, scale: float = 1.0, dtype: np.dtype = DTYPES["fp32"]) -> np.ndarray:
            return (rng.normal(size=shape) * scale).astype(self.dtype).astype(dtype)

        made = {
            "kernel": draw(D, 4 * H, scale=self.scale / D**0.5),
            "recurrent_kernel": draw(H, 4 * H, scale=0.7 * self.scale / H**0.5),
        }
        if self.lookup:
            made["ids"] = rng.integers(0, VOCABULARY, (B, T)).astype(np.int32)
            made["embeddings"] = draw(VOCABULARY, D)
            if self.x_beside:
                # Only its gradient is wanted: its values are not read.
                made["x"] = np.full((B, T, D), np.nan, self.dtype)
        else:
            made["x"] = draw(B, T, D, dtype=self.dtype)
        if self.levels:
            made["bias"] = np.repeat(self.levels, H).astype(np.float32)
        elif self.saturated:
            made["bias"] = (self.saturated * rng.choice([-1, 0, 1], 4 * H)).astype(np.float32)
        elif self.bias:
            made["bias"] = draw(4 * H, scale=0.5)
        if self.states:
            made["h0"], made["c0"] = (draw(B, H, dtype=self.dtype) for _ in range(2))
        if self.masked_output:
            mask = made["mask"] = rng.random((B, T)) < self.live
            # Rows of nothing, of padding after and of padding before; the others are scattered.
            mask[3::8], mask[1::8, T // 2 :], mask[2::8, : T // 2] = False, False, False
        for name, width in (("dropout", D), ("recurrent_dropout", H)):
            if getattr(self, name):
                made[name] = rng.choice([0, 1.25], (4, B, width)).astype(np.float32)
        return made

    @functools.cached_property
    def cotangents(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        outputs = (self.B, self.T, self.H) if self.sequences else (self.B, self.H)
        shapes = {"d_outputs": outputs, "d_h_T": (self.B, self.H), "d_c_T": (self.B, self.H)}
        return {name: rng.normal(size=shape).astype(self.dtype) for name, shape in shapes.items()}

    def forward(self, keep: bool = True) -> cpu.ForwardResults:
        settings = {"return_sequences": self.sequences, "keep": keep, "dtype": self.dtype}
        return cpu.forward(cpu.Arguments(**self.arrays), self.options, **settings)

    def backward(self, done: cpu.ForwardResults) -> dict[str, np.ndarray]:
        settings = self.cotangents | {"return_sequences": self.sequences}
        gradients = cpu.backward(cpu.Arguments(**self.arrays), done, self.options, **settings)
        return {f"d_{name}": gradient for name, gradient in gradients.items()}

    def run(self) -> dict[str, np.ndarray]:
        """All results by name."""
        done = self.forward()
        return states(done) | self.backward(done)


def states(done: cpu.ForwardResults | reference.Forward) -> dict[str, np.ndarray]:
    return {name: getattr(done, name) for name in ("outputs", "h_T", "c_T")}


@functools.lru_cache(1024)
def expected(case: Case) -> dict[str, np.ndarray]:
    """All results by name, by the oracle."""
    arrays, cotangents = dict(case.arrays), dict(case.cotangents)
    if case.lookup:
        ids, embeddings = arrays.pop("ids"), arrays.pop("embeddings")
        arrays["x"] = embeddings[ids]
    if not case.sequences:
        cotangents["d_outputs"] = np.zeros((case.B, case.T, case.H))
        cotangents["d_outputs"][:, -1] = case.cotangents["d_outputs"]
    done = reference.forward(Arguments(**arrays), case.options)
    gradients = reference.backward(done, **cotangents)
    if case.lookup:
        gradients["embeddings"] = np.zeros(embeddings.shape)
        np.add.at(gradients["embeddings"], ids, gradients["x"])
    names = case.arrays.keys() - ({"embeddings"} if case.x_beside else set())
    results = states(done) | {f"d_{name}": gradients[name] for name in gradients if name in names}
    return results if case.sequences else results | {"outputs": done.outputs[:, -1]}


def assert_equals_the_oracle(case: Case) -> None:
    found, right = case.run(), expected(case)
    assert found.keys() == right.keys()
    for name, value in right.items():
        narrow = name in ("outputs", "h_T", "c_T", "d_x", "d_h0", "d_c0")
        assert found[name].shape == value.shape
        assert found[name].dtype == (case.dtype if narrow else np.float32)
        assert_near(found[name], value, LIMITS[case.storage][name.startswith("d_")], name)


def assert_near(found: np.ndarray, right: np.ndarray, limit: float, what: str) -> None:
    error = np.sqrt(np.mean((found.astype(np.float64) - right) ** 2))
    size = np.sqrt(np.mean(right**2))
    assert error <= limit * size, f"{what}: {error / size}"


def assert_identical(found: dict[str, np.ndarray], right: dict[str, np.ndarray], rows=...) -> None:
    assert found.keys() == right.keys()
    for name in right:
        assert found[name][rows].tobytes() == right[name][rows].tobytes(), name


@pytest.fixture(autouse=True, scope="module")
def _poisoned_buffers() -> Iterator[None]:
    """Results start as NaN, so that what the core does not write shows."""
    fresh = operation.empty

    def poisoned(shape, dtype):
        array = fresh(shape, dtype)
        array.view(np.uint8)[...] = 0xFF
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operation, "empty", poisoned)
        yield


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    native.set_target(request.param)
    assert native.target() == request.param
    return request.param


VARIANTS = {
    "plain": {"states": True},
    "dropouts": {
        "masked_output": "previous_output",
        "dropout": True,
        "recurrent_dropout": True,
        "states": True,
    },
    "lookup": {"masked_output": "previous_state", "lookup": True, "states": True},
    "x beside a lookup": {"lookup": True, "x_beside": True, "go_backwards": True},
    "last": {"masked_output": "zero", "sequences": False, "go_backwards": True},
}
SHAPES = [(1, 1, 1, 1), (1, 200, 3, 65), (8, 2, 1, 16), (2, 63, 40, 100), (8, 63, 33, 130), (37, 2, 65, 1)]
# Units after the last whole vector, whose gates take one, two, three or four vectors: 1 to 15 with AVX-512.
SHAPES += [(37, 63, 5, 31), (16, 200, 24, 64), (801, 3, 2, 5), (14, 20, 9, 58)]


def each(variants, shapes):
    """Tests all variants and storage types with all shapes."""
    cases = [
        Case(*s, storage, **VARIANTS[v]) for s, v, storage in itertools.product(shapes, variants, DTYPES)
    ]
    return pytest.mark.parametrize("case", cases, ids=str)


@each(VARIANTS, SHAPES)
def test_results_of_a_shape_equal_the_oracle(target, case):
    assert_equals_the_oracle(case)


def combinations() -> Iterator[Any]:
    names = ("bias", "states", "recurrent_dropout", "go_backwards", "sequences")
    inputs = ({}, {"dropout": True}, {"lookup": True}, {"lookup": True, "x_beside": True})
    flags = [(False, True)] * len(names)
    for case, marks in marked(list(DTYPES), (None, *MASKED_OUTPUTS), range(len(inputs)), *flags):
        storage, masked_output, kind, *given = case
        options = inputs[kind] | dict(zip(names, given, strict=True))
        yield pytest.param(Case(storage=storage, masked_output=masked_output, **options), marks=marks)


@pytest.mark.parametrize("case", list(combinations()), ids=str)
def test_results_of_a_combination_of_options_equal_the_oracle(case):
    assert_equals_the_oracle(case)


# The derivative jumps at a number other than 0, and bfloat16 puts what is near it on the other side.
JUMPS = ("hard_tanh", "hard_shrink", "soft_shrink", "sparse_sigmoid", "hard_sigmoid", "hard_silu", "relu6")


# The vectors of all targets compute an activation with the same operations; the best target and plain C++ try them all.
FEW_ACTIVATIONS = ("tanh", "sigmoid", "relu", "gelu", "hard_shrink")
# Keras's threshold has no defaults: with parameters it is tested in test_activations.py.
NAMED = [name for name in ACTIVATIONS if name != "threshold"]
ACTIVATIONS_OF_TARGETS = [
    (target, name)
    for target in TARGETS
    for name in (NAMED if target in (TARGETS[0], "scalar") else FEW_ACTIVATIONS)
]


@pytest.mark.parametrize("storage", DTYPES)
@pytest.mark.parametrize("places", ["activation", "recurrent_activation", "activation recurrent_activation"])
@pytest.mark.parametrize(("target", "name"), ACTIVATIONS_OF_TARGETS, indirect=["target"])
def test_results_with_an_activation_equal_the_oracle(target, name, places, storage):
    # Small weights: unbounded activations let rounding errors grow from step to step.
    settings = {"scale": 0.1 if name == "exponential" else 0.5}
    if name in JUMPS and storage == "bf16":
        settings = {"scale": 0.1, "saturated": 2.0}
    if name == "exponential" and " " in places:
        settings["T"] = 1
    case = Case(storage=storage, masked_output="previous_state", states=True, **settings)
    assert_equals_the_oracle(dataclasses.replace(case, **dict.fromkeys(places.split(), name)))


@pytest.mark.parametrize(("target", "name"), ACTIVATIONS_OF_TARGETS, indirect=["target"])
def test_derivative_of_an_activation_at_its_kinks_is_that_of_the_oracle(target, name):
    x = np.array([-6, -3, -1, -0.5, 0, 0.5, 1, 3, 6], np.float32).reshape(-1, 1, 1)
    # z_i is x, z_c is 1, and c_T = i * g: what comes back to x is the derivative.
    kernel, bias = np.array([[1, 0, 0, 0]], np.float32), np.array([0, 0, 1, 0], np.float32)
    arguments = cpu.Arguments(kernel, np.zeros_like(kernel), bias, x=x)
    options = LstmOptions("linear", name)
    d_c_T = np.ones((9, 1), np.float32)
    found = cpu.backward(arguments, cpu.forward(arguments, options), options, d_c_T=d_c_T)["x"]
    np.testing.assert_allclose(found, activation_of(name).derivative(x), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("storage", DTYPES)
@pytest.mark.parametrize("saturated", [10.0, 100.0])
def test_results_with_saturated_gates_equal_the_oracle(target, saturated, storage):
    assert_equals_the_oracle(Case(storage=storage, saturated=saturated, masked_output="zero", states=True))


# By what the biases make of the gates i, f, c (here g) and o.
LEVELS = {
    "f0.993": {"levels": (0, 4.95, 0, 0)},
    "f0.9975": {"levels": (0, 5.99, 0, 0)},
    "i0.0025-f0.9975-o0.9975": {"levels": (-5.99, 5.99, 0, 5.99)},
    "i0.9975-f0.9975-o0.0025": {"levels": (5.99, 5.99, 0, -5.99)},
    "i0.9975-f0.0025-g0.995-o0.9975": {"levels": (5.99, -5.99, 3, 5.99)},
    "i0.0025-f0.9975-g-0.9993": {"levels": (-5.99, 5.99, -4, 0)},
    "tanh-f0.995-g0.995": {"levels": (0, 3, 3, 0), "recurrent_activation": "tanh"},
    "hard_sigmoid-f0.995": {"levels": (0, 2.97, 0, 0), "recurrent_activation": "hard_sigmoid"},
    "sparse_sigmoid-f0.9925": {"levels": (0, 0.985, 0, 0), "recurrent_activation": "sparse_sigmoid"},
    "elu-g-0.98": {"levels": (0, 0, -4, 0), "activation": "elu"},
}
NEAR_LIMITS = {
    f"B{B}-T100-D7-H{H}-bf16-{name}": Case(B, 100, 7, H, "bf16", states=True, scale=0.1, **settings)
    for (B, H), (name, settings) in itertools.product([(3, 37), (8, 64)], LEVELS.items())
}


@pytest.mark.parametrize("case", NEAR_LIMITS.values(), ids=NEAR_LIMITS)
def test_gradients_through_gates_near_their_limits_equal_the_oracle_gate_by_gate(target, case):
    # Rounded to bfloat16 such a gate has lost its slope, and what f takes from d_c is wrong at every step alike.
    assert_equals_the_oracle(case)
    found, right = case.run(), expected(case)
    for gradient, gate in itertools.product(("d_kernel", "d_recurrent_kernel", "d_bias"), range(4)):
        part = np.s_[..., gate * case.H : (gate + 1) * case.H]
        assert_near(found[gradient][part], right[gradient][part], LIMITS["bf16"][1], f"{gradient} of {gate}")


@pytest.mark.parametrize("storage", DTYPES)
def test_results_beside_lanes_without_a_unit_equal_the_oracle(target, storage):
    # With a bias of 0, as in those lanes, c would grow by 1 each step, and e^c past all bounds.
    case = Case(
        2, 120, 3, 3, storage, activation="exponential", recurrent_activation="exponential", scale=0.01
    )
    case.arrays["bias"][:] = -2
    assert_equals_the_oracle(case)


@pytest.mark.parametrize("storage", DTYPES)
@pytest.mark.parametrize("masked_output", MASKED_OUTPUTS)
def test_gradients_where_no_step_counts_are_those_of_the_states_alone(masked_output, storage):
    case = Case(storage=storage, masked_output=masked_output, states=True, live=0.0)
    assert_equals_the_oracle(case)
    found = case.run()
    assert not found["d_x"].any() and not found["d_kernel"].any()
    np.testing.assert_array_equal(found["d_c0"], case.cotangents["d_c_T"])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    case=st.builds(
        Case,
        *(st.integers(low, high) for low, high in [(2, 40), (1, 12), (1, 40), (2, 80)]),
        storage=st.sampled_from(list(DTYPES)),
        masked_output=st.sampled_from([None, *MASKED_OUTPUTS]),
        live=st.floats(0, 1),
        seed=st.integers(0, 9),
        **dict.fromkeys(("bias", "states", "recurrent_dropout", "go_backwards", "sequences"), st.booleans()),
    ),
    inputs=st.sampled_from([{}, {"dropout": True}, {"lookup": True}, {"lookup": True, "x_beside": True}]),
    target=st.sampled_from(TARGETS),
    threads=st.integers(1, 3),
)
def test_results_of_any_case_equal_the_oracle(case, inputs, target, threads):
    native.set_target(target)
    native.set_num_threads(threads)
    assert_equals_the_oracle(dataclasses.replace(case, **inputs))


# Of the first, threads share the rows, of the next two the units; the last has too little work to share.
SHARED = [(37, 9, 40, 100), (2, 21, 24, 300), (1, 63, 5, 160), (3, 2, 4, 20)]


@each(VARIANTS, SHARED)
def test_results_of_two_runs_and_of_any_number_of_threads_are_identical(target, case):
    native.set_num_threads(1)
    right = case.run()
    for threads in (1, 2, 3, 3):
        native.set_num_threads(threads)
        assert_identical(case.run(), right)
    assert_equals_the_oracle(case)


@each(VARIANTS, [(9, 7, 20, 70)])
def test_inference_gives_the_results_of_training_and_backward_twice_its_gradients(target, case):
    kept, not_kept = case.forward(), case.forward(keep=False)
    if (case.options.activation, case.options.recurrent_activation) == ("tanh", "sigmoid"):
        # Without the gates by themselves, quotients are multiplied before they are divided: up to eight roundings.
        limit = allowed("bfloat16" if case.dtype == "bfloat16" else "float32", 8, 1)
        right = states(kept)
        for name, found in states(not_kept).items():
            expected = right[name].astype(np.float64)
            error = np.sqrt(np.mean(np.square(found.astype(np.float64) - expected)))
            assert error <= limit * np.sqrt(np.mean(np.square(expected))), (name, error)
    else:
        assert_identical(states(not_kept), states(kept))
    with pytest.raises(ConfigError, match=r"^reserve: expected "):
        case.backward(not_kept)
    given = [*case.arrays.values(), *case.cotangents.values(), kept.outputs, kept.reserve]
    before = [array.tobytes() for array in given]
    assert_identical(case.backward(kept), case.backward(kept))
    assert before == [array.tobytes() for array in given]


@pytest.mark.parametrize("name", Case().cotangents)
def test_gradients_of_one_cotangent_equal_those_beside_zeros(name):
    case = Case(states=True, masked_output="previous_output")
    done, arguments, one = case.forward(), cpu.Arguments(**case.arrays), {name: case.cotangents[name]}
    zeros = {other: np.zeros_like(array) for other, array in case.cotangents.items()}
    alone = cpu.backward(arguments, done, case.options, **one)
    assert_identical(alone, cpu.backward(arguments, done, case.options, **zeros | one))


def strided(array: np.ndarray) -> np.ndarray:
    return (
        np.repeat(np.repeat(array, 2, axis=0)[::-1], 3, axis=-1)[::-2].T[::3].T if array.ndim > 1 else array
    )


def read_only_and_unaligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64 + array.itemsize
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("layout", [np.asfortranarray, strided, read_only_and_unaligned])
@each(VARIANTS, [(5, 4, 7, 19)])
def test_results_of_arrays_however_they_lie_are_identical(layout, case):
    right, case = case.run(), dataclasses.replace(case)
    for arrays in (case.arrays, case.cotangents):
        arrays.update({name: layout(array) for name, array in arrays.items()})
    assert_identical(case.run(), right)


# Those that make a NaN 0 are in test_activations.
KEEP_NAN = [name for name in NAMED if not name.endswith("_of_numbers")]


@pytest.mark.parametrize("storage", DTYPES)
@pytest.mark.parametrize("name", KEEP_NAN)
def test_nan_in_a_row_makes_that_row_nan_from_there_on_and_no_other(target, name, storage):
    case = Case(storage=storage, activation=name, recurrent_activation=name, scale=0.1, bias=False)
    right = case.run()
    case.arrays["x"][1, 2, 3] = np.nan
    found = case.run()
    rows = [{name: of[name] for name in ("outputs", "h_T", "c_T", "d_x")} for of in (found, right)]
    assert_identical(*rows, rows=np.arange(case.B) != 1)
    assert_identical(*[{"outputs": of["outputs"]} for of in rows], rows=np.s_[1, :2])
    for result in (found["outputs"][1, 2:], found["h_T"][1], found["c_T"][1], found["d_kernel"][3]):
        assert np.isnan(result).all()


@each(VARIANTS, [(5, 4, 7, 19)])
def test_nan_of_an_earlier_call_reaches_no_later_one(target, case):
    right, bad = case.run(), dataclasses.replace(case, B=40, D=50, H=100)
    for name in bad.arrays.keys() - {"ids", "mask"}:
        bad.arrays[name][...] = np.nan
    # The working memory is that of the call before.
    assert np.isnan(bad.run()["d_kernel"]).all()
    assert_identical(case.run(), right)


@pytest.mark.parametrize("storage", DTYPES)
def test_nan_in_masked_steps_reaches_no_result(target, storage):
    case = Case(storage=storage, masked_output="previous_output", states=True)
    right = case.forward()
    case.arrays["x"][~case.arrays["mask"]] = np.nan
    assert_identical(states(case.forward()), states(right))
