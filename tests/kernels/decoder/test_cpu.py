"""The next-token chain of the native core against the reference in float64."""

import math

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels import native
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.sampling import SamplingRules, sample
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import Arguments
from cellerate.program import PRECISIONS
from support.kernels.decoder_chains import (
    CHAINS,
    Chain,
    V,
    ids_of,
    log_softmax,
    long_chain,
    plain_chain,
    start_of,
)
from support.rounding import allowed

pytestmark = pytest.mark.usefixtures("native_settings")


def _expected(chain: Chain, ids: np.ndarray) -> np.ndarray:
    """The logits (B, T, V) of all steps in float64."""
    x = chain[0]["embeddings"].astype(np.float64)[ids]
    for node in chain[1:]:
        if node["op"] == "lstm":
            options = reference.LstmOptions(activation=node["activation"])
            x = reference.forward(
                Arguments(node["kernel"], node["recurrent_kernel"], node["bias"], x=x), options
            ).outputs
        elif node["op"] == "layer_norm":
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + node["epsilon"])
            if node["gamma"] is not None:
                x = x * node["gamma"] + node["beta"]
        elif node["op"] == "affine":
            x = x * node["scale"] + node["offset"]
        else:
            x = x @ node["kernel"].astype(np.float64)
            x = x if node["bias"] is None else x + node["bias"]
            x = activation_of(node["activation"]).value(x)
    return x


# The products of each chain, two of them a layer of LSTM; the longest has 50 terms.
PRODUCTS = {"plain": 3, "long": 6}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("target", native.available_targets())
@pytest.mark.parametrize("rows", [1, 5])
def test_read_equals_the_reference(chain: str, precision: str, target: str, rows: int) -> None:
    native.set_target(target)
    nodes, ids = CHAINS[chain](), ids_of(rows, 9)
    expected = _expected(nodes, ids)
    model = StepModel(nodes, precision=precision, threads=2)
    assert model.target == target
    _, logits = model.read(model.initial_state(rows), ids)
    assert logits.dtype == np.float32
    rms = math.sqrt(((logits - expected[:, -1]) ** 2).mean() / (expected**2).mean())
    assert rms < allowed(precision, roundings=2 * PRODUCTS[chain], terms=50)


@pytest.mark.parametrize("chain", CHAINS)
def test_float32_numbers_depend_on_neither_target_nor_threads(chain: str) -> None:
    nodes, ids = CHAINS[chain](), ids_of(5, 9)
    results = []
    for target in native.available_targets():
        native.set_target(target)
        for threads in (1, 2, 3):
            model = StepModel(nodes, threads=threads)
            state, logits = model.read(model.initial_state(5), ids)
            results.append(state.tobytes() + logits.tobytes())
    assert len(results) >= 6
    assert set(results) == {results[0]}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("chain", CHAINS)
def test_steps_equal_read_and_leave_the_state_given(chain: str, precision: str) -> None:
    model = StepModel(CHAINS[chain](), precision=precision)
    ids = ids_of(3, 120)
    start = model.initial_state(3)
    state = start
    for t in range(120):
        before = state.copy()
        after, logits = model.step(state, ids[:, t])
        np.testing.assert_array_equal(state, before)
        state = after
    read_state, read_logits = model.read(start, ids)
    np.testing.assert_array_equal(read_state, state)
    np.testing.assert_array_equal(read_logits, logits)
    assert not start.any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", ">i4"])
def test_steps_take_ids_of_any_whole_type(dtype: str) -> None:
    model = StepModel(plain_chain())
    ids, state = ids_of(3, 2), model.initial_state(3)
    strided = np.repeat(ids, 2, axis=1).astype(dtype)[:, ::2]
    expected = model.read(state, ids[:, :1])
    for given in (strided[:, 0], strided[:, 0].copy()):
        for found, right in zip(model.step(state, given), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_steps_refuse_objects_for_ids() -> None:
    model = StepModel(plain_chain())
    with pytest.raises(DataError, match="object"):
        model.step(model.initial_state(1), np.array([1], object))


@pytest.mark.parametrize("state", [None, 1.0, [[0.0] * 80], np.zeros(80, np.float32), "state"], ids=repr)
def test_steps_refuse_what_is_no_state(state: object) -> None:
    with pytest.raises(ConfigError, match="state"):
        StepModel(plain_chain()).step(state, np.array([1]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_different_lengths_are_read_as_if_alone(precision: str) -> None:
    model = StepModel(long_chain(), precision=precision)
    ids, lengths = ids_of(4, 70), np.array([70, 1, 37, 69])
    ids[1, 1:] = -5  # not read
    state, logits = model.read(model.initial_state(4), ids, lengths)
    for row, length in enumerate(lengths):
        alone = model.read(model.initial_state(1), ids[row : row + 1, :length])
        np.testing.assert_array_equal(state[row], alone[0][0])
        np.testing.assert_array_equal(logits[row], alone[1][0])


@pytest.mark.parametrize("chain", CHAINS)
def test_log_probabilities_equal_those_of_the_logits_of_steps(chain: str) -> None:
    model = StepModel(CHAINS[chain]())
    ids = ids_of(3, 210)
    state, got = model.log_probabilities(model.initial_state(3), ids)
    assert got.shape == (3, 209)
    expected = log_softmax(_expected(CHAINS[chain](), ids))
    expected = np.take_along_axis(expected[:, :-1], ids[:, 1:, None], axis=2)[..., 0]
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(state, model.read(model.initial_state(3), ids)[0])
    assert model.log_probabilities(model.initial_state(1), ids[:1, :1])[1].shape == (1, 0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_log_probabilities_of_rows_of_different_lengths_are_those_of_each_alone(precision: str) -> None:
    model = StepModel(long_chain(), precision=precision)
    ids, lengths = ids_of(4, 130), np.array([130, 1, 37, 129])
    ids[1, 1:] = V  # not read
    state, got = model.log_probabilities(model.initial_state(4), ids, lengths)
    for row, length in enumerate(lengths):
        alone, scores = model.log_probabilities(model.initial_state(1), ids[row : row + 1, :length])
        np.testing.assert_array_equal(state[row], alone[0])
        np.testing.assert_array_equal(got[row, : length - 1], scores[0])
        assert not got[row, length - 1 :].any()


def test_a_model_keeps_its_target() -> None:
    native.set_target(native.available_targets()[0])
    model = StepModel(plain_chain(), precision="int8")
    before = model.step(model.initial_state(1), np.array([4]))[1]
    native.set_target("scalar")
    np.testing.assert_array_equal(model.step(model.initial_state(1), np.array([4]))[1], before)
    assert model.target == native.available_targets()[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_not_sampled(value: float) -> None:
    model = StepModel(plain_chain())
    state, logits = start_of(model)
    logits[3] = value
    with pytest.raises(ModelError, match="diverged"):
        model.generate(state, logits, 5)
    with pytest.raises(ModelError, match="diverged"):
        sample(logits, SamplingRules())


def test_logits_that_overflow_on_the_way_are_not_sampled() -> None:
    chain = plain_chain()
    chain[-1]["bias"][:] = 3e38
    chain[-1]["kernel"][:] = 3e38
    model = StepModel(chain)
    with pytest.raises(ModelError, match="diverged"):
        model.generate(model.initial_state(1), np.zeros(V, np.float32), 5)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_weights_that_are_not_finite_are_refused(node: int) -> None:
    chain = plain_chain()
    name = ("embeddings", "recurrent_kernel", "bias")[node]
    chain[node][name].flat[3] = math.nan
    with pytest.raises(ModelError, match=rf"chain\[{node}\].*{name}.*diverged"):
        StepModel(chain, precision="int8")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    model = StepModel(plain_chain())
    state = model.initial_state(1)
    for wrong in (-1, V, 2**40):
        with pytest.raises(DataError, match=str(wrong)):
            model.step(state, np.array([wrong]))
        with pytest.raises(DataError, match=str(wrong)):
            model.read(state, np.array([[0, wrong]]))
        with pytest.raises(DataError, match=str(wrong)):
            model.log_probabilities(state, np.array([[0, wrong]]))
        with pytest.raises(DataError, match=str(wrong)):
            model.generate(state, np.zeros(V, np.float32), 1, stop_ids=[wrong])
    with pytest.raises(DataError, match="float64"):
        model.step(state, np.array([1.0]))


def test_a_batch_of_no_rows_gives_no_rows() -> None:
    model = StepModel(plain_chain())
    state, logits = model.step(model.initial_state(0), np.zeros(0, np.int32))
    assert state.shape == (0, model.state_size) == (0, 80)
    assert logits.shape == (0, model.outputs) == (0, V)


def test_wrong_arguments_name_themselves_and_both_shapes() -> None:
    model = StepModel(plain_chain())
    state, logits = start_of(model)
    with pytest.raises(ConfigError, match=r"state has shape \(1, 79\); expected \(any, 80\)"):
        model.step(state[:, 1:], np.array([1]))
    with pytest.raises(ConfigError, match=r"ids has shape \(2,\); expected \(1,\)"):
        model.step(state, np.array([1, 2]))
    with pytest.raises(ConfigError, match="state has dtype float64"):
        model.step(state.astype(np.float64), np.array([1]))
    with pytest.raises(ConfigError, match=r"ids has shape \(1, 0\).*at least 1"):
        model.read(state, np.zeros((1, 0), np.int32))
    with pytest.raises(ConfigError, match=r"lengths\[0\] is 3; expected 1 to 2"):
        model.read(state, np.array([[1, 2]]), np.array([3]))
    with pytest.raises(ConfigError, match=r"logits has shape \(22,\)"):
        model.generate(state, logits[1:], 1)
    with pytest.raises(ConfigError, match="count is -1"):
        model.generate(state, logits, -1)
    with pytest.raises(ConfigError, match="state holds a NaN"):
        model.step(np.full_like(state, math.nan), np.array([1]))
    with pytest.raises(ConfigError, match="state holds a NaN"):
        model.generate(np.full_like(state, math.nan), logits, 1)


def test_wrong_chains_are_refused() -> None:
    chain = plain_chain()
    with pytest.raises(ConfigError, match="not 'float16'"):
        StepModel(chain, precision="float16")
    with pytest.raises(ConfigError, match="threads is 0"):
        StepModel(chain, threads=0)
    with pytest.raises(ConfigError, match="embedding first"):
        StepModel(chain[1:])
    with pytest.raises(ConfigError, match="at least one lstm"):
        StepModel(chain[:1])
    with pytest.raises(ConfigError, match=r"chain\[1\]: takes 40 features, but the node before it gives 17"):
        StepModel([chain[0], chain[2]])
    with pytest.raises(ConfigError, match=r"chain\[1\]: recurrent_kernel has shape \(39, 160\)"):
        StepModel([chain[0], {**chain[1], "recurrent_kernel": np.zeros((39, 160), np.float32)}])
    with pytest.raises(ConfigError, match=r"chain\[1\]: op is 'gru'"):
        StepModel([chain[0], {"op": "gru"}])
    with pytest.raises(ConfigError, match=r"chain\[2\]: activation: expected one of .*; got 'softmax'"):
        StepModel([*chain[:2], {**chain[2], "activation": "softmax"}])
