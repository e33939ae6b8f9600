"""The next-token chain of the native core against the reference in float64, and its generation."""

import math
import threading
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels import native
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.sampling import Cancellation, Request, SamplingRules, sample
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.program import PRECISIONS
from support.rounding import allowed

pytestmark = pytest.mark.usefixtures("native_settings")

V = 23
Chain = list[dict[str, Any]]


class _Weights:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def lstm(self, inputs: int, units: int, activation: str = "tanh", bias: bool = True) -> dict[str, Any]:
        return {
            "op": "lstm",
            "kernel": self(inputs, 4 * units, scale=inputs**-0.5),
            "recurrent_kernel": self(units, 4 * units, scale=0.7 * units**-0.5),
            "bias": self(4 * units, scale=0.3) if bias else None,
            "activation": activation,
            "recurrent_activation": "sigmoid",
        }

    def dense(
        self, inputs: int, outputs: int, activation: str = "linear", bias: bool = True
    ) -> dict[str, Any]:
        return {
            "op": "dense",
            "kernel": self(inputs, outputs, scale=inputs**-0.5),
            "bias": self(outputs, scale=0.3) if bias else None,
            "activation": activation,
        }


def _plain(units: int = 40) -> Chain:
    make = _Weights(1)
    return [{"op": "embedding", "embeddings": make(V, 17)}, make.lstm(17, units), make.dense(units, V)]


def _long() -> Chain:
    make = _Weights(2)
    return [
        {"op": "embedding", "embeddings": make(V, 10)},
        {"op": "affine", "scale": make(10), "offset": make(10)},
        make.lstm(10, 33),
        {"op": "layer_norm", "gamma": make(33), "beta": make(33), "epsilon": 1e-3},
        make.lstm(33, 50, activation="relu", bias=False),
        {"op": "layer_norm", "gamma": None, "beta": None, "epsilon": 1e-6},
        make.dense(50, 31, activation="silu"),
        make.dense(31, V, bias=False),
    ]


CHAINS = {"plain": _plain, "long": _long}


def _expected(chain: Chain, ids: np.ndarray) -> np.ndarray:
    """The logits (B, T, V) of all steps in float64."""
    x = chain[0]["embeddings"].astype(np.float64)[ids]
    for node in chain[1:]:
        if node["op"] == "lstm":
            options = reference.LstmOptions(activation=node["activation"])
            x = reference.forward(
                x, node["kernel"], node["recurrent_kernel"], node["bias"], options=options
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


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _ids(rows: int, steps: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, V, (rows, steps))


# The products of each chain, two of them a layer of LSTM; the longest has 50 terms.
PRODUCTS = {"plain": 3, "long": 6}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("target", native.available_targets())
@pytest.mark.parametrize("rows", [1, 5])
def test_read_equals_the_reference(chain: str, precision: str, target: str, rows: int) -> None:
    native.set_target(target)
    nodes, ids = CHAINS[chain](), _ids(rows, 9)
    expected = _expected(nodes, ids)
    model = StepModel(nodes, precision=precision, threads=2)
    assert model.target == target
    _, logits = model.read(model.initial_state(rows), ids)
    assert logits.dtype == np.float32
    rms = math.sqrt(((logits - expected[:, -1]) ** 2).mean() / (expected**2).mean())
    assert rms < allowed(precision, roundings=2 * PRODUCTS[chain], terms=50)


@pytest.mark.parametrize("chain", CHAINS)
def test_float32_numbers_depend_on_neither_target_nor_threads(chain: str) -> None:
    nodes, ids = CHAINS[chain](), _ids(5, 9)
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
    ids = _ids(3, 120)
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_different_lengths_are_read_as_if_alone(precision: str) -> None:
    model = StepModel(_long(), precision=precision)
    ids, lengths = _ids(4, 70), np.array([70, 1, 37, 69])
    ids[1, 1:] = -5  # not read
    state, logits = model.read(model.initial_state(4), ids, lengths)
    for row, length in enumerate(lengths):
        alone = model.read(model.initial_state(1), ids[row : row + 1, :length])
        np.testing.assert_array_equal(state[row], alone[0][0])
        np.testing.assert_array_equal(logits[row], alone[1][0])


@pytest.mark.parametrize("chain", CHAINS)
def test_log_probabilities_equal_those_of_the_logits_of_steps(chain: str) -> None:
    model = StepModel(CHAINS[chain]())
    ids = _ids(3, 210)
    state, got = model.log_probabilities(model.initial_state(3), ids)
    assert got.shape == (3, 209)
    expected = _log_softmax(_expected(CHAINS[chain](), ids))
    expected = np.take_along_axis(expected[:, :-1], ids[:, 1:, None], axis=2)[..., 0]
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(state, model.read(model.initial_state(3), ids)[0])
    assert model.log_probabilities(model.initial_state(1), ids[:1, :1])[1].shape == (1, 0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_log_probabilities_of_rows_of_different_lengths_are_those_of_each_alone(precision: str) -> None:
    model = StepModel(_long(), precision=precision)
    ids, lengths = _ids(4, 130), np.array([130, 1, 37, 129])
    ids[1, 1:] = V  # not read
    state, got = model.log_probabilities(model.initial_state(4), ids, lengths)
    for row, length in enumerate(lengths):
        alone, scores = model.log_probabilities(model.initial_state(1), ids[row : row + 1, :length])
        np.testing.assert_array_equal(state[row], alone[0])
        np.testing.assert_array_equal(got[row, : length - 1], scores[0])
        assert not got[row, length - 1 :].any()


def _start(model: StepModel) -> tuple[np.ndarray, np.ndarray]:
    state, logits = model.read(model.initial_state(1), np.array([[1, 2, 3]]))
    return state, logits[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_generate_equals_steps_and_the_sampler(precision: str, threads: int | None) -> None:
    model = StepModel(_long(), precision=precision, threads=threads)
    state, logits = _start(model)
    rules = SamplingRules(
        temperature=0.9, top_k=15, top_p=0.95, min_p=0.01, repetition_penalty=1.3, penalty_window=8, seed=9
    )
    previous = [1, 2, 3]
    ids, scores, after, following = model.generate(state, logits, 30, rules, position=4, previous=previous)
    expected_ids, expected_scores = [], []
    for position in range(4, 34):
        drawn, score = sample(logits, rules, position, previous + expected_ids)
        expected_ids.append(drawn)
        expected_scores.append(score)
        state, rows = model.step(state, np.array([drawn]))
        logits = rows[0]
    assert ids.tolist() == expected_ids
    np.testing.assert_array_equal(scores, np.float32(expected_scores))
    np.testing.assert_array_equal(after, state)
    np.testing.assert_array_equal(following, logits)


def _requests(counts: list[int], **options: Any) -> list[Request]:
    """Requests that differ in everything a request has."""
    return [
        Request(
            count,
            SamplingRules(
                temperature=0.7 + 0.1 * row,
                top_k=None if row % 2 else 9,
                repetition_penalty=1 + 0.1 * row,
                seed=5,
                stream=row,
            ),
            position=3 * row,
            previous=[row, 1, 2],
            **options,
        )
        for row, count in enumerate(counts)
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3, None])
@pytest.mark.parametrize("chain", CHAINS)
def test_rows_are_generated_as_if_alone(chain: str, precision: str, threads: int | None) -> None:
    model = StepModel(CHAINS[chain](), precision=precision, threads=threads)
    counts = [12, 0, 30, 1, 29, 30, 7]
    state, logits = model.read(model.initial_state(7), _ids(7, 5))
    drawn, after, following = model.generate_rows(state, logits, _requests(counts))
    for row, request in enumerate(_requests(counts)):
        alone = model.generate(
            state[row : row + 1],
            logits[row],
            request.count,
            request.rules,
            position=request.position,
            previous=request.previous,
        )
        np.testing.assert_array_equal(drawn[row].ids, alone[0])
        np.testing.assert_array_equal(drawn[row].log_probabilities, alone[1])
        np.testing.assert_array_equal(after[row], alone[2][0])
        np.testing.assert_array_equal(following[row], alone[3])
        assert len(alone[0]) == request.count


def test_a_row_ends_before_its_stop_id_and_others_go_on() -> None:
    model = StepModel(_plain())
    state, logits = model.read(model.initial_state(3), _ids(3, 5))
    whole = model.generate_rows(state, logits, _requests([40, 40, 40]))[0]
    stop = int(whole[1].ids[20])
    drawn, after, _ = model.generate_rows(
        state,
        logits,
        [
            Request(40, r.rules, r.position, r.previous, (stop,) if row == 1 else ())
            for row, r in enumerate(_requests([40] * 3))
        ],
    )
    place = whole[1].ids.tolist().index(stop)
    np.testing.assert_array_equal(drawn[1].ids, whole[1].ids[:place])
    for row in (0, 2):
        np.testing.assert_array_equal(drawn[row].ids, whole[row].ids)
    read = model.read(state[1:2], drawn[1].ids[None])[0] if place else state[1:2]
    np.testing.assert_array_equal(after[1], read[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_ends_one_row_and_others_go_on(threads: int) -> None:
    model = StepModel(_plain(16), threads=threads)
    state, logits = model.read(model.initial_state(2), _ids(2, 5))
    cancellation = Cancellation()
    cancellation.cancel()
    requests = [Request(50, cancellation=cancellation), Request(50, SamplingRules(stream=1))]
    drawn, after, following = model.generate_rows(state, logits, requests)
    assert drawn[0].ids.size == 0
    assert len(drawn[1].ids) == 50
    np.testing.assert_array_equal(after[0], state[0])
    np.testing.assert_array_equal(following[0], logits[0])


def test_generating_no_rows_gives_no_rows() -> None:
    model = StepModel(_plain())
    drawn, state, logits = model.generate_rows(model.initial_state(0), np.zeros((0, V), np.float32), [])
    assert drawn == []
    assert (state.shape, logits.shape) == ((0, model.state_size), (0, V))


def test_another_target_draws_the_same_ids_and_log_probabilities() -> None:
    found = []
    for target in native.available_targets():
        native.set_target(target)
        model = StepModel(_long())
        state, logits = model.read(model.initial_state(3), _ids(3, 5))
        drawn = model.generate_rows(state, logits, _requests([60] * 3))[0]
        found.append((np.stack([d.ids for d in drawn]), np.stack([d.log_probabilities for d in drawn])))
    assert len(found) > 1
    for ids, scores in found[1:]:
        np.testing.assert_array_equal(ids, found[0][0])
        np.testing.assert_array_equal(scores, found[0][1])


def test_generate_can_go_on_where_it_ended() -> None:
    model = StepModel(_plain())
    state, logits = _start(model)
    whole = model.generate(state, logits, 20)[0]
    first, _, state, logits = model.generate(state, logits, 8)
    second = model.generate(state, logits, 12, position=8)[0]
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_generate_ends_before_a_stop_id() -> None:
    model = StepModel(_plain())
    state, logits = _start(model)
    whole = model.generate(state, logits, 20)[0]
    stop = int(whole[9])
    place = whole.tolist().index(stop)
    ids, _, after, following = model.generate(state, logits, 20, stop_ids=[stop])
    np.testing.assert_array_equal(ids, whole[:place])
    # The stop id was not read: it is drawn again from the logits given.
    assert sample(following, SamplingRules(), place)[0] == stop
    if place:
        np.testing.assert_array_equal(after, model.read(state, ids[None])[0])


def test_generate_of_nothing_gives_what_was_given() -> None:
    model = StepModel(_plain())
    state, logits = _start(model)
    ids, scores, after, following = model.generate(state, logits, 0)
    assert ids.size == scores.size == 0
    np.testing.assert_array_equal(after, state)
    np.testing.assert_array_equal(following, logits)


@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_ends_a_generation_in_another_thread(threads: int) -> None:
    model = StepModel(_plain(16), threads=threads)
    state, logits = _start(model)
    cancellation = Cancellation()
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(model.generate(state, logits, 5_000_000, cancellation=cancellation))
    )
    thread.start()
    cancellation.cancel()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert cancellation.cancelled
    ids, scores, _, _ = results[0]
    assert len(ids) == len(scores) < 5_000_000


def test_two_threads_use_one_model_at_once() -> None:
    model = StepModel(_plain(), threads=2)
    state, logits = _start(model)
    expected = model.generate(state, logits, 400)[0]
    results: list[np.ndarray] = []

    def work() -> None:
        results.extend(model.generate(state, logits, 400)[0] for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_a_model_keeps_its_target() -> None:
    native.set_target(native.available_targets()[0])
    model = StepModel(_plain(), precision="int8")
    before = model.step(model.initial_state(1), np.array([4]))[1]
    native.set_target("scalar")
    np.testing.assert_array_equal(model.step(model.initial_state(1), np.array([4]))[1], before)
    assert model.target == native.available_targets()[0]


def _filtered(logits: np.ndarray, rules: SamplingRules) -> np.ndarray:
    """The distribution by the rules without a penalty, written out."""
    p = np.exp(_log_softmax(logits.astype(np.float64) / rules.temperature))
    order = np.argsort(-p, kind="stable")
    keep = order[: rules.top_k]
    kept = p[keep] / p[keep].sum()
    keep = keep[np.cumsum(kept) - kept < rules.top_p]
    keep = keep[p[keep] >= rules.min_p * p.max()]
    result = np.zeros_like(p)
    result[keep] = p[keep] / p[keep].sum()
    return result


@pytest.mark.parametrize(
    "rules",
    [
        SamplingRules(seed=1),
        SamplingRules(temperature=0.7, seed=2),
        SamplingRules(top_k=6, seed=3),
        SamplingRules(top_p=0.8, seed=4),
        SamplingRules(min_p=0.1, seed=5),
        SamplingRules(temperature=1.5, top_k=12, top_p=0.9, min_p=0.15, seed=6),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_sampling_follows_the_distribution_of_its_rules(rules: SamplingRules) -> None:
    logits = np.random.default_rng(8).standard_normal(V).astype(np.float32) * 1.5
    expected = _filtered(logits, rules)
    count = 20_000
    drawn = np.bincount([sample(logits, rules, place)[0] for place in range(count)], minlength=V)
    possible = expected > 0
    assert not drawn[~possible].any()
    chi_square = ((drawn - count * expected)[possible] ** 2 / (count * expected[possible])).sum()
    freedom = possible.sum() - 1
    # Four standard deviations of chi-square, which the fixed seeds make a matter of fact.
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_streams_of_one_seed_draw_other_ids() -> None:
    logits = np.zeros(1000, np.float32)
    ids = {
        stream: sample(logits, SamplingRules(seed=3, stream=stream))[0] for stream in (0, 1, 2**32, 2**64 - 1)
    }
    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 96, 1000])
@pytest.mark.parametrize("spread", [1e-3, 3.0, 400.0])
def test_log_probabilities_hold_from_flat_to_steep(size: int, spread: float) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)
    expected = _log_softmax(logits.astype(np.float64))
    for temperature in (0.0, 1e-300, 1.0, 1e300):
        drawn, score = sample(logits, SamplingRules(temperature=temperature, seed=4), 7)
        np.testing.assert_array_max_ulp(np.float32(score), np.float32(expected[drawn]), 1)
        if temperature < 1e-3:
            assert drawn == logits.argmax()


def test_a_sample_reports_the_log_probability_of_the_model() -> None:
    logits = np.random.default_rng(8).standard_normal(V).astype(np.float32)
    rules = SamplingRules(temperature=0.3, top_k=4, repetition_penalty=1.5)
    drawn, score = sample(logits, rules, 0, [2, 5])
    assert score == pytest.approx(_log_softmax(logits.astype(np.float64))[drawn], rel=1e-6)


def test_the_penalty_makes_ids_seen_less_likely() -> None:
    logits = np.float32([2.0, 1.9, -1.0, -1.1])
    greedy = SamplingRules(temperature=0, repetition_penalty=2)
    assert sample(logits, greedy)[0] == 0
    assert sample(logits, greedy, 0, [0])[0] == 1
    assert sample(np.float32([-1.0, -1.1]), greedy, 0, [0])[0] == 1
    window = SamplingRules(temperature=0, repetition_penalty=2, penalty_window=1)
    assert sample(logits, window, 0, [0, 1])[0] == 0


@pytest.mark.parametrize("penalty", [1e-308, 1e308])
@pytest.mark.parametrize("logits", [[10.0, 0.0, 1.0], [-3.0, -1.0, -2.0], [3e38, -3e38, 0.0]])
def test_a_penalty_that_overflows_still_draws_an_id(penalty: float, logits: list[float]) -> None:
    for seen in ([0], [0, 1, 2]):
        for temperature in (0.0, 0.7):
            rules = SamplingRules(repetition_penalty=penalty, temperature=temperature)
            assert 0 <= sample(np.float32(logits), rules, 0, seen)[0] < 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_not_sampled(value: float) -> None:
    model = StepModel(_plain())
    state, logits = _start(model)
    logits[3] = value
    with pytest.raises(ModelError, match="diverged"):
        model.generate(state, logits, 5)
    with pytest.raises(ModelError, match="diverged"):
        sample(logits, SamplingRules())


def test_logits_that_overflow_on_the_way_are_not_sampled() -> None:
    chain = _plain()
    chain[-1]["bias"][:] = 3e38
    chain[-1]["kernel"][:] = 3e38
    model = StepModel(chain)
    with pytest.raises(ModelError, match="diverged"):
        model.generate(model.initial_state(1), np.zeros(V, np.float32), 5)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_weights_that_are_not_finite_are_refused(node: int) -> None:
    chain = _plain()
    name = ("embeddings", "recurrent_kernel", "bias")[node]
    chain[node][name].flat[3] = math.nan
    with pytest.raises(ModelError, match=rf"chain\[{node}\].*{name}.*diverged"):
        StepModel(chain, precision="int8")


def test_ids_outside_the_vocabulary_are_refused() -> None:
    model = StepModel(_plain())
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
    model = StepModel(_plain())
    state, logits = model.step(model.initial_state(0), np.zeros(0, np.int32))
    assert state.shape == (0, model.state_size) == (0, 80)
    assert logits.shape == (0, model.outputs) == (0, V)


def test_wrong_arguments_name_themselves_and_both_shapes() -> None:
    model = StepModel(_plain())
    state, logits = _start(model)
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
    chain = _plain()
    with pytest.raises(ConfigError, match="precision is 'float16'"):
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_wrong_rules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingRules(**wrong)
