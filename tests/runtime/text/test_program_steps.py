"""Generating with models that are not a chain of LSTMs: equal to reading the whole text again for every id."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels import native
from cellerate.kernels.decoder.sampling import Cancellation, Request, SamplingRules
from cellerate.program import PRECISIONS, Program
from cellerate.runtime.cell import Cell, narrowed
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import ProgramSteps, device
from support.graphs import Graph, draw
from support.runtime.programs import windows

CHARACTERS = "abcdefghijk"
V, E, N, H = len(CHARACTERS), 6, 5, 9


def convolved(
    *,
    size: int = 3,
    dilation: int = 1,
    strides: int = 1,
    padding: str = "causal",
    sequences: bool = True,
    activation: str = "linear",
    one_hot: bool = False,
    masked: bool = False,
    vocabulary: int = V,
) -> Program:
    graph = Graph()
    if one_hot:
        x, width = graph.input("x", -1, V), V
    else:
        ids, width = graph.input("ids", -1, dtype="int32"), E
        x = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(vocabulary, E) * 2})
    mask = graph.add("ids_mask", "table", {"ids": 0}) if masked else None
    options = {"strides": strides, "dilation": dilation, "features": width}
    gathered = windows(graph, "windows", x, size, padding, **options)
    conv = graph.dense(gathered, "conv", size * width, N, "relu")
    lstm = graph.lstm(conv, "lstm", N, H, mask=mask, return_sequences=sequences)
    return graph.program(y=graph.dense(lstm, "head", H, V, activation))


def gru() -> Program:
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    x = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, E) * 2})
    arrays = {
        "kernel": draw(E, 3 * H),
        "recurrent_kernel": draw(H, 3 * H, seed=2),
        "bias": draw(3 * H),
        "recurrent_bias": draw(3 * H),
    }
    options = {"activation": "tanh", "recurrent_activation": "sigmoid", "masked_output": "previous_output"}
    options |= {"go_backwards": False, "return_sequences": True, "reset_after": True}
    top = graph.add("gru", "gru", {"x": x}, arrays, **options)
    return graph.program(y=graph.dense(top, "head", H, V))


def packed(program: Program, precision: str = "float32") -> PackedModel:
    header = {"task": "text", "payload": {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()}}
    return PackedModel(Cell(narrowed(program, precision), precision, header))


def steps_of(program: Program, precision: str = "float32") -> ProgramSteps:
    found = packed(program, precision).steps
    assert isinstance(found, ProgramSteps)
    return found


def greedy(model: PackedModel, prompt: list[int], count: int) -> list[int]:
    """Draw the likeliest ids with `predict`, from the whole text so far."""
    ids = list(prompt)
    for _ in range(count):
        shape: Any = next(iter(model.inputs.values()))
        given = np.array([ids], np.int32) if len(shape) == 2 else np.eye(V, dtype=np.float32)[[ids]]
        found = np.asarray(model.predict(given))[0]
        ids.append(int((found[-1] if found.ndim == 2 else found).argmax()))
    return ids[len(prompt) :]


MODELS: dict[str, dict[str, Any]] = {
    "kernel 3": {},
    "kernel 5": {"size": 5},
    "dilated": {"dilation": 4},
    "last step": {"sequences": False},
    "softmax": {"activation": "softmax"},
    "one-hot": {"one_hot": True},
    "masked": {"masked": True},
}


@pytest.mark.parametrize("name", [*MODELS, "gru"])
@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_likeliest_ids_are_those_of_predict_on_the_whole_text(name: str, length: int) -> None:
    model = packed(gru() if name == "gru" else convolved(**MODELS[name]))
    prompt = np.random.default_rng(length).integers(0, V, length).tolist()
    made = model.complete([model.tokenizer.decode(prompt)], max_tokens=30, temperature=0)
    assert made[0].ids.tolist() == greedy(model, prompt, 30)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reading_drawing_and_stepping_agree_to_the_bit(precision: str) -> None:
    steps = steps_of(convolved(), precision)
    ids = np.random.default_rng(1).integers(0, V, (3, 12))
    state, logits = steps.read(steps.initial_state(3), ids)
    stepped = steps.initial_state(3)
    for place in range(12):
        stepped, following = steps.step(stepped, ids[:, place])
    assert (stepped.tobytes(), following.tobytes()) == (state.tobytes(), logits.tobytes())
    drawn, after, last = steps.generate_rows(
        state, logits, [Request(9, SamplingRules(seed=r)) for r in range(3)]
    )
    again, read_logits = steps.read(state, np.stack([each.ids for each in drawn]))
    assert (after.tobytes(), last.tobytes()) == (again.tobytes(), read_logits.tobytes())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_any_length_read_score_and_draw_as_if_alone(precision: str) -> None:
    steps = steps_of(convolved(), precision)
    lengths = np.array([5, 1, 300, 2, 5])
    ids = np.random.default_rng(2).integers(0, V, (5, 300))
    state, logits = steps.read(steps.initial_state(5), ids, lengths)
    scored, scores = steps.log_probabilities(steps.initial_state(5), ids, lengths)
    requests = [
        Request(count, SamplingRules(seed=row, repetition_penalty=1.5), previous=ids[row, : lengths[row]])
        for row, count in enumerate((7, 0, 3, 12, 7))
    ]
    drawn, after, _ = steps.generate_rows(state, logits, requests)
    assert scored.tobytes() == state.tobytes()
    for row, length in enumerate(lengths):
        one = ids[row : row + 1, :length]
        alone, following = steps.read(steps.initial_state(), one)
        assert (alone.tobytes(), following.tobytes()) == (state[row].tobytes(), logits[row].tobytes())
        _, each = steps.log_probabilities(steps.initial_state(), one)
        np.testing.assert_array_equal(scores[row, : length - 1], each[0])
        assert not scores[row, length - 1 :].any()
        (single,), ended, _ = steps.generate_rows(alone, following, [requests[row]])
        np.testing.assert_array_equal(drawn[row].ids, single.ids)
        np.testing.assert_array_equal(drawn[row].log_probabilities, single.log_probabilities)
        assert ended.tobytes() == after[row].tobytes()


@pytest.mark.parametrize("name", ["kernel 3", "last step", "softmax"])
def test_scores_are_the_log_probabilities_of_predict(name: str) -> None:
    model = packed(convolved(**MODELS[name]))
    ids = np.random.default_rng(3).integers(0, V, 20)
    found = model.score(model.tokenizer.decode(ids)).log_probabilities
    for place in range(19):
        out = np.asarray(model.predict(ids[None, : place + 1].astype(np.int32)))[0].astype(float)
        out = out[-1] if out.ndim == 2 else out
        right = np.log(out) if name == "softmax" else out - np.log(np.exp(out).sum())
        assert found[place] == pytest.approx(right[ids[place + 1]], abs=1e-5)


def test_stop_ids_end_a_sequence_unread_and_a_cancelled_one_draws_nothing() -> None:
    steps = steps_of(convolved())
    state, logits = steps.read(steps.initial_state(), np.array([[1, 2, 3, 4]]))
    rules = SamplingRules(seed=5)
    whole, _, _, _ = steps.generate(state, logits[0], 20, rules)
    stop = int(whole[6])
    first = whole.tolist().index(stop)
    ids, _, after, _ = steps.generate(state, logits[0], 20, rules, stop_ids=[stop])
    assert ids.tolist() == whole[:first].tolist()
    assert after.tobytes() == steps.read(state, ids[None])[0].tobytes() if first else state.tobytes()
    cancellation = Cancellation()
    cancellation.cancel()
    assert len(steps.generate(state, logits[0], 20, rules, cancellation=cancellation)[0]) == 0


def test_numpy_draws_the_same_ids_where_the_core_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"max_tokens": 40, "temperature": 0.9, "seed": 3, "repetition_penalty": 1.2}
    right = packed(convolved()).generate("abcab", **options)
    monkeypatch.setattr(native, "why_unavailable", lambda: "not here")
    assert packed(convolved()).generate("abcab", **options) == right


def test_bad_ids_and_states_are_refused_and_change_nothing() -> None:
    steps = steps_of(convolved())
    with pytest.raises(DataError, match="run from 0 to 10"):
        steps.read(steps.initial_state(), np.array([[1, V]]))
    broken = steps.initial_state()
    broken[0, 1] = np.nan
    with pytest.raises(ConfigError, match="state holds a NaN"):
        steps.read(broken, np.array([[1]]))
    assert steps.read(steps.initial_state(0), np.zeros((0, 3), int))[1].shape == (0, V)


def test_model_whose_layers_look_ahead_or_skip_steps_is_refused_by_name() -> None:
    for options, words in (
        ({"strides": 2}, "strides=2, so most steps have no result"),
        ({"padding": "same"}, r'future steps \(padding="same"\)'),
        ({"padding": "valid"}, r'future steps \(padding="valid"\)'),
    ):
        with pytest.raises(ModelError, match=f"^windows 2: .*{words}"):
            _ = packed(convolved(**options)).steps


def test_model_that_is_no_next_token_model_is_refused_with_the_reason() -> None:
    graph = Graph()
    x = graph.input("x", -1, 3)
    other = graph.program(y=graph.dense(graph.lstm(x, "lstm", 3, H), "head", H, V))
    with pytest.raises(ModelError, match="one-hot vectors are as wide as the output"):
        ProgramSteps(other, "float32")
    # One number for each step looks like a vocabulary of 1 in a single step.
    numbers = Graph()
    table = numbers.add(
        "embedding", "table", {"ids": numbers.input("ids", -1, dtype="int32")}, {"embeddings": draw(V, E)}
    )
    mean = numbers.add("mean", "mean", {"x": numbers.lstm(table, "lstm", E, H)}, axis=2, keepdims=False)
    with pytest.raises(ModelError, match=r"a step of its output \(1, 1\), not \(batch, vocabulary\)"):
        ProgramSteps(numbers.program(y=mean), "float32")
    half = Graph()
    half.nodes = list(convolved(activation="softmax").nodes)
    mixture = half.affine(len(half.nodes) - 1, "half", V, scale=0.5, offset=0.0)
    with pytest.raises(ModelError, match="head is a softmax that is not the end"):
        ProgramSteps(half.program(y=mixture), "float32")
    twice = dataclasses.replace(convolved(), outputs={"y": 4, "z": 3})
    with pytest.raises(ModelError, match="1 inputs and 2 outputs"):
        ProgramSteps(twice, "float32")


def test_gpu_refuses_what_is_not_a_chain() -> None:
    with pytest.raises(ModelError, match=r"windows 2 is a convolution over time\..* A GPU runs only"):
        device.step_model(convolved(), "float32", "cuda")


def test_named_engine_refuses_what_would_run_in_numpy() -> None:
    steps_of(convolved()).check_core()
    with pytest.raises(ModelError, match="gru is a GRU, which the native engine does not run"):
        steps_of(gru()).check_core()
