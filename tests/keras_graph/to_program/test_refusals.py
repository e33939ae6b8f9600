"""What no program can hold is refused with every reason and its layer."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program, why_not_packed
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder
from support.keras_models.keras_programs import Chain, F, T, V, chain_of, check, numpy, series

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


class Doubled(layers.Dense):
    """A Dense with a call of its own."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return 2 * super().call(inputs)


class Renamed(layers.Dense):
    """A Dense that computes as one."""


class Subclassed(keras.Model):
    """A model with no graph."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


class Gated(layers.GRUCell):
    """A cell that may compute anything."""


def quantised() -> layers.Dense:
    layer = layers.Dense(4, name="small")
    layer.build((None, T, F))
    layer.quantize("int8")
    return layer


REFUSED: dict[str, tuple[Chain, str]] = {
    "unknown": (
        layers.Conv1DTranspose(3, 2, name="conv"),
        r"conv \(Conv1DTranspose\) is not a layer that can be packed\. Use",
    ),
    "conv-lstm": (
        lambda x: layers.ConvLSTM1D(2, 2, name="conv")(ops.expand_dims(x, -1)),
        r"conv \(ConvLSTM1D\) is not a layer that can be packed\. Use",
    ),
    "lambda": (layers.Lambda(lambda x: x, name="code"), r"code \(Lambda\) .* Python code"),
    "prelu-in-steps": (
        lambda x: layers.TimeDistributed(layers.PReLU("random_normal"))(ops.expand_dims(x, 3)),
        r"\(PReLU\) has slopes of single steps\. Share them between the steps",
    ),
    "subclass": (Doubled(3, name="twice"), r"twice \(Doubled\) overrides `call`. Use Dense itself"),
    "subclassed-model": (Subclassed(name="inside"), r"inside \(Subclassed\) is not a layer"),
    "quantised": (lambda x: quantised()(x), r"small \(Dense\) is quantised \(int8\)"),
    "activation": (
        layers.Dense(3, activation=ops.sin, name="wave"),
        r"wave \(Dense\) has the activation 'sin'",
    ),
    "softmax-mask": (lambda x: layers.Softmax()(x[..., :1], mask=ops.any(x != 0.0, axis=-1)), "given a mask"),
    "norm-axis": (layers.LayerNormalization(axis=1), "works along axis"),
    "rms-norm": (lambda x: layers.LayerNormalization(rms_scaling=True)(x), "rms_scaling=True"),
    "batch-norm-axis": (layers.BatchNormalization(axis=1), "works along axis 1 of 3"),
    "einsum": (layers.EinsumDense("abc,cde->abde", (None, 4, 2)), "not a dense layer. Use Dense"),
    "time-distributed": (
        layers.TimeDistributed(layers.RepeatVector(3, name="repeat"), name="each"),
        r"each/repeat \(RepeatVector\) is not a layer that can be packed inside a TimeDistributed\. Use",
    ),
    "channels-first": (
        layers.GlobalMaxPooling1D(data_format="channels_first"),
        "data_format='channels_first'",
    ),
    "cell": (
        layers.RNN(Gated(3)),
        r"\(RNN\) has a Gated, where programs know LSTMCell, GRUCell, SimpleRNNCell",
    ),
    "lstm-activation": (layers.LSTM(3, activation=ops.sin), "has the activation 'sin'"),
    "lstm-softmax": (layers.LSTM(3, activation="softmax"), "has the activation 'softmax'"),
    "gru-activation": (layers.GRU(3, recurrent_activation=ops.sin), "has the recurrent_activation 'sin'"),
    "bidirectional": (
        layers.Bidirectional(layers.GRU(3, activation="softmax", name="gru"), name="both"),
        r"both/forward_gru \(GRU\) has the activation 'softmax'",
    ),
    "training": (lambda x: layers.Dropout(0.5)(x, training=True), "called with training=True"),
    "op": (lambda x: ops.sort(x, axis=1), r"\(Sort\) is not an operation"),
    "op-roll-all": (lambda x: ops.roll(x, 1), "where programs roll one axis by one number"),
    "op-roll-batch": (lambda x: ops.roll(x, 1, axis=0), "works along axis 0"),
    "op-tile-batch": (lambda x: ops.tile(x, [2, 1, 1]), "tile axes behind the batch"),
    "op-tile-axes": (lambda x: ops.tile(x, [1, 1, 1, 2]), "tile axes behind the batch"),
    "op-repeat-each": (lambda x: ops.repeat(x, [1, 2, 1, 1, 2], axis=-1), "repeat each as often"),
    "op-swap-batch": (lambda x: ops.swapaxes(x, 0, 1), "leave the batch in front"),
    "op-axis": (lambda x: ops.flip(x, axis=0), "works along axis 0"),
    "op-batch": (lambda x: x[1:, :], "behind the batch"),
    "op-nothing": (lambda x: x[:, :, 4:2], "takes no entry"),
    "op-bound": (lambda x: ops.maximum(x, np.arange(F, dtype="float32")), "one finite number"),
    "op-no-bound": (lambda x: ops.clip(x, -np.inf, 1.0), "one finite number"),
    "op-einsum": (lambda x: ops.einsum("btf,bsf->btsf", x, x), "does not sum over one axis"),
    "op-einsum-batch": (lambda x: ops.einsum("btf,ctf->bc", x, x), "does not sum over one axis"),
    "op-boolean-parts": (lambda x: ops.split(x > 0, 5, axis=-1)[1], r"output '\w+' is a tensor of booleans"),
    "computed-mask": (
        lambda x: layers.LSTM(3)(x, mask=ops.any((x > 0) + (x > 1), axis=-1)),
        "a mask that does not come from an Embedding",
    ),
    "computed-ids": (
        lambda x: layers.Embedding(V, 2)(x[..., 0]),
        r"looks up a computed tensor \(B, 7\), where",
    ),
}


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_layer_that_no_program_computes_is_refused_with_the_reason(name: str) -> None:
    chain, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        read_program(chain_of(chain))


def test_shape_of_two_unknown_sizes_is_refused() -> None:
    with pytest.raises(ModelError, match="more than one of its sizes is not known"):
        read_program(chain_of(lambda x: ops.expand_dims(x, axis=-1), shape=(None, None)))


def test_subclass_that_computes_as_its_layer_is_read() -> None:
    check(chain_of(Renamed(3)), series())


def test_refusal_names_every_layer_with_its_path() -> None:
    inner = chain_of(layers.Lambda(lambda x: x, name="code"), layers.Dense(F), shape=(None, F))
    nested = keras.Model(inner.inputs[0], inner.outputs[0], name="nested")
    model = chain_of(
        nested,
        layers.LayerNormalization(axis=1, name="norm"),
        layers.Conv1DTranspose(2, 2, name="conv"),
        layers.Dense(2, name="last"),
    )
    with pytest.raises(ModelError) as caught:
        read_program(model)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(" ")[1] for line in lines] == ["nested/code", "norm", "conv"]
    assert [f"- {reason}" for reason in why_not_packed(model)] == lines


def test_refusal_gives_every_reason_of_a_layer() -> None:
    lstm = layers.LSTM(
        3, activation=ops.sin, recurrent_activation="softmax", return_sequences=True, name="one"
    )
    both = layers.Bidirectional(layers.GRU(3, activation="softmax", recurrent_activation="glu"), name="both")
    found = why_not_packed(chain_of(layers.LayerNormalization(axis=1, name="norm"), lstm, both))
    assert [" ".join(reason.split(" ")[:6]).rstrip(",") for reason in found] == [
        "norm (LayerNormalization) works along axis [1]",
        "one (LSTM) has the activation 'sin'",
        "one (LSTM) has the recurrent_activation 'softmax'",
        *(
            f"both/{direction}_{both.forward_layer.name.removeprefix('forward_')} (GRU) has the {which}"
            for direction in ("forward", "backward")
            for which in ("activation 'softmax'", "recurrent_activation 'glu'")
        ),
    ]


def test_refusal_of_weights_names_every_one_that_diverged() -> None:
    model = chain_of(layers.LSTM(3, return_sequences=True, name="one"), layers.Dense(2, name="two"))
    for variable in model.trainable_variables:
        variable.assign(variable + np.nan)
    assert [reason.split(",")[0].split(".")[0] for reason in why_not_packed(model)] == [
        f"{layer} holds a NaN or an infinity in its {name}"
        for layer, name in (
            ("one", "kernel"),
            ("one", "recurrent_kernel"),
            ("one", "bias"),
            ("two", "kernel"),
            ("two", "bias"),
        )
    ]


def test_nothing_keeps_a_model_from_being_packed_that_can_be() -> None:
    assert why_not_packed(chain_of(layers.LSTM(3))) == ()
    assert "is not built" in why_not_packed(keras.Sequential([layers.Dense(2)]))[0]


def test_input_of_ids_and_numbers_is_refused() -> None:
    x = keras.Input((T,), name="both")
    model = keras.Model(x, [layers.Embedding(V, 2)(x), layers.Dense(2)(x)])
    with pytest.raises(ModelError, match="input 'both' is read both as ids and as numbers"):
        read_program(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "expected a Keras model, got int"),
        (layers.Dense(2), "expected a Keras model, got Dense"),
        (keras.Sequential([layers.Dense(2)]), "is not built"),
        (Subclassed(), r"class that defines its own `call` \(Subclassed\)"),
    ],
    ids=["number", "layer", "unbuilt", "subclassed"],
)
def test_what_is_no_readable_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_program(model)


class NotImplementedHere(layers.Layer):
    """As a layer is whose operations a backend does not have in float16."""

    def call(self, inputs: Any) -> Any:
        raise NotImplementedError


def test_model_that_keras_leaves_unbuilt_is_refused_with_a_way_to_the_reason() -> None:
    model = keras.Sequential([keras.Input((T, 3)), NotImplementedHere(), layers.Dense(2)])
    with pytest.raises(
        ModelError, match=r"has a keras.Input, but Keras cannot build it.* Call the model once"
    ):
        read_program(model)


def test_single_id_a_row_is_refused_with_the_shape_that_helps() -> None:
    x = keras.Input((), dtype="int32", name="shop")
    message = r"looks up an input \(B\), where programs take .* Give keras.Input the shape \(1,\)"
    with pytest.raises(ModelError, match=message):
        read_program(keras.Model(x, layers.Embedding(V, 2)(x)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weight_that_is_not_finite_is_refused_with_its_layer(value: float) -> None:
    model = build_autoencoder(V, embedding=3, units=4, latent=5)
    kernel = encoder_and_decoder(model)[0].get_layer("encoder").backward_layer.cell.recurrent_kernel
    values = numpy(kernel).copy()
    values[2, 3] = value
    kernel.assign(values)
    with pytest.raises(
        ModelError, match="encode/encoder/backward_lstm holds a NaN or an infinity in its recurrent_kernel"
    ):
        read_program(model)
