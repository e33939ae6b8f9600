"""The LSTM of a program is held against the oracle, on the native core and on NumPy alone."""

import numpy as np
import pytest

from cellerate.kernels.lstm import cpu, reference
from cellerate.kernels.lstm.spec import MASKED_OUTPUTS, Arguments, LstmOptions
from cellerate.runtime.program import operations
from support.activation_names import IN_FILES
from support.runtime.one_operation import B, T, draw, node, scattered

# The design's limit for the root mean square error of a forward pass, relative to the values' root mean square.
LSTM_LIMIT = 1e-6


def lstm_case(
    batch=B, steps=T, inputs=4, units=9, *, bias=True, states=False, mask=False, ids=None, **options
):
    """A node, its inputs, and its table or None."""
    arrays = {
        "kernel": draw(inputs, 4 * units, seed=1) / np.float32(inputs**0.5),
        "recurrent_kernel": draw(units, 4 * units, seed=2) / np.float32(2 * units**0.5),
    }
    if bias:
        arrays["bias"] = draw(4 * units, seed=3)
    given = {"x": draw(batch, steps, inputs)}
    table = None
    if ids is not None:
        table = draw(ids, inputs, seed=7)
        given["x"] = np.random.default_rng(8).integers(-ids, ids, (batch, steps)).astype(np.int32)
    if states:
        given |= {"h0": draw(batch, units, seed=4), "c0": draw(batch, units, seed=5)}
    if mask:
        # Among scattered masks, rows that are all padding, padded before and padded after.
        given["mask"] = scattered(batch, steps, seed=6)
        given["mask"][1::4], given["mask"][2::4, : steps // 2] = False, False
        given["mask"][3::4, steps // 2 :] = False
    defaults = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "previous_output",
        "go_backwards": False,
        "return_sequences": True,
    }
    return node("lstm", arrays, **(defaults | options)), given, table


def assert_lstm_equals_the_oracle(layer, given, table, sequences=True):
    found = operations.lstm(layer, given, table, sequences=sequences)
    fields = ("activation", "recurrent_activation", "go_backwards", "masked_output")
    options = LstmOptions(**{name: layer.options[name] for name in fields})
    x = given["x"] if table is None else table[given["x"]]
    done = reference.forward(Arguments(**layer.arrays, **(given | {"x": x})), options)
    outputs = done.outputs if sequences else done.outputs[:, -1]
    for array, expected in zip(found, (outputs, done.h_T, done.c_T), strict=True):
        assert array.dtype == np.float32
        assert array.shape == expected.shape
        error = np.sqrt(np.mean((array - expected) ** 2))
        assert error <= LSTM_LIMIT * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("sequences", [True, False], ids=["sequences", "last"])
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("masked_output", [None, *MASKED_OUTPUTS])
@pytest.mark.parametrize("states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
def test_lstm_with_options_equals_the_oracle(where, bias, states, masked_output, backwards, sequences):
    layer, given, table = lstm_case(
        bias=bias,
        states=states,
        mask=masked_output is not None,
        masked_output=masked_output or "zero",
        go_backwards=backwards,
    )
    assert_lstm_equals_the_oracle(layer, given, table, sequences)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 63, 5, 17), (37, 2, 65, 3), (3, 1, 2, 130)], ids=str)
@pytest.mark.parametrize("mask", [False, True], ids=["no-mask", "mask"])
def test_lstm_of_a_shape_equals_the_oracle(where, shape, mask):
    layer, given, table = lstm_case(*shape, mask=mask, states=True)
    assert_lstm_equals_the_oracle(layer, given, table)


@pytest.mark.parametrize("name", IN_FILES)
def test_lstm_with_an_activation_equals_the_oracle(where, name):
    layer, given, table = lstm_case(activation=name, recurrent_activation="hard_sigmoid", bias=False)
    # Some activations grow without bound: over two steps they stay in a range where float32 is precise. The two
    # shrinks subtract nearly equal numbers near 0, where float32 is not precise.
    shrinks = name.startswith(("tanh_shrink", "soft_shrink"))
    given["x"] = given["x"][:, :2] * np.float32(16 if shrinks else 0.25)
    assert_lstm_equals_the_oracle(layer, given, table)


@pytest.mark.parametrize("rows", [4, 300], ids=["table", "rows"])
@pytest.mark.parametrize("mask", [False, True], ids=["no-mask", "mask"])
def test_lstm_of_ids_equals_the_oracle(where, rows, mask):
    layer, given, table = lstm_case(batch=9, ids=rows, mask=mask, states=True)
    assert_lstm_equals_the_oracle(layer, given, table)


@pytest.mark.parametrize("mask", [False, True], ids=["no-mask", "mask"])
def test_lstm_of_ids_on_the_core_gives_the_bits_of_the_looked_up_rows(target, mask):
    layer, given, table = lstm_case(batch=9, inputs=600, ids=4, mask=mask, states=True)
    direct = operations.lstm(layer, given | {"x": table[given["x"]]}, sequences=True)
    for found, right in zip(operations.lstm(layer, given, table, sequences=True), direct, strict=True):
        assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("rows", [4, 300], ids=["table", "rows"])
@pytest.mark.parametrize("beyond", [0, -1], ids=["above", "below"])
def test_lstm_of_an_id_outside_the_table_raises(where, rows, beyond):
    layer, given, table = lstm_case(ids=rows)
    given["x"][2, 3] = rows if beyond == 0 else -rows - 1
    with pytest.raises((IndexError, ValueError), match=r"out of bounds|ids"):
        operations.lstm(layer, given, table, sequences=True)


def test_lstm_looks_up_in_the_core_only_where_the_table_pays(monkeypatch):
    seen, forward = [], cpu.forward
    monkeypatch.setattr(
        cpu, "forward", lambda a, *rest, **more: seen.append(a.ids is not None) or forward(a, *rest, **more)
    )
    for rows in (6 * T // 2, 6 * T // 2 + 1):
        layer, given, table = lstm_case(batch=6, ids=rows)
        operations.lstm(layer, given, table, sequences=True)
    assert seen == [True, False]


def test_lstm_keeps_no_reserve(monkeypatch):
    kept, forward = [], cpu.forward

    def watched(*arguments, **options):
        done = forward(*arguments, **options)
        kept.append(done.reserve)
        return done

    monkeypatch.setattr(cpu, "forward", watched)
    layer, given, table = lstm_case()
    operations.lstm(layer, given, table, sequences=True)
    assert kept == [None]


def test_lstm_nan_in_a_row_stays_in_that_row_and_behind_the_mask(where):
    layer, given, table = lstm_case(batch=4, mask=True)
    given["mask"] = np.ones((4, T), bool)
    given["mask"][2, 3] = False
    right, _, _ = operations.lstm(layer, given, table, sequences=True)
    given["x"][1, 2, 0], given["x"][2, 3] = np.nan, np.nan
    found, _, _ = operations.lstm(layer, given, table, sequences=True)
    assert np.isnan(found[1, 2:]).all()
    assert not np.isnan(found[1, :2]).any()
    assert found[[0, 2, 3]].tobytes() == right[[0, 2, 3]].tobytes()


@pytest.mark.parametrize("mask", [False, True], ids=["no-mask", "mask"])
@pytest.mark.parametrize("ids", [None, 6, 30])
@pytest.mark.parametrize(("batch", "steps", "inputs", "units"), [(7, 5, 40, 33), (40, 3, 600, 130)], ids=str)
def test_lstm_on_the_core_gives_a_row_the_same_bits_whatever_its_batch(
    target, batch, steps, inputs, units, ids, mask
):
    layer, given, table = lstm_case(batch, steps, inputs, units, ids=ids, mask=mask, states=True)
    whole = operations.lstm(layer, given, table, sequences=True)
    for begin, end in ((0, 1), (1, batch), (2, 5)):
        piece = {name: array[begin:end] for name, array in given.items()}
        for part, right in zip(operations.lstm(layer, piece, table, sequences=True), whole, strict=True):
            assert part.tobytes() == right[begin:end].tobytes()


def test_lstm_on_arrays_that_do_not_fit_raises(where):
    layer, given, _ = lstm_case()
    for name, wrong in {"x": draw(B, T, 5), "mask": scattered(B, T + 1), "h0": draw(B, 8)}.items():
        with pytest.raises(ValueError, match=name):
            operations.lstm(layer, given | {name: wrong}, sequences=True)
