"""Which kernel a call of an LSTM layer gets: what it is compiled for, and how it is cut into clusters.

A module of its own because this is arithmetic about sizes, and needs neither a GPU nor a compiler.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from cellerate.errors import ConfigError
from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.kernel import SHARED_BYTES, clusters
from cellerate.kernels.lstm.spec import ACTIVATIONS

Direction = Literal["forward", "backward"]
# The units of a block, up to so many that a cluster of 16 blocks has, and beyond.
_BLOCK_UNITS, _LARGE_BLOCK_UNITS, _MOST_OF_SMALL_BLOCKS = 32, 64, 512
MOST_UNITS = 1024
ROWS = (8, 16, 24, 32, 40)
# Bytes of a number, and the numbers that it is split into for the matrix units.
NUMBER_BYTES = {"bfloat16": (2, 1), "float16": (2, 1), "float32": (4, 2), "tf32": (4, 1)}
# A product of a warp takes 32 bytes of each of 16 rows of weights: 16 bytes, or 4 registers, a thread.
PRODUCT_BYTES = 32
WORDS_BYTES = 16
_WORDS_REGISTERS = 4
# The threads of a block share so many registers, and keep the weights of at most so many products there.
_REGISTERS = 65_536
_PRODUCTS_IN_REGISTERS = 32 * 256
_FEWEST_PRODUCTS_IN_REGISTERS = 4


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
        number: The type of weights, inputs, outputs and h: "bfloat16", "float16", "float32", or "tf32": float32, of
            which products take the first 19 bits; c and all sums are float32.
        units: H, as `padded_units` rounds it up.
        rows: Rows of the batch that a cluster computes: one of `ROWS`.
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
        if self.number not in NUMBER_BYTES:
            raise ConfigError(f"number is {self.number!r}; expected one of {', '.join(NUMBER_BYTES)}.")
        if not 0 < self.units <= MOST_UNITS or self.units % self.block_units:
            raise ConfigError(
                f"units is {self.units}; expected a multiple of {_BLOCK_UNITS}, beyond {_MOST_OF_SMALL_BLOCKS} one of "
                f"{_LARGE_BLOCK_UNITS}, at most {MOST_UNITS}."
            )
        if self.rows not in ROWS:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, ROWS))}.")
        for name in (self.activation, self.recurrent_activation):
            if name not in ACTIVATIONS:
                raise ConfigError(f"{name!r} is none of the activations that kernels know.")

    @property
    def name(self) -> str:
        """The function in what is compiled."""
        return f"cellerate_lstm_{self.direction}"

    @property
    def source(self) -> str:
        """All of the source, as one text."""
        tiers = self.tiers
        options = ", ".join(
            [
                sources.NUMBERS[self.number],
                str(self.units),
                str(self.block_units),
                str(self.rows),
                *(sources.activation(name) for name in (self.activation, self.recurrent_activation)),
                str(self.masked).lower(),
                str(self.dropped).lower(),
                f"Tiers<{tiers.registers}, {tiers.shared}>",
            ]
        )
        direction = self.direction
        entry = f"""
using namespace cellerate::gpu;
using Compiled = Plan<{options}>;
static_assert(sizeof({direction.capitalize()}Shared<Compiled>) == {self.shared_bytes});
static_assert(Compiled::kThreads == {self.threads});
extern "C" __global__ __cluster_dims__({self.blocks}) __launch_bounds__({self.threads}, 1)
void {self.name}(const __grid_constant__ {direction.capitalize()}Arguments<Compiled::Number> in) {{
  lstm_{direction}<Compiled>(in);
}}
"""
        return sources.whole(f"lstm_{direction}.cuh") + entry

    @property
    def block_units(self) -> int:
        """Units of a thread block."""
        return block_units(self.units)

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
        number, _ = NUMBER_BYTES[self.number]
        if self.direction == "forward":
            products = self.units * number // PRODUCT_BYTES
        else:
            products = self._unit_tiles * (4 * self.block_units * number // PRODUCT_BYTES)
        most = _PRODUCTS_IN_REGISTERS // self.threads
        registers = min(products, max(1, min(most, self._register_room)))
        room = max(0, SHARED_BYTES - self._exchange_bytes) // (WORDS_BYTES * self.threads)
        shared = min(products - registers, room)
        return Tiers(registers, shared, products - registers - shared)

    @property
    def fits(self) -> bool:
        """Whether a block has the shared memory, and registers for what it computes and some weights."""
        return self.shared_bytes <= SHARED_BYTES and self._register_room >= _FEWEST_PRODUCTS_IN_REGISTERS

    @property
    def _register_room(self) -> int:
        """About how many products' weights a thread has registers for: of more, the compiler keeps some in memory."""
        number, split = NUMBER_BYTES[self.number]
        # Of each tile of eight rows: what is multiplied, the sums, and the states.
        each = 4 * split + self.masked
        if self.direction == "forward":
            each += 4 * split + number + 1 + 4 * self.dropped
        else:
            each += 4 * self._unit_tiles * (2 if self.dropped else 1) + number + 6
        others = 36 + 8 * (split - 1) + each * self.rows // 8
        return (min(255, _REGISTERS // self.threads) - others) // _WORDS_REGISTERS

    @property
    def _masks_shared(self) -> bool:
        """Whether backward has room in shared memory for the masks of recurrent dropout."""
        return NUMBER_BYTES[self.number][0] < 4 or self.block_units == _BLOCK_UNITS

    @property
    def _unit_tiles(self) -> int:
        """Tiles of 16 units for each warp, in the backward recurrence."""
        return -(-self.units // 16 // (self.threads // 32))

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block; the kernel's source checks that it is this."""
        total = self._exchange_bytes + WORDS_BYTES * max(1, self.tiers.shared * self.threads)
        return -(-total // 128) * 128

    @property
    def _exchange_bytes(self) -> int:
        """What stands in shared memory before the weights."""
        number, split = NUMBER_BYTES[self.number]
        block = number * self.rows * self.block_units
        masks = 4 * number * self.units * self.rows if self.dropped else 8
        if self.direction == "forward":
            parts = 1 if self.dropped else split
            sums = 4 * self.rows * self.block_units if self.dropped else 1
            total = 2 * (self.blocks + 1) * parts * block + 4 * block + masks + 16 + 4 * sums
        else:
            total = 4 * self.blocks * block + 4 * split * block + (masks if self._masks_shared else 8) + 16
        return -(-total // WORDS_BYTES) * WORDS_BYTES


def block_units(units: int) -> int:
    """Units of a thread block, of a layer with so many: a cluster has 16 blocks at most."""
    return _BLOCK_UNITS if units <= _MOST_OF_SMALL_BLOCKS else _LARGE_BLOCK_UNITS


def padded_units(units: int) -> int:
    """H rounded up to what a cluster divides among its blocks."""
    return -(-units // block_units(units)) * block_units(units)


def packing(variant: Variant) -> Packing:
    """In what order a kernel reads the recurrent kernel, whatever its rows are."""
    word = 4 // NUMBER_BYTES[variant.number][0]
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
    """The variant with each number of rows that fits a block, ascending: all fit with 8."""
    found = [dataclasses.replace(variant, rows=rows) for rows in ROWS]
    return [one for one in found if one.fits]


def choose(
    variant: Variant, batch: int, resident: Callable[[Variant], int], step_us: Callable[[Variant], float]
) -> Variant:
    """The variant with the number of rows that takes the least time for a batch.

    Clusters that the GPU cannot run at once run in waves, one after the other. Where one wave is enough, the fewest
    rows are the fastest, and nothing has to be measured.

    Args:
        variant: With any number of rows.
        batch: B.
        resident: How many clusters of a variant the GPU runs at once.
        step_us: How long a step of a variant takes in a full wave, in microseconds.
    """
    found = fitting(variant)

    def waves(one: Variant) -> int:
        return -(-clusters(one.rows, batch) // max(1, resident(one)))

    if waves(found[0]) == 1:
        return found[0]
    return min(found, key=lambda one: (waves(one) * step_us(one), one.rows))
