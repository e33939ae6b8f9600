"""Which kernel a call of an LSTM layer gets: what it is compiled for, and how it is cut into clusters.

This is arithmetic about sizes; it needs neither a GPU nor a compiler.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

from cellerate.errors import ConfigError
from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.kernel import SHARED_BYTES, clusters
from cellerate.kernels.lstm.spec import ACTIVATIONS

Direction = Literal["forward", "backward"]
# Units per block for layers of up to 512 units, the most that 16 small blocks of a cluster hold, and for wider layers.
_BLOCK_UNITS, _LARGE_BLOCK_UNITS, _MOST_OF_SMALL_BLOCKS = 32, 64, 512
MOST_UNITS = 1024
ROWS = (8, 16, 24, 32, 40)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"turns": 1, "wide": False},
    "turns": {"turns": 2, "wide": False},
    "wide": {"turns": 1, "wide": True},
    "wide turns": {"turns": 2, "wide": True},
}
"""How a recurrence may be computed; see `Variant`. Which is the fastest differs by size, so it is measured."""
# Of each precision: bytes per number, and how many numbers each is split into for the matrix units.
NUMBER_BYTES = {"bfloat16": (2, 1), "float16": (2, 1), "float32": (4, 2), "tf32": (4, 1)}
# Rows of a product of a warp.
_TILE_ROWS = 8
_BARRIER_BYTES = 8
# A product of a warp takes 32 bytes of each of 16 rows of weights: 16 bytes, or 4 registers, per thread.
PRODUCT_BYTES = 32
WORDS_BYTES = 16
_WORDS_REGISTERS = 4
# The registers that the threads of a block share, and the most products whose weights they keep in them, summed over
# the threads.
_REGISTERS = 65_536
_PRODUCTS_IN_REGISTERS = 32 * 256
_FEWEST_PRODUCTS_IN_REGISTERS = 4


@dataclasses.dataclass(frozen=True)
class Tiers:
    """For how many products a warp's weights lie where; `Weights` of operands.cuh mixes all over the order of use.

    Attributes:
        registers: In registers.
        shared: In shared memory.
        streamed: In global memory, which is so far away that they are requested before they are needed.
    """

    registers: int
    shared: int
    streamed: int


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the weights are ordered for a GPU kernel: `weights.reshape(shape).transpose(axes)`, made contiguous.

    `weights` is Keras's recurrent kernel (H, 4, H), padded with zeros to (units, 4, units). The result holds what a
    thread passes to `multiply_add` of device.cuh, 16 bytes per product: (block, product, tile, lane, part, number).
    Each of these axes except block is one or more axes of `shape`. The weights of a block are a matrix, cut into tiles
    of 16 rows and products of 32 bytes of each row. Where 4 bytes hold w numbers, number n of part p of lane l, in its
    tile and product, is in row l // 4 + 8 * (p % 2) and column (l % 4 + 4 * (p // 2)) * w + n. The matrix of a block,
    whose units count from 0:

    - forward: columns are the units of h; tile t has all gates of the units 4 * t to 4 * t + 3, and its row r is gate
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
        precision: One of `sources.TYPES`. c and all sums are float32 in any.
        units: H, as `padded_units` rounds it up.
        rows: Rows of the batch that a cluster computes: one of `ROWS`.
        activation: One of `spec.ACTIVATIONS`.
        recurrent_activation: One of `spec.ACTIVATIONS`.
        masked: Whether there is a mask.
        dropped: Whether h is multiplied by a separate mask for each gate (recurrent_dropout).
        turns: 1, or 2 if the rows are cut into halves that take turns: one is computed while what the other sends is
            on its way.
        wide: Whether four warps make a product together, which reads h from shared memory, once for all of them.

    Raises:
        ConfigError: There is no such kernel.
    """

    direction: Direction
    precision: str
    units: int
    rows: int
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    masked: bool = False
    dropped: bool = False
    turns: int = 1
    wide: bool = False

    def __post_init__(self) -> None:
        if self.precision not in NUMBER_BYTES:
            raise ConfigError(f"precision is {self.precision!r}; expected one of {', '.join(NUMBER_BYTES)}.")
        if not 0 < self.units <= MOST_UNITS or self.units % self.block_units:
            raise ConfigError(
                f"units is {self.units}; expected a multiple of {_BLOCK_UNITS} up to {_MOST_OF_SMALL_BLOCKS}, or of "
                f"{_LARGE_BLOCK_UNITS} up to {MOST_UNITS}."
            )
        if self.rows not in ROWS:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, ROWS))}.")
        if self.turns not in (1, 2):
            raise ConfigError(f"turns is {self.turns}; expected 1 or 2.")
        for name in ("activation", "recurrent_activation"):
            value = getattr(self, name)
            if value not in ACTIVATIONS:
                raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(ACTIVATIONS)}.")

    @property
    def name(self) -> str:
        """The name of the compiled function."""
        return f"cellerate_lstm_{self.direction}"

    @property
    def way(self) -> str:
        """The one of `WAYS` in which it computes."""
        return next(
            way for way, options in WAYS.items() if options == {"turns": self.turns, "wide": self.wide}
        )

    @property
    def source(self) -> str:
        """The whole source as one text."""
        tiers = self.tiers
        options = ", ".join(
            [
                sources.TYPES[self.precision],
                str(self.units),
                str(self.block_units),
                str(self.rows),
                *(sources.activation(name) for name in (self.activation, self.recurrent_activation)),
                str(self.masked).lower(),
                str(self.dropped).lower(),
                str(self.turns),
                str(self.wide).lower(),
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
        """Units per thread block."""
        return block_units(self.units)

    @property
    def threads(self) -> int:
        """Threads per block: one warp for every four of its units."""
        return 8 * self.block_units

    @property
    def blocks(self) -> int:
        """Thread blocks per cluster."""
        return self.units // self.block_units

    @property
    def tiers(self) -> Tiers:
        """Where the weights lie: in the nearest place with room."""
        size, _ = NUMBER_BYTES[self.precision]
        if self.direction == "forward":
            products = self.units * size // PRODUCT_BYTES
        else:
            products = self._unit_tiles * (4 * self.block_units * size // PRODUCT_BYTES)
        most = _PRODUCTS_IN_REGISTERS // self.threads
        registers = min(products, max(1, min(most, self._register_room)))
        room = max(0, SHARED_BYTES - self._exchange_bytes) // (WORDS_BYTES * self.threads)
        shared = min(products - registers, room)
        return Tiers(registers, shared, products - registers - shared)

    @property
    def fits(self) -> bool:
        """Whether a block has enough shared memory, and enough registers for what it computes and some weights.

        Turns use the weights twice in a step, so these must not come from global memory. Wide products take all of
        them from registers.
        """
        tiers, tiles = self.tiers, self.rows // _TILE_ROWS
        _, split = NUMBER_BYTES[self.precision]
        return (
            self.shared_bytes <= SHARED_BYTES
            and self._register_room >= _FEWEST_PRODUCTS_IN_REGISTERS
            and (self.turns == 1 or (tiles > 1 and tiers.streamed == 0))
            and (not self.wide or (self.direction == "forward" and split == 1 and not self.dropped))
            and (not self.wide or tiers.shared == tiers.streamed == 0)
        )

    @property
    def _register_room(self) -> int:
        """For about how many products a thread has registers for weights; with more, the compiler spills some."""
        size, split = NUMBER_BYTES[self.precision]
        tiles = self.rows // _TILE_ROWS
        # Registers for each tile of a turn, for factors and sums, and for each tile of all rows, for states and what
        # is read ahead.
        of_turn, of_all = 0 if self.wide else 4 * split, self.masked + size
        if self.direction == "forward":
            of_turn += 4 if self.wide else 4 * split
            of_all += 1 + 4 * self.dropped
        else:
            of_turn += 4 * self._unit_tiles * (2 if self.dropped else 1)
            of_all += 6
        others = 36 + 8 * (split - 1) + of_turn * -(-tiles // self.turns) + of_all * tiles
        return (min(255, _REGISTERS // self.threads) - others) // _WORDS_REGISTERS

    @property
    def _masks_shared(self) -> bool:
        """Whether the backward kernel has room in shared memory for the masks of recurrent dropout."""
        return NUMBER_BYTES[self.precision][0] < 4 or self.block_units == _BLOCK_UNITS

    @property
    def _unit_tiles(self) -> int:
        """Tiles of 16 units per warp, in the backward recurrence."""
        return -(-self.units // 16 // (self.threads // 32))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block; the kernel's source asserts the same."""
        total = self._exchange_bytes + WORDS_BYTES * max(1, self.tiers.shared * self.threads)
        return -(-total // 128) * 128

    @property
    def _exchange_bytes(self) -> int:
        """The bytes of shared memory before the weights."""
        size, split = NUMBER_BYTES[self.precision]
        block = size * self.rows * self.block_units
        masks = 4 * size * self.units * self.rows if self.dropped else 8
        if self.direction == "forward":
            parts = 1 if self.dropped else split
            sums = 4 * self.rows * self.block_units if self.dropped else 1
            total = 2 * (self.blocks + 1) * parts * block + 4 * block + masks + 4 * sums
        else:
            total = 4 * self.blocks * block + 4 * split * block + (masks if self._masks_shared else 8)
        total += _BARRIER_BYTES * 2 * self.turns
        return -(-total // WORDS_BYTES) * WORDS_BYTES


def block_units(units: int) -> int:
    """Units per thread block of a layer with `units` units: a cluster has at most 16 blocks."""
    return _BLOCK_UNITS if units <= _MOST_OF_SMALL_BLOCKS else _LARGE_BLOCK_UNITS


def padded_units(units: int) -> int:
    """H rounded up to whole blocks."""
    return -(-units // block_units(units)) * block_units(units)


def packing(variant: Variant) -> Packing:
    """The order in which a GPU kernel reads the recurrent kernel; it does not depend on `rows`."""
    word = 4 // NUMBER_BYTES[variant.precision][0]
    products = variant.units // (8 * word)
    # The names of the axes, first in the order of (H, 4, H), then (`read`) in the order in which they are read.
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


def fitting(variant: Variant, ways: Iterable[str] = ("plain",)) -> list[Variant]:
    """The variant in some of the `WAYS`, with each number of rows that fits a block, in ascending order of rows.

    In the way "plain", 8 rows always fit.
    """
    found = [dataclasses.replace(variant, rows=rows, **WAYS[way]) for rows in ROWS for way in ways]
    return [one for one in found if one.fits]


def choose(
    variant: Variant,
    batch: int,
    resident: Callable[[Variant], int],
    step_us: Callable[[Variant], float],
    ways: Iterable[str] = ("plain",),
) -> Variant:
    """The variant with the number of rows, and in the way, that takes the least time for a batch.

    Clusters that the GPU cannot run at once run in waves, one after the other. Of equally many waves in the same way,
    those of the fewest rows are the fastest, and if no other kernel is left, nothing has to be measured.

    Args:
        variant: The variant, with any number of rows and in any way.
        batch: B.
        resident: Gives how many clusters of a variant the GPU runs at once.
        step_us: Gives how long a step of a variant takes in a full wave, in microseconds.
        ways: Those of `WAYS` to choose from.
    """

    def waves(one: Variant) -> int:
        return -(-clusters(one.rows, batch) // max(1, resident(one)))

    fewest_rows: dict[tuple[int, bool, int], Variant] = {}
    for one in fitting(variant, ways):
        fewest_rows.setdefault((one.turns, one.wide, waves(one)), one)
    found = list(fewest_rows.values())
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda one: (waves(one) * step_us(one), one.rows))
