"""LSTMs with the policy mixed_bfloat16 compute in bfloat16 on the engine if the processor multiplies bfloat16."""

import keras
import numpy as np
import pytest

from cellerate.kernels import native
from cellerate.models.rewrite import with_dtype_policy
from support.keras_models.engine_models import CASES, data_of, trained

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROWS = 24
NARROW = ("amx", "avx512bf16")
"""The targets that multiply bfloat16."""


def moved(model: keras.Model, case: str, engine: str | None) -> tuple[np.ndarray, list[float]]:
    """The change of all weights in one SGD step, and the losses before and after it."""
    row = CASES[case]
    x, y = data_of(row.data, ROWS)
    made, history = trained(
        model, row, lambda: keras.optimizers.SGD(0.5), engine, x=x, y=y, batch_size=ROWS, epochs=1
    )
    changes = [one - other for one, other in zip(made.get_weights(), model.get_weights(), strict=True)]
    after = made.evaluate(x, y, ROWS, verbose=0, return_dict=True)["loss"]
    return np.concatenate([change.ravel() for change in changes]), [history["loss"][0], after]


# Steps in every direction; masks and looked-up ids; first and last states; the input in ids.
@pytest.mark.parametrize("case", ["bidirectional", "autoencoder", "masked", "sentiment", "translator"])
def test_error_of_a_step_is_close_to_that_of_stock_keras(case: str) -> None:
    keras.utils.set_random_seed(1)
    model = CASES[case].model()
    narrow = with_dtype_policy(model, "mixed_bfloat16")
    exact, losses = moved(model, case, None)
    ours, our_losses = moved(narrow, case, "require")
    stock, _ = moved(narrow, case, None)
    size = float(np.linalg.norm(exact))
    # Both round to the same type, but at different points.
    assert np.linalg.norm(ours - exact) <= 2 * np.linalg.norm(stock - exact) + 1e-4 * size
    np.testing.assert_allclose(our_losses, losses, rtol=0.02)
    error = float(np.linalg.norm(ours - exact)) / size
    # On other targets float32 is as fast, and exact.
    assert (error > 1e-4) == (native.target() in NARROW)


def test_dropout_and_batches_of_several_pieces_stay_close_to_keras() -> None:
    keras.utils.set_random_seed(1)
    series = keras.Input((6, 3))
    hidden = keras.layers.LSTM(8, return_sequences=True, dropout=0.2, recurrent_dropout=0.1)(series)
    hidden = keras.layers.LSTM(8, dropout=0.2, return_sequences=True)(hidden)
    model = keras.Model(series, keras.layers.Dense(2)(keras.layers.LSTM(8)(hidden)))
    x, y = data_of("series", 70)
    results = []
    for policy in ("float32", "mixed_bfloat16"):
        made = with_dtype_policy(model, policy)
        row = CASES["plain"]
        made, history = trained(
            made,
            row,
            lambda: keras.optimizers.Adam(0.01),
            "require",
            x=x[:, :6],
            y=y,
            batch_size=35,
            epochs=6,
        )
        results.append(history["loss"])
    # The seeds of the layers are those of the first copy, so both drop the same numbers.
    np.testing.assert_allclose(results[1], results[0], rtol=0.02)
    assert results[1][-1] < 0.96 * results[1][0]
