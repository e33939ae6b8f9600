"""A program of recurrent layers computes what Keras computes, whatever their options, masks and states."""

from typing import Any

import keras
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program
from cellerate.runtime.program.engine import Engine
from support.activation_names import IN_FILES, in_keras
from support.keras_models.keras_programs import (
    MASK,
    B,
    Chain,
    F,
    T,
    agree,
    chain_of,
    check,
    masked_lstms,
    masked_series,
    randomize,
    series,
)

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]

BACKEND = keras.backend.backend()


@pytest.mark.parametrize("which", ["activation", "recurrent_activation"])
def test_program_of_an_lstm_of_every_activation_computes_what_keras_does(which: str) -> None:
    x = keras.Input((2, F), name="x")
    # Few steps and small numbers: the exponential of an exponential magnifies every rounding.
    check(
        keras.Model(x, [layers.LSTM(3, **{which: in_keras(name)})(x) for name in IN_FILES]),
        series(2, 2, F) / 4,
    )


LSTMS: dict[str, dict[str, Any]] = {
    "last": {},
    "sequences": {"return_sequences": True},
    "states": {"return_state": True, "return_sequences": True, "use_bias": False},
    "zero": {"zero_output_for_mask": True, "return_sequences": True, "return_state": True},
    "zero-last": {"zero_output_for_mask": True},
    "backwards": {"go_backwards": True, "return_sequences": True, "return_state": True},
    "backwards-zero": {"go_backwards": True, "return_sequences": True, "zero_output_for_mask": True},
    "dropouts": {"dropout": 0.5, "recurrent_dropout": 0.5, "unit_forget_bias": False},
}


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", LSTMS)
def test_program_of_an_lstm_computes_what_keras_does(name: str, masked: bool) -> None:
    chain = [layers.Masking()] if masked else []
    program = check(chain_of(*chain, layers.LSTM(9, **LSTMS[name])), masked_series())
    assert masked_lstms(program) == [masked]


@pytest.mark.parametrize("options", [{}, {"zero_output_for_mask": True}, {"go_backwards": True}], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_unrolled_lstm_computes_what_keras_does(options: dict[str, Any], masked: bool) -> None:
    chain = [layers.Masking()] if masked else []
    model = chain_of(*chain, layers.LSTM(4, unroll=True, return_sequences=True, **options))
    if masked and options.get("go_backwards") and BACKEND != "jax":
        with pytest.raises(ModelError, match="unrolled, goes backwards and is given a mask"):
            read_program(model)
    else:
        check(model, masked_series())


@pytest.mark.parametrize("steps", [1, 4])
def test_program_of_one_row_and_few_steps_computes_what_keras_does(steps: int) -> None:
    bidirectional = layers.Bidirectional(layers.LSTM(1, return_sequences=True))
    check(chain_of(bidirectional, layers.LSTM(1), shape=(None, 1)), series(1, steps, 1))


@pytest.mark.parametrize("unroll", [False, True], ids=["loop", "unrolled"])
@pytest.mark.parametrize("zero", [False, True], ids=["repeat", "zero"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_initial_state_computes_what_keras_does(masked: bool, zero: bool, unroll: bool) -> None:
    """Masked steps before the first that counts are where the backends differ."""
    x, h, c = keras.Input((T, F), name="x"), keras.Input((4,), name="h"), keras.Input((4,), name="c")
    mask = keras.Input((T,), dtype="bool", name="mask")
    options = {"return_sequences": True, "return_state": True, "unroll": unroll}
    lstm = layers.LSTM(4, zero_output_for_mask=zero, **options)
    y = lstm(x, initial_state=[h, c], mask=mask) if masked else lstm(x, initial_state=[h, c])
    model = keras.Model([x, h, c, mask], y) if masked else keras.Model([x, h, c], y)
    inputs = {"x": series(), "h": series(B, 4), "c": series(B, 4, seed=4)}
    if masked:
        inputs["mask"] = MASK
    randomize(model)
    expected = model(inputs, training=False)
    program = read_program(model)
    agree(Engine(program).run(inputs), expected)
    assert masked_lstms(program) == [masked]
    assert list(program.outputs) == [lstm.name, f"{lstm.name}_1", f"{lstm.name}_2"]


RNNS: dict[str, Chain] = {
    "gru": lambda options: layers.GRU(4, **options),
    "gru-reset-before": lambda options: layers.GRU(4, reset_after=False, **options),
    "simple": lambda options: layers.SimpleRNN(4, **options),
    "stacked": lambda options: layers.RNN(
        [layers.LSTMCell(4), layers.GRUCell(3), layers.SimpleRNNCell(2)], **options
    ),
}
RNN_OPTIONS: dict[str, dict[str, Any]] = {
    "last": {},
    "states": {"return_state": True, "return_sequences": True},
    "zero": {"zero_output_for_mask": True, "return_sequences": True, "return_state": True},
    "backwards": {"go_backwards": True, "return_sequences": True, "return_state": True},
    "unrolled": {"unroll": True, "return_sequences": True},
    "stateful": {"stateful": True, "return_state": True},
}


# Keras itself cannot reset the states of stacked cells.
RNN_CASES = [(kind, name) for kind in RNNS for name in RNN_OPTIONS if (kind, name) != ("stacked", "stateful")]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("kind", "name"), RNN_CASES)
def test_program_of_a_gru_or_simple_rnn_computes_what_keras_does(kind: str, name: str, masked: bool) -> None:
    options = RNN_OPTIONS[name]
    x = keras.Input(batch_shape=(B if "stateful" in options else None, T, F), name="x")
    layer = RNNS[kind](options)
    model = keras.Model(x, layer(layers.Masking()(x) if masked else x))
    randomize(model)
    if "stateful" in options:
        layer.reset_state()
    program = read_program(model)
    expected = model(masked_series(), training=False)
    agree(Engine(program).run(masked_series()), expected)


@pytest.mark.parametrize(
    ("kind", "which"),
    [
        *(
            (kind, which)
            for kind in ("gru", "gru-reset-before")
            for which in ("activation", "recurrent_activation")
        ),
        ("simple", "activation"),
        *((kind, "use_bias") for kind in ("gru", "gru-reset-before", "simple")),
    ],
)
def test_program_of_a_gru_or_simple_rnn_of_every_option_computes_what_keras_does(
    kind: str, which: str
) -> None:
    values = [False] if which == "use_bias" else [in_keras(name) for name in IN_FILES]
    x = keras.Input((2, F), name="x")
    check(keras.Model(x, [RNNS[kind]({which: value})(x) for value in values]), series(2, 2, F) / 4)


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", ["gru", "simple"])
def test_program_of_a_bidirectional_gru_with_states_computes_what_keras_does(kind: str, masked: bool) -> None:
    x, mask = keras.Input((T, F), name="x"), keras.Input((T,), dtype="bool", name="mask")
    states = [keras.Input((4,), name=name) for name in ("forward", "backward")]
    both = layers.Bidirectional(RNNS[kind]({"return_sequences": True, "return_state": True}))
    y, *last = both(x, initial_state=states, mask=mask if masked else None)
    model = keras.Model([x, mask, *states], [RNNS[kind]({})(layers.LSTM(3, return_sequences=True)(y)), *last])
    given = {name: series(B, 4, seed=number) for number, name in enumerate(("forward", "backward"))}
    check(model, {"x": series(), "mask": MASK, **given})


def test_gru_that_holds_a_state_is_refused() -> None:
    x = keras.Input(batch_shape=(B, T, F), name="x")
    model = keras.Model(x, layers.GRU(3, stateful=True, name="kept")(x))
    model(series())
    with pytest.raises(
        ModelError, match=r"kept \(GRU\) is stateful and holds the state after other sequences"
    ):
        read_program(model)


MERGES = ["concat", "sum", "mul", "ave", None]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("merge_mode", MERGES, ids=str)
def test_program_of_a_bidirectional_computes_what_keras_does(merge_mode: str | None, masked: bool) -> None:
    x = keras.Input((None, F), name="x")
    start = layers.Masking()(x) if masked else x
    outputs = [
        layers.Bidirectional(
            layers.LSTM(4, return_sequences=sequences, return_state=state), merge_mode=merge_mode
        )(start)
        for sequences, state in ((False, False), (True, False), (True, True))
    ]
    program = check(keras.Model(x, outputs), masked_series())
    assert masked_lstms(program) == [masked] * 6


def test_program_of_a_bidirectional_of_two_layers_and_states_computes_what_keras_does() -> None:
    x, state = keras.Input((T, F), name="x"), [keras.Input((4,), name=name) for name in "abcd"]
    forward = layers.LSTM(4, return_sequences=True, go_backwards=True, activation="relu")
    backward = layers.LSTM(4, return_sequences=True)
    y = layers.Bidirectional(forward, backward_layer=backward, name="both")(x, initial_state=state)
    model = keras.Model([x, *state], layers.LSTM(3)(y))
    states = {name: series(B, 4, seed=number) for number, name in enumerate("abcd")}
    program = check(model, {"x": series(), **states})
    paths = [node.name for node in program.nodes if node.op == "lstm"]
    assert paths[:2] == [f"both/forward_{forward.name}", f"both/{backward.name}"]


@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
def test_program_of_a_masked_bidirectional_with_states_computes_what_keras_does(sequences: bool) -> None:
    x, ends = keras.Input((T, F), name="x"), keras.Input((T,), dtype="bool", name="ends")
    start = layers.Dense(4)(layers.GlobalMaxPooling1D()(x))
    both = layers.Bidirectional(layers.LSTM(4, return_sequences=sequences))
    model = keras.Model([x, ends], both(x, initial_state=[start] * 4, mask=ends))
    randomize(model)
    expected = model({"x": series(), "ends": MASK}, training=False)
    program = read_program(model)
    agree(Engine(program).run({"x": series(), "ends": MASK}), [expected])
    assert masked_lstms(program) == [True, True]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_rnn_of_cells_computes_what_keras_does(masked: bool) -> None:
    x = keras.Input((T, F), name="x")
    start = layers.Masking()(x) if masked else x
    stack = [
        layers.RNN([layers.LSTMCell(4), layers.LSTMCell(3), layers.LSTMCell(2)], **options)
        for options in (
            {},
            {"return_sequences": True, "return_state": True},
            {"return_sequences": True, "go_backwards": True, "zero_output_for_mask": True},
        )
    ]
    outputs = [layer(start) for layer in [layers.RNN(layers.LSTMCell(4), return_sequences=True), *stack]]
    program = check(keras.Model(x, outputs), masked_series())
    assert masked_lstms(program) == [masked] * 10


def test_program_of_stacked_cells_takes_their_initial_states() -> None:
    x, states = keras.Input((T, F), name="x"), [[keras.Input((n,)) for _ in "hc"] for n in (4, 3)]
    y = layers.RNN([layers.LSTMCell(4), layers.LSTMCell(3)])(x, initial_state=states)
    model = keras.Model([x, states], y)
    names = list(read_program(model).inputs)[1:]
    arrays = dict(zip(names, [series(B, n, seed=n + i) for n in (4, 3) for i in (0, 9)], strict=True))
    randomize(model)
    given = [arrays[name] for name in names]
    expected = model([series(), [given[:2], given[2:]]], training=False)
    agree(Engine(read_program(model)).run({"x": series(), **arrays}), expected)


def test_stateful_lstm_is_read_as_one_from_zeros_unless_it_holds_a_state() -> None:
    x = keras.Input(batch_shape=(B, T, F), name="x")
    lstm = layers.LSTM(4, stateful=True, name="carrying")
    model = keras.Model(x, lstm(x))
    randomize(model)
    model(series())
    with pytest.raises(ModelError, match=r"carrying \(LSTM\) is stateful and holds .* reset_state\(\)"):
        read_program(model)
    lstm.reset_state()
    program = read_program(model)
    assert program.nodes[0].options["shape"] == (-1, T, F)
    agree(Engine(program).run(series()), model(series(), training=False))
