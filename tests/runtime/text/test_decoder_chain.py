import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.program import Node, Program
from cellerate.runtime.program.engine import Engine
from cellerate.runtime.text.decoder_chain import chain_of

V, E, H = 5, 3, 4


def draw(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


IDS = Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"})
TABLE = Node("embedding", "table", {"ids": 0}, {"embeddings": draw(V, E)})


def lstm(source, inputs=E, **changes):
    extra = changes.pop("inputs_too", {})
    options = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "zero",
        "go_backwards": False,
        "return_sequences": True,
    }
    arrays = {"kernel": draw(inputs, 4 * H), "recurrent_kernel": draw(H, 4 * H), "bias": draw(4 * H)}
    return Node("lstm", "memory", {"x": source, **extra}, arrays, options | changes)


MASK = Node("ids_mask", "m", {"ids": 0})


def masked_lstm(source, inputs=E):
    """An LSTM whose mask is node 2."""
    return lstm(source, inputs, inputs_too={"mask": 2}, masked_output="previous_output")


def dense(source, activation="linear", inputs=H):
    return Node("dense", "head", {"x": source}, {"kernel": draw(inputs, V)}, {"activation": activation})


def cast(source, activation="linear"):
    return Node("activation", "logits", {"x": source}, {}, {"activation": activation})


def program(*nodes, output=None):
    return Program(nodes, {"y": len(nodes) - 1 if output is None else output})


def test_chain_has_each_layer_once_in_order_with_its_weights():
    norm = Node("layer_norm", "norm", {"x": 2}, {"gamma": draw(H)}, {"epsilon": 1e-3})
    scale = Node("affine", "batch_norm", {"x": 3}, {"scale": draw(H), "offset": draw(H)})
    memory = lstm(1)
    chain = chain_of(program(IDS, TABLE, memory, norm, scale, dense(4, "softmax"), cast(5)))
    assert [link["op"] for link in chain] == ["embedding", "lstm", "layer_norm", "affine", "dense"]
    assert chain[0]["embeddings"] is TABLE.arrays["embeddings"]
    assert chain[1]["recurrent_kernel"] is memory.arrays["recurrent_kernel"]
    assert chain[1].keys() == {
        "op",
        "kernel",
        "recurrent_kernel",
        "bias",
        "activation",
        "recurrent_activation",
    }
    assert (chain[2]["beta"], chain[2]["epsilon"]) == (None, 1e-3)
    assert (chain[4]["bias"], chain[4]["activation"]) == (None, "linear")


def test_chain_of_a_tied_head_ends_in_the_table_transposed():
    head = Node(
        "unembedding", "table", {"x": 2}, {"embeddings": TABLE.arrays["embeddings"]}, {"soft_cap": None}
    )
    thin = Node(
        "lstm", "memory", {"x": 1}, {"kernel": draw(E, 12), "recurrent_kernel": draw(3, 12)}, lstm(1).options
    )
    chain = chain_of(program(IDS, TABLE, thin, head))
    np.testing.assert_array_equal(chain[2]["kernel"], TABLE.arrays["embeddings"].T)
    assert chain[1]["bias"] is None


VECTORS = Node("input", "x", options={"shape": (-1, -1, V), "dtype": "float32"})
COUNT = Node("features_mask", "counts", {"x": 0}, {}, {"mask_value": 0.0})


def one_hot_lstm(source=0, inputs=V, **changes):
    return lstm(source, inputs, return_sequences=False, **changes)


def test_chain_of_one_hot_vectors_looks_the_products_up():
    memory = one_hot_lstm()
    chain = chain_of(program(VECTORS, memory, dense(1, "softmax")))
    assert [link["op"] for link in chain] == ["embedding", "lstm", "dense"]
    np.testing.assert_array_equal(chain[0]["embeddings"] @ chain[1]["kernel"], memory.arrays["kernel"])
    assert (chain[0]["embeddings"].shape, chain[2]["activation"]) == ((V, V), "linear")


def test_chain_of_many_one_hot_vectors_takes_no_more_room_than_the_kernel():
    wide = Node("input", "x", options={"shape": (-1, 40, 99), "dtype": "float32"})
    memory = one_hot_lstm(inputs=99)
    head = Node("dense", "head", {"x": 1}, {"kernel": draw(H, 99)}, {"activation": "linear"})
    chain = chain_of(program(wide, memory, head))
    assert chain[0]["embeddings"] is memory.arrays["kernel"]
    np.testing.assert_array_equal(chain[1]["kernel"], np.eye(4 * H))


def test_chain_of_one_hot_vectors_through_a_linear_dense_has_its_rows_as_embeddings():
    arrays = {"kernel": draw(V, E), "bias": draw(E)}
    first = Node("dense", "first", {"x": 0}, arrays, {"activation": "linear"})
    chain = chain_of(program(VECTORS, first, lstm(1), dense(2)))
    assert [link["op"] for link in chain] == ["embedding", "lstm", "dense"]
    np.testing.assert_array_equal(chain[0]["embeddings"], arrays["kernel"] + arrays["bias"])


def test_masking_of_one_hot_vectors_masks_nothing():
    masked = Node("masked", "m", {"x": 0, "mask": 1})
    first = lstm(2, V, inputs_too={"mask": 1})
    chain = chain_of(program(VECTORS, COUNT, masked, first, lstm(3, H, inputs_too={"mask": 1}), dense(4)))
    assert [link["op"] for link in chain] == ["embedding", "lstm", "lstm", "dense"]
    assert chain[0]["masks_zero"] is False


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((IDS, TABLE, lstm(1, go_backwards=True), dense(2)), "memory walks backwards"),
        ((IDS, TABLE, MASK, lstm(1, inputs_too={"mask": 2}), dense(3)), "zeros at masked steps"),
        (
            (
                IDS,
                TABLE,
                lstm(1),
                Node("lstm_state", "h", {"lstm": 2}, {}, {"state": "h"}),
                Node("lstm_state", "c", {"lstm": 2}, {}, {"state": "c"}),
                lstm(1, inputs_too={"h0": 3, "c0": 4}),
                dense(5),
            ),
            "memory is lstm, which reads",
        ),
        (
            (
                IDS,
                TABLE,
                Node("features_mask", "m", {"x": 1}, {}, {"mask_value": 0.0}),
                masked_lstm(1),
                dense(3),
            ),
            "masked by something else",
        ),
        ((IDS, TABLE, MASK, masked_lstm(1), lstm(3, inputs=H), dense(4)), "another LSTM is not"),
        (
            (IDS, TABLE, Node("flip", "turned", {"x": 1}, {}, {"axis": 1}), lstm(2), dense(3)),
            "turned is flip",
        ),
        (
            (
                IDS,
                TABLE,
                Node(
                    "windows",
                    "conv",
                    {"x": 1},
                    {},
                    {"size": 1, "strides": 2, "dilation": 1, "padding": "valid", "axis": 1, "features": E},
                ),
                lstm(2),
                dense(3),
            ),
            "conv is a convolution over time",
        ),
        ((IDS, TABLE, lstm(1), dense(2, "softmax"), dense(3, inputs=V)), "head is a softmax"),
        ((IDS, TABLE, lstm(1), cast(2, "relu"), dense(3)), "logits is an activation layer, relu"),
        ((IDS, TABLE, dense(1, inputs=E)), "no LSTM"),
        (
            (Node("input", "x", options={"shape": (-1, -1, E), "dtype": "float32"}), lstm(0), dense(1)),
            r"does not start with an Embedding of ids, and its input of the shape \(-1, -1, 3\) has no one-hot",
        ),
        (
            (Node("input", "x", options={"shape": (-1, V), "dtype": "float32"}), one_hot_lstm(), dense(1)),
            "no one-hot vectors as wide as its 5 outputs",
        ),
        (
            (VECTORS, one_hot_lstm(inputs=E), dense(1)),
            "one-hot vectors is lstm, not an LSTM or a Dense of 5 inputs",
        ),
        (
            (
                VECTORS,
                Node("affine", "scaled", {"x": 0}, {"scale": draw(V), "offset": draw(V)}),
                one_hot_lstm(1),
                dense(2),
            ),
            "the first to read its one-hot vectors is affine",
        ),
        (
            (
                VECTORS,
                lstm(0, V),
                Node("features_mask", "m", {"x": 1}, {}, {"mask_value": 0.0}),
                Node("masked", "hidden", {"x": 1, "mask": 2}),
                lstm(3, H),
                dense(4),
            ),
            "hidden is masked",
        ),
        (
            (
                VECTORS,
                lstm(0, V),
                Node("features_mask", "m", {"x": 1}, {}, {"mask_value": 0.0}),
                lstm(1, H, inputs_too={"mask": 2}, masked_output="previous_output"),
                dense(3),
            ),
            "masked by something else",
        ),
        (
            (
                IDS,
                Node("input", "more", options={"shape": (-1, -1), "dtype": "int32"}),
                TABLE,
                lstm(2),
                dense(3),
            ),
            "2 inputs",
        ),
    ],
)
def test_program_that_is_not_a_chain_is_refused_with_the_reason(nodes, reason):
    with pytest.raises(ModelError, match=reason):
        chain_of(program(*nodes))


def test_weights_that_very_many_layers_share_are_refused():
    square = lstm(1, inputs=H)
    embedding = Node("embedding", "table", {"ids": 0}, {"embeddings": draw(V, H)})

    def shared(count):
        layers = [Node("lstm", f"m{n}", {"x": n + 1}, square.arrays, square.options) for n in range(count)]
        return program(IDS, embedding, *layers, dense(count + 1))

    assert len(chain_of(shared(30))) == 32
    wide = draw(600, 2400)
    square = Node("lstm", "m", {"x": 1}, {"kernel": wide, "recurrent_kernel": wide}, square.options)
    embedding = Node("embedding", "table", {"ids": 0}, {"embeddings": draw(V, 600)})
    head = Node("dense", "head", {"x": 41}, {"kernel": draw(600, V)}, {"activation": "linear"})
    layers = [Node("lstm", f"m{n}", {"x": n + 1}, square.arrays, square.options) for n in range(40)]
    with pytest.raises(ModelError, match="share their weights"):
        chain_of(program(IDS, embedding, *layers, head))


def test_masked_ids_leave_the_state_as_the_engine_does():
    both = program(IDS, TABLE, MASK, masked_lstm(1), masked_lstm(3, H), dense(4))
    model, engine = StepModel(chain_of(both)), Engine(both)
    ids = np.random.default_rng(0).integers(0, 3, (4, 30))
    state, logits = model.read(model.initial_state(4), ids)
    np.testing.assert_allclose(logits, engine.run(ids)["y"][:, -1], atol=1e-6)
    stepped = model.initial_state(4)
    for place in range(30):
        before, (stepped, following) = stepped, model.step(stepped, ids[:, place])
        np.testing.assert_array_equal(stepped[ids[:, place] == 0], before[ids[:, place] == 0])
    np.testing.assert_array_equal(stepped, state)
    np.testing.assert_array_equal(following, logits)
    plain = StepModel(chain_of(program(IDS, TABLE, lstm(1), dense(2))))
    assert not np.array_equal(plain.step(plain.initial_state(1), [0])[0], plain.initial_state(1))


def test_capped_logits_are_refused():
    head = Node("unembedding", "table", {"x": 2}, {"embeddings": draw(V, H)}, {"soft_cap": 30.0})
    with pytest.raises(ModelError, match="caps its logits"):
        chain_of(program(IDS, TABLE, lstm(1), head))
