"""No program is slower accelerated than as Keras runs it, on an idle machine and beside one busy program."""

import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest

import cellerate
from cellerate.measure import Order
from documents import autoencoder, character_model, long_records, six_steps, text_generation
from documents.autoencoder import AUTOENCODER, BATCH_OF_ONE, Pieces
from documents.pairs import each_program
from documents.program import Program, records, text_ids
from support.turns import busy_programs, ratios

pytestmark = [pytest.mark.keras, pytest.mark.backends, pytest.mark.few_steps, pytest.mark.slow]

# What two timings of one thing may differ by, as in tests/layers/test_small_calls.py.
NOISE = 1.1
STEPS, PAIRS, SECONDS = 20, 40, 6
# The data of those programs that `tf.data` feeds.
DATA = {
    text_generation.TEXT_GENERATION: lambda: text_generation.dataset(1),
    character_model.CHARACTER_MODEL: lambda: character_model.dataset(text_ids()),
    long_records.LONG_RECORDS: lambda: long_records.dataset(records(200, long_records.FEATURES)),
    six_steps.SIX_STEPS: six_steps.dataset,
}
each_machine = pytest.mark.parametrize("busy", [0, 1], ids=["idle", "busy"])


@pytest.fixture(scope="module", autouse=True)
def _torch_on_one_thread() -> None:
    """Both run on as many threads here as their reader has."""


@functools.cache
def batch(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """A batch of the program, as often as a timed call has steps, so that no data are made while it is timed."""
    if program is BATCH_OF_ONE:
        x, y = Pieces(1, 1, itself=False)[0]
    elif program is AUTOENCODER:
        x, y = Pieces(1, autoencoder.BATCH, itself=True)[0]
    else:
        ((x, y),) = ((x.numpy(), y.numpy()) for x, y in DATA[program]().take(1))
    return np.tile(x, (STEPS, *[1] * (x.ndim - 1))), np.tile(y, (STEPS, *[1] * (y.ndim - 1)))


def judge(stock: Callable[[], object], ours: Callable[[], object], busy: int) -> None:
    for call in (stock, ours) * 2:
        call()
    with busy_programs(busy):
        order = Order(tuple(ratios(ours, stock, PAIRS, SECONDS)))
    # A machine that others use, too, proves nothing: slower is what is slower in turn after turn.
    assert order.interval[1] >= 1 / NOISE, f"as fast as Keras, times {order.reach}"


@each_machine
@each_program
def test_training_is_not_slower_than_with_keras(program: Program, busy: int) -> None:
    models, (x, y) = (program.build(), cellerate.accelerate(program.build())), batch(program)

    def train(model: keras.Model) -> None:
        model.fit(x, y, len(x) // STEPS, shuffle=False, verbose=0)

    judge(*(functools.partial(train, model) for model in models), busy)


@each_machine
@each_program
def test_predicting_is_not_slower_than_with_keras(program: Program, busy: int) -> None:
    models, (x, _) = (program.build(), cellerate.accelerate(program.build())), batch(program)

    def predict(model: keras.Model) -> None:
        model.predict(x, len(x) // STEPS, verbose=0)

    judge(*(functools.partial(predict, model) for model in models), busy)
