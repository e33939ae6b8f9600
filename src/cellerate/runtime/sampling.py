"""Choosing the next token from logits: temperature, top-k, top-p, and a seed that repeats.

A module of its own because every generator (Keras steppers now, others later) samples with exactly these
rules, and because sampling needs NumPy alone. All arithmetic is in float64.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, ModelError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the filters apply in the order temperature, top-k, top-p.

    Attributes:
        temperature: The logits are divided by it; 0 always takes the likeliest token.
        top_k: Only the `top_k` likeliest tokens can be drawn; None for all.
        top_p: Only the smallest set of likeliest tokens with at least this share of the probability can be
            drawn; None for all. At least one token always remains.
        seed: The same seed draws the same tokens; None draws others each time.

    Raises:
        ConfigError: A value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (_is_real(self.temperature) and math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"temperature must be a finite number of at least 0, got {self.temperature!r}. "
                "Use 0 for the likeliest token each time, 1 for the model's own distribution."
            )
        if self.top_k is not None and not (_is_integer(self.top_k) and self.top_k >= 1):
            raise ConfigError(f"top_k must be an integer of at least 1, or None for all, got {self.top_k!r}.")
        if self.top_p is not None and not (_is_real(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(
                f"top_p must be a number above 0 and at most 1, or None for all, got {self.top_p!r}."
            )
        if self.seed is not None and not (_is_integer(self.seed) and self.seed >= 0):
            raise ConfigError(f"seed must be an integer of at least 0, or None, got {self.seed!r}.")

    def generator(self) -> np.random.Generator:
        """A fresh random generator of `seed`: each call starts the same sequence again."""
        return np.random.Generator(np.random.PCG64(self.seed))


def sample(logits: np.ndarray, sampling: Sampling, rng: np.random.Generator) -> np.ndarray:
    """Draws one token id for each row of logits.

    Args:
        logits: (B, V), any float dtype; unnormalised log-probabilities.
        sampling: The rules.
        rng: Where the randomness comes from; temperature 0 uses none of it. `Sampling.generator` makes one.

    Returns:
        (B,) int64, the ids.

    Raises:
        ModelError: The logits are not (B, V), or hold a NaN or an infinity.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ModelError(f"logits must have the shape (batch, vocabulary), got {values.shape}.")
    if not np.isfinite(values).all():
        raise ModelError(
            "the model gave a NaN or an infinity as a logit, so there is no distribution to draw from. "
            "Its training has diverged: go back to an earlier checkpoint, or train with a lower learning "
            "rate or gradient clipping."
        )
    if sampling.temperature == 0:
        return values.argmax(axis=1)
    # Subtracting the maximum first keeps a tiny temperature from overflowing: 0 stays 0, others go to -inf.
    values = values - values.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        values /= sampling.temperature
    weights = np.exp(values)
    filtered = sampling.top_k is not None or (sampling.top_p is not None and sampling.top_p < 1)
    if filtered:
        # Stable and descending, so that of equal logits the lower id goes first and exactly k remain.
        order = np.argsort(-weights, axis=1, kind="stable")
        weights = _filter(np.take_along_axis(weights, order, axis=1), sampling)
    cumulative = weights.cumsum(axis=1)
    total = cumulative[:, -1:]
    # Inverse of the distribution function. The place is kept below the total, so the first cumulative value
    # ABOVE it exists and is one that rose: a token of zero weight is never met.
    place = np.minimum(rng.random(len(values))[:, None] * total, np.nextafter(total, 0))
    chosen = (cumulative > place).argmax(axis=1)
    return np.take_along_axis(order, chosen[:, None], axis=1)[:, 0] if filtered else chosen


def _filter(weights: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Zeroes what top-k and then top-p rule out of weights (B, V) sorted in descending order."""
    if sampling.top_k is not None:
        weights[:, sampling.top_k :] = 0
    if sampling.top_p is not None and sampling.top_p < 1:
        cumulative = weights.cumsum(axis=1)
        # A token stays while the mass BEFORE it is short of top_p, so the one that reaches it stays too.
        before = cumulative - weights
        weights[before >= sampling.top_p * cumulative[:, -1:]] = 0
    return weights


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
