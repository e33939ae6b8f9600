"""Which kernel a call of an LSTM layer gets: what it is compiled for, and how it is cut into clusters.

A module of its own because this is arithmetic about sizes, and needs neither a GPU nor a compiler.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from cellerate.errors import ConfigError
from cellerate.kernels.spec import ACTIVATIONS

Direction = Literal["forward", "backward"]
# The units of a block, up to so many that a cluster of 16 blocks has, and beyond.
_BLOCK_UNITS, _LARGE_BLOCK_UNITS, _MOST_OF_SMALL_BLOCKS = 32, 64, 512
MOST_UNITS = 1024
# Of a thread block on sm_90: what CUDA calls the opt-in limit.
SHARED_BYTES = 232_448
_ROWS = (8, 16, 32)
# Bytes of a number, and the numbers that it is split into for the matrix units.
_NUMBERS = {"bfloat16": (2, 1), "float16": (2, 1), "float32": (4, 2)}
# A product of a warp takes 32 bytes of each of 16 rows: 16 bytes a thread. The threads of a block share 65,536
# registers; this is how many products' weights all of them together keep there.
_PRODUCT_BYTES = 32
_WORDS_BYTES = 16
_PRODUCTS_IN_REGISTERS = 32 * 256


@dataclasses.dataclass(frozen=True)
class Tiers:
    """Where the weights of a warp lie, in products; `Weights` of lstm.cuh spreads them over their order of use.

    Attributes:
        registers: Those in registers.
        shared: Those in shared memory.
        streamed: Those in memory, which is too far away to be asked only when they are needed.
    """

    registers: int
    shared: int
    streamed: int


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the recurrent kernel becomes what a kernel reads: `weights.reshape(shape).transpose(axes)`, contiguous.

    `weights` are Keras's, (H, 4, H), padded with zeros to (units, 4, units). What comes out are the parts of 16 bytes
    that a thread has of the operands of `multiply_add` in device.cuh: (block, product, tile, lane, part, number), where
    each axis but block is one or several of `shape`. A block's weights are a matrix, cut into tiles of 16 rows and
    products of 32 bytes of each row. With w the numbers of 4 bytes, lane l has as number n of part p, of its tile and
    its product, row l // 4 + 8 * (p % 2) and column (l % 4 + 4 * (p // 2)) * w + n. The matrix of the block with the
    units u is

    - forward: columns are the units of h; tile t has of the units 4 * t to 4 * t + 3 all gates, its row r is gate
      r // 8 * 2 + r % 2 of unit 4 * t + r % 8 // 2.
    - forward with masks of recurrent dropout: columns are the units of h; tile t is gate t % 4 of the 16 units from
      t // 4 * 16 on.
    - backward: rows are the units of h; column c is gate c // block_units of unit c % block_units.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for.

    Attributes:
        direction: The forward or the backward recurrence.
        number: The type of weights, inputs, outputs and h: "bfloat16", "float16" or "float32"; c and all sums are
            float32.
        units: H, as `padded_units` rounds it up.
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
        if not 0 < self.units <= MOST_UNITS or self.units % self.block_units:
            raise ConfigError(
                f"units is {self.units}; expected a multiple of {_BLOCK_UNITS}, beyond {_MOST_OF_SMALL_BLOCKS} one of "
                f"{_LARGE_BLOCK_UNITS}, at most {MOST_UNITS}."
            )
        if self.rows not in _ROWS:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, _ROWS))}.")
        for name in (self.activation, self.recurrent_activation):
            if name not in ACTIVATIONS:
                raise ConfigError(f"{name!r} is none of the activations that kernels know.")

    @property
    def block_units(self) -> int:
        """Units of a thread block."""
        return _block_units(self.units)

    @property
    def threads(self) -> int:
        """Of a block: a warp for each four of its units."""
        return 8 * self.block_units

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""
        return self.units // self.block_units

    @property
    def tiers(self) -> Tiers:
        """Where the weights lie: as near as there is room."""
        number, _ = _NUMBERS[self.number]
        if self.direction == "forward":
            products = self.units * number // _PRODUCT_BYTES
        else:
            unit_tiles = -(-self.units // 16 // (self.threads // 32))
            products = unit_tiles * (4 * self.block_units * number // _PRODUCT_BYTES)
        registers = min(products, _PRODUCTS_IN_REGISTERS // self.threads)
        room = max(0, SHARED_BYTES - self._exchange_bytes) // (_WORDS_BYTES * self.threads)
        shared = min(products - registers, room)
        return Tiers(registers, shared, products - registers - shared)

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block; the kernel's source checks that it is this."""
        total = self._exchange_bytes + _WORDS_BYTES * max(1, self.tiers.shared * self.threads)
        return -(-total // 128) * 128

    @property
    def _exchange_bytes(self) -> int:
        """What stands in shared memory before the weights."""
        number, split = _NUMBERS[self.number]
        copies = 4 if self.dropped else 1
        if self.direction == "forward":
            block = number * self.rows * self.block_units
            sums = 4 * self.rows * self.block_units if self.dropped else 1
            total = 2 * (self.blocks + 1) * copies * split * block + 4 * block + 16 + 4 * sums
        else:
            part = 4 * self.rows * self.block_units
            dropout = 4 * self.units * self.rows if self.dropped else 1
            total = 4 * self.blocks * part + number * split * self.rows * 4 * self.block_units
            total += -(-number * dropout // 8) * 8 + 16
        return -(-total // _WORDS_BYTES) * _WORDS_BYTES


def _block_units(units: int) -> int:
    return _BLOCK_UNITS if units <= _MOST_OF_SMALL_BLOCKS else _LARGE_BLOCK_UNITS


def padded_units(units: int) -> int:
    """H rounded up to what a cluster divides among its blocks."""
    return -(-units // _block_units(units)) * _block_units(units)


def packing(variant: Variant) -> Packing:
    """In what order a kernel reads the recurrent kernel, whatever its rows are."""
    word = 4 // _NUMBERS[variant.number][0]
    products = variant.units // (8 * word)
    # The axes' names, in the order in which the numbers lie in (H, 4, H), and in the order in which they are read.
    if variant.direction == "backward":
        of_h = {"tile": variant.units // 16, "upper": 2, "group": 8}
        of_gates = {"gate": 4}
        of_units = {
            "block": variant.blocks,
            "product": variant.block_units // (8 * word),
            "half": 2,
            "quarter": 4,
            "number": word,
        }
        read = "block gate product tile group quarter half upper number"
    elif variant.dropped:
        of_h = {"product": products, "half": 2, "quarter": 4, "number": word}
        of_gates = {"gate": 4}
        of_units = {"block": variant.blocks, "tile": variant.block_units // 16, "upper": 2, "group": 8}
        read = "block product tile gate group quarter half upper number"
    else:
        of_h = {"product": products, "half": 2, "quarter": 4, "number": word}
        of_gates = {"upper": 2, "gate": 2}
        of_units = {"block": variant.blocks, "tile": variant.block_units // 4, "unit": 4}
        read = "block product tile unit gate quarter half upper number"
    axes = of_h | of_gates | of_units
    return Packing(tuple(axes.values()), tuple(list(axes).index(name) for name in read.split()))


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
