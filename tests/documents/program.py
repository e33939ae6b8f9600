"""A reader's program: a model of their own, its data, and how they train it."""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

EPOCHS, STEPS_PER_EPOCH = 3, 100


@dataclasses.dataclass(frozen=True)
class Program:
    """A model and what its reader does with it; everything is the same at each call.

    Attributes:
        name: Of the program.
        build: Makes the model, compiled, with the same weights each time.
        train: Trains a model for `EPOCHS` epochs of `STEPS_PER_EPOCH` steps with `fit`, and gives its history. What it
            writes goes into the folder.
        inputs: A batch that the model reads.
        characters: What the ids stand for, of a model that predicts the next character; else empty.
        slow: Whether the suite leaves its 300 steps, and uses that take as long, to `make test-slow`.
    """

    name: str
    build: Callable[[], keras.Model]
    train: Callable[[keras.Model, Path], dict[str, list[float]]]
    inputs: Callable[[], np.ndarray]
    characters: tuple[str, ...] = ()
    slow: bool = False

    def __str__(self) -> str:
        return self.name


def fit(model: keras.Model, data: Any, **options: Any) -> dict[str, list[float]]:
    """The history of a training that takes the data in their order."""
    return model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, **options).history


@functools.cache
def text() -> str:
    """A text that every Python has: some 70,000 characters of it."""
    return Path(argparse.__file__).read_text()[:70_000]


@functools.cache
def characters() -> tuple[str, ...]:
    """The characters of the text, in the order of their ids."""
    return tuple(sorted(set(text())))


@functools.cache
def text_ids() -> np.ndarray:
    """(N,) int32: the text as ids."""
    ids = {character: n for n, character in enumerate(characters())}
    return np.array([ids[character] for character in text()], np.int32)


@functools.cache
def records(count: int, features: int) -> np.ndarray:
    """(count, features) float32: waves of several lengths with noise, of which the next record can be foreseen."""
    random = np.random.default_rng(0)
    periods = random.uniform(5, 40, features)
    waves = np.sin(2 * np.pi * np.arange(count)[:, None] / periods + random.uniform(0, 6, features))
    return (waves + random.normal(scale=0.2, size=waves.shape)).astype(np.float32)
