"""A shuffle that is a formula: any element of a random order of n items, without storing the order.

Every source of batches shuffles with it. An epoch depends on `(seed, epoch, index)` alone, which makes resuming
in the middle of an epoch exact. The integer hash is its own, not `numpy.random`, so an order never changes with
NumPy's version.
"""

from __future__ import annotations

import numpy as np

from cellerate.errors import ConfigError

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_MIX_1 = 0xBF58_476D_1CE4_E5B9
_MIX_2 = 0x94D0_49BB_1331_11EB
# Up to this many items the order is a stored table: with so few bits, a Feistel network is visibly not random.
_TABLE_LIMIT = 4096
_ROUNDS = 6
_SLICE = 16384


def derive_seed(seed: int, *keys: int) -> int:
    """A 64-bit seed made from `seed`, each key and its position, by the SplitMix64 finaliser.

    Args:
        seed: Any integer.
        *keys: Integers that tell one use of the seed from another, such as the epoch.

    Returns:
        An integer in [0, 2**64).
    """
    state = _finalise(seed & _MASK)
    for key in keys:
        state = _finalise(state ^ _finalise((key + _GOLDEN) & _MASK))
    return state


class Permutation:
    """A random-looking order of the numbers 0 to n-1, in constant memory.

    Above a few thousand items it is a Feistel network over the smallest power of two that is at least `n`.
    A result outside [0, n) goes through the network again until it falls inside (cycle walking, less than two
    passes on average). Smaller orders are a table sorted by the same hash.

    Args:
        n: The number of items, at least 1.
        seed: Any integer; another seed gives another order.

    Raises:
        ConfigError: `n` is smaller than 1 or larger than 2**62.

    Example:
        >>> order = Permutation(10, seed=1)
        >>> sorted(order(np.arange(10)).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    Source:
        J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking).
        G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014
        (the mixing constants).
    """

    def __init__(self, n: int, seed: int) -> None:
        if not 1 <= n <= 2**62:
            raise ConfigError(f"n is {n}; a permutation needs from 1 to 2**62 items.")
        self.n = n
        self._table: np.ndarray | None = None
        if n <= _TABLE_LIMIT:
            start = derive_seed(seed, n)
            self._table = np.argsort(_hash(np.arange(n, dtype=np.uint64) + np.uint64(start)), kind="stable")
            return
        bits = (n - 1).bit_length()
        self._low_bits = np.uint64(bits // 2)
        self._high_bits = np.uint64(bits - bits // 2)
        self._keys = [np.uint64(derive_seed(seed, n, turn)) for turn in range(_ROUNDS)]

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The numbers at positions `indices` of the order.

        Args:
            indices: Positions in [0, n), any shape, any integer dtype.

        Returns:
            int64 numbers in [0, n), same shape.

        Raises:
            IndexError: A position lies outside [0, n).
        """
        places = np.asarray(indices)
        if places.size and not (int(places.min()) >= 0 and int(places.max()) < self.n):
            raise IndexError(f"a place outside 0 to {self.n - 1} was asked of a permutation of {self.n}")
        if self._table is not None:
            return self._table[places]
        values = self._network(places.astype(np.uint64).ravel())
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            again = self._network(values[outside])
            values[outside] = again
            outside = outside[again >= self.n]
        return values.astype(np.int64).reshape(places.shape)

    def _network(self, values: np.ndarray) -> np.ndarray:
        low = values & ((np.uint64(1) << self._low_bits) - np.uint64(1))
        high = values >> self._low_bits
        for turn, key in enumerate(self._keys):
            # The halves may differ by one bit in width, so the rounds alternate instead of swapping them.
            if turn % 2:
                low ^= _round(high, key, self._low_bits)
            else:
                high ^= _round(low, key, self._high_bits)
        return (high << self._low_bits) | low


class ShuffledRuns:
    """Runs of a permutation, computed thousands at a time: one by one, Python would take most of the time.

    Args:
        order: The permutation.
    """

    def __init__(self, order: Permutation) -> None:
        self._order = order
        self._recent: tuple[int, np.ndarray] | None = None

    def run(self, first: int, last: int) -> np.ndarray:
        """The numbers at positions `first` to `last - 1`, int64 and read-only by contract. Any thread may call it."""
        parts = []
        for number in range(first // _SLICE, -(-last // _SLICE)):
            recent = self._recent
            if recent is None or recent[0] != number:
                begin = number * _SLICE
                recent = number, self._order(np.arange(begin, min(begin + _SLICE, self._order.n)))
                self._recent = recent  # a single assignment needs no lock
            begin = number * _SLICE
            parts.append(recent[1][max(0, first - begin) : last - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _finalise(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _hash(values: np.ndarray) -> np.ndarray:
    """The same finaliser over a uint64 array; products wrap around on purpose."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    return values ^ (values >> np.uint64(31))


def _round(half: np.ndarray, key: np.uint64, bits: np.uint64) -> np.ndarray:
    """The round function: the top `bits` bits of a keyed hash of the other half."""
    mixed = (half ^ key) * np.uint64(_MIX_1)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(_MIX_2)
    mixed >>= np.uint64(64) - bits
    return mixed
