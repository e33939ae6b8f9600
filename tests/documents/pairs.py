"""Each program trained as it is and accelerated, once for all tests of a process, and how far the two may differ."""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from documents.autoencoder import AUTOENCODER, BATCH_OF_ONE
from documents.character_model import CHARACTER_MODEL
from documents.long_records import LONG_RECORDS
from documents.program import Program
from documents.six_steps import SIX_STEPS
from documents.text_generation import TEXT_GENERATION
from support.rounding import allowed

PROGRAMS = (TEXT_GENERATION, CHARACTER_MODEL, LONG_RECORDS, SIX_STEPS, BATCH_OF_ONE, AUTOENCODER)
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=str)
# The same, where one takes seconds.
each_in_time = pytest.mark.parametrize(
    "program", [pytest.param(each, marks=[pytest.mark.slow] * each.slow) for each in PROGRAMS], ids=str
)
# Two layers, each with the sums of two products, the pointwise part and a normalization, and the head.
_ROUNDINGS = 2 * 6 + 2


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model that was trained twice from the same weights.

    Attributes:
        stock: As Keras runs it.
        ours: Accelerated.
        losses: What both lost, by its name in the history.
    """

    stock: keras.Model
    ours: keras.Model
    losses: dict[str, tuple[list[float], list[float]]]


@functools.cache
def trained(program: Program) -> Pair:
    """A program run as it is, and with one line more.

    The engine drops other numbers than Keras, so steps with dropout are Keras's own.
    """
    stock, ours = program.build(), program.build()
    drops = any(isinstance(layer, keras.layers.Dropout) and layer.rate > 0 for layer in ours.layers)
    cellerate.accelerate(ours, engine="off" if drops else "auto")
    histories = []
    for model in (stock, ours):
        # On torch, Keras's Dropout draws from the generator of all.
        keras.utils.set_random_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            histories.append(program.train(model, Path(folder)))
    return Pair(stock, ours, {n: (v, histories[1][n]) for n, v in histories[0].items() if "loss" in n})


@functools.cache
def accelerated(program: Program) -> keras.Model:
    """An accelerated model to use: trained, if that is not slow. No test may change it."""
    if not program.slow:
        return trained(program).ours
    model = cellerate.accelerate(program.build())
    # As from its first step on: Keras warns of a saved model whose optimizer has no variables.
    model.optimizer.build(model.trainable_variables)
    return model


def assert_near(found: Any, expected: Any, *, backward: bool = False) -> None:
    """Both may be off by the rounding of sums, of the layers forward and, for gradients, backward."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    # The longest sums are over the characters.
    limit = 2 * allowed("float32", _ROUNDINGS * (2 if backward else 1), 128)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0
    error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
    assert error <= limit, f"off by {error:.1e}, {limit:.1e} allowed"
