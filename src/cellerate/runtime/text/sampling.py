"""Choosing the next token from logits in NumPy, by the rules and the random numbers of the native core.

It serves models that only Keras can step, whose logits arrive in Python: the text must not depend on who computed
the logits. `csrc/engine/sampler.cpp` defines the rules; all arithmetic is in float64.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_whole, ids_array
from cellerate.kernels.decoder.sampling import DIVERGED, SamplingRules

_LARGEST = float(np.finfo(np.float64).max)


def sampling_rules(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
) -> SamplingRules:
    """The rules, from arguments as users give them.

    Args:
        temperature: As in `SamplingRules`, like all the others.
        top_k: None for all.
        top_p: None for all.
        min_p: 0 for all.
        repetition_penalty: 1 for none.
        seed: None for a new random one at each call.

    Raises:
        ConfigError: A value is out of its range.
    """
    return SamplingRules(
        repetition_penalty=repetition_penalty,
        temperature=temperature,
        top_k=top_k,
        top_p=1.0 if top_p is None else top_p,
        min_p=min_p,
        seed=secrets.randbits(64) if seed is None else seed,
    )


def sample(
    logits: np.ndarray,
    rules: SamplingRules,
    position: int = 0,
    previous: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws one id for each row of logits: the same ids as `kernels.decoder.sampling.sample`.

    Args:
        logits: (B, V), any float dtype; unnormalised log-probabilities.
        rules: How to draw. Row r uses the stream `rules.stream + r`.
        position: The place of these ids in their sequences. The random numbers depend only on it, the seed and the
            stream.
        previous: The ids so far of each row, (N,) integers, for the penalty; None for none.

    Returns:
        The ids (B,) int64, and their log probabilities (B,) float32 under the model itself, ln softmax(logits),
        before any of the rules.

    Raises:
        ConfigError: The position is out of range, or `previous` has another number of rows than the logits.
        DataError: An id of `previous` is negative.
        ModelError: The logits are not (B, V), or hold a NaN or an infinity.
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ModelError(f"logits must have the shape (batch, vocabulary), not {values.shape}.")
    if not np.isfinite(values).all():
        raise ModelError(DIVERGED)
    check_whole("position", position, 0, 2**63 - 1)
    if previous is not None and len(previous) != len(values):
        raise ConfigError(f"previous has the ids of {len(previous)} rows; the logits have {len(values)}.")
    ids = _chosen(_penalised(values, rules, previous), rules, position)[:, None]
    log_probabilities = np.take_along_axis(log_softmax(values), ids, 1)
    return ids[:, 0], log_probabilities[:, 0].astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """(..., V) float64: the log probabilities of finite logits."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _penalised(values: np.ndarray, rules: SamplingRules, previous: Sequence[np.ndarray] | None) -> np.ndarray:
    """The logits (B, V) after the repetition penalty; a new array if it does anything."""
    if rules.repetition_penalty == 1 or previous is None:
        return values
    values = values.copy()
    for row, came in zip(values, previous, strict=True):
        seen = ids_array("previous", came, (None,), MOST_STEPS)[-(rules.penalty_window or len(came)) :]
        # The embedding may know more ids than there are logits.
        seen = seen[seen < len(row)]
        with np.errstate(over="ignore"):
            changed = np.where(
                row[seen] > 0, row[seen] / rules.repetition_penalty, row[seen] * rules.repetition_penalty
            )
        row[seen] = np.clip(changed, -_LARGEST, _LARGEST)
    return values


def _chosen(values: np.ndarray, rules: SamplingRules, position: int) -> np.ndarray:
    """The ids (B,) drawn from penalised logits (B, V)."""
    if rules.temperature == 0:
        return values.argmax(axis=1)
    # Subtracting the maximum first keeps a tiny temperature from overflowing: 0 stays 0, others go to -inf.
    with np.errstate(over="ignore"):
        weights = np.exp((values - values.max(axis=1, keepdims=True)) / rules.temperature)
    order = None
    if (rules.top_k or len(weights[0])) < len(weights[0]) or rules.top_p < 1:
        total = _running(weights)[:, -1:]
        # Stable and descending: of equal logits the lower id comes first, and exactly k remain.
        order = np.argsort(-weights, axis=1, kind="stable")
        weights = _filter(np.take_along_axis(weights, order, axis=1), total, rules)
    # The likeliest token has weight 1.
    weights[weights < rules.min_p] = 0
    cumulative = _running(weights)
    total = cumulative[:, -1:]
    # Inverts the distribution function. `place` is kept below the total, so a cumulative value ABOVE it exists,
    # and the first of these belongs to a token with weight: a token of zero weight is never drawn.
    drawn = [uniform(rules.seed, rules.stream + row, position) for row in range(len(weights))]
    place = np.minimum(np.array(drawn)[:, None] * total, np.nextafter(total, 0))
    chosen = (cumulative > place).argmax(axis=1)
    return chosen if order is None else np.take_along_axis(order, chosen[:, None], axis=1)[:, 0]


def _filter(weights: np.ndarray, total: np.ndarray, rules: SamplingRules) -> np.ndarray:
    """Zeroes the weights that top-k, then top-p rule out; weights (B, V) in descending order, their sums (B, 1)."""
    if rules.top_k is not None and rules.top_k < weights.shape[1]:
        weights[:, rules.top_k :] = 0
        total = _running(weights)[:, -1:]
    if rules.top_p < 1:
        # A token stays while the mass BEFORE it is below top_p, so the token that reaches top_p stays too.
        weights[:, 1:][_running(weights)[:, :-1] >= rules.top_p * total] = 0
    return weights


def _running(weights: np.ndarray) -> np.ndarray:
    """Running sums of each row, one weight after another, as the native core adds them (NumPy's `sum` does not)."""
    return weights.cumsum(axis=1)


def uniform(seed: int, stream: int, position: int) -> float:
    """A random number in [0, 1) of 53 bits: Philox4x32-10 with the seed as key, position and stream as counter.

    It uses Python integers: for the few rows of a generation they take a tenth of the time NumPy takes.
    """
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = position & low, position >> 32 & low, stream & low, stream >> 32 & low
    k0, k1 = seed & low, seed >> 32 & low
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & low, p0 >> 32 ^ c3 ^ k1, p0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return ((c1 << 32 | c0) >> 11) * 2.0**-53
