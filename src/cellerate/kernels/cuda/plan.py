"""Which kernel a call of an LSTM layer gets: what it is compiled for, and how it is cut into clusters.

A module of its own because this is arithmetic about sizes, and needs neither a GPU nor a compiler.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from cellerate.errors import ConfigError
from cellerate.kernels.spec import ACTIVATIONS

Direction = Literal["forward", "backward"]
BLOCK_UNITS = 32
THREADS = 256
# Of a thread block on sm_90: what CUDA calls the opt-in limit.
SHARED_BYTES = 232_448
# Those that one thread needs for the weights of a block of 32 units: with more of them the registers run out.
MOST_UNITS = 512
_ROWS = (8, 16, 32)
# Bytes of a number, and the numbers that it is split into for the matrix units.
_NUMBERS = {"bfloat16": (2, 1), "float16": (2, 1), "float32": (4, 2)}
# A product of a warp takes 32 bytes of each row; a thread has registers for the weights of so many.
_PRODUCT_BYTES = 32
_PRODUCTS_IN_REGISTERS = 32


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for.

    Attributes:
        direction: The forward or the backward recurrence.
        number: The type of weights, inputs, outputs and h: "bfloat16", "float16" or "float32"; c and all sums are
            float32.
        units: H, rounded up to a multiple of 32.
        rows: Rows of the batch that a cluster computes: 8, 16 or 32.
        activation: One of `spec.ACTIVATIONS`.
        recurrent_activation: One of them.
        masked: Whether there is a mask.
        dropped: Whether h is multiplied by a mask of its own for each gate (recurrent_dropout).

    Raises:
        ConfigError: There is no such kernel.
    """

    direction: Direction
    number: str
    units: int
    rows: int
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    masked: bool = False
    dropped: bool = False

    def __post_init__(self) -> None:
        if self.number not in _NUMBERS:
            raise ConfigError(f"number is {self.number!r}; expected one of {', '.join(_NUMBERS)}.")
        if self.units % BLOCK_UNITS or not 0 < self.units <= MOST_UNITS:
            raise ConfigError(
                f"units is {self.units}; expected a multiple of {BLOCK_UNITS}, at most {MOST_UNITS}."
            )
        if self.rows not in _ROWS:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, _ROWS))}.")
        for name in (self.activation, self.recurrent_activation):
            if name not in ACTIVATIONS:
                raise ConfigError(f"{name!r} is none of the activations that kernels know.")

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""
        return self.units // BLOCK_UNITS

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block; the kernel's source checks that it is this."""
        number, split = _NUMBERS[self.number]
        copies = 4 if self.dropped else 1
        if self.direction == "forward":
            block = number * self.rows * BLOCK_UNITS
            sums = 4 * self.rows * BLOCK_UNITS if self.dropped else 1
            total = 2 * (self.blocks + 1) * copies * split * block + 4 * block + 16 + 4 * sums
            products = self.units * number // _PRODUCT_BYTES
        else:
            part = 4 * self.rows * BLOCK_UNITS
            dropout = 4 * self.units * self.rows if self.dropped else 1
            total = 4 * self.blocks * part + number * split * self.rows * 4 * BLOCK_UNITS
            total += -(-number * dropout // 8) * 8 + 16
            unit_tiles = -(-self.units // (16 * THREADS // 32))
            products = unit_tiles * (4 * BLOCK_UNITS * number // _PRODUCT_BYTES)
        rest = max(0, products - _PRODUCTS_IN_REGISTERS) * THREADS
        total = -(-total // 16) * 16 + 16 * max(1, rest)
        return -(-total // 128) * 128


def padded_units(units: int) -> int:
    """H rounded up to what a cluster divides among its blocks."""
    return -(-units // BLOCK_UNITS) * BLOCK_UNITS


def fitting(variant: Variant) -> list[Variant]:
    """The variant with each number of rows whose shared memory a block has, ascending."""
    found = [dataclasses.replace(variant, rows=rows) for rows in _ROWS]
    return [one for one in found if one.shared_bytes <= SHARED_BYTES]


def choose(variant: Variant, batch: int, resident: Callable[[Variant], int]) -> Variant:
    """The variant with the number of rows that is likely the fastest for a batch.

    A step of few rows takes hardly less time than one of many, since most of it is waiting for the other blocks of
    the cluster: so the fewest waves count, and of those the fewest rows.

    Args:
        variant: With any number of rows.
        batch: B.
        resident: How many clusters of a variant the GPU runs at once.

    Raises:
        ConfigError: It fits with no number of rows.
    """
    fit = fitting(variant)
    if not fit:
        raise ConfigError(f"{variant.units} units need more shared memory than a block has.")

    def waves(one: Variant) -> int:
        return -(-clusters(one, batch) // max(1, resident(one)))

    return min(fit, key=lambda one: (waves(one), one.rows))


def clusters(variant: Variant, batch: int) -> int:
    """How many clusters a batch takes."""
    return -(-batch // variant.rows)
