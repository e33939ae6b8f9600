"""The kernel that a call of an LSTM layer gets: its compile-time options, and its division into clusters.

This is arithmetic about sizes; it needs neither a GPU nor a compiler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

from cellerate import activations
from cellerate.errors import ConfigError
from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.kernel import SHARED_BYTES, clusters
from cellerate.kernels.lstm.cuda import tiles

Direction = Literal["forward", "backward"]
# Units per block for layers of up to 512 units, the most that 16 small blocks of a cluster hold, and for wider layers.
_BLOCK_UNITS, _LARGE_BLOCK_UNITS, _MOST_OF_SMALL_BLOCKS = 32, 64, 512
MOST_UNITS = 1024
ROWS = (8, 16, 24, 32, 40)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"turns": 1, "wide": False, "tiled": False},
    "turns": {"turns": 2, "wide": False, "tiled": False},
    "wide": {"turns": 1, "wide": True, "tiled": False},
    "tiled": {"turns": 1, "wide": False, "tiled": True},
}
"""The ways to compute a recurrence; see `Variant`. The fastest one differs by size, so it is measured."""
# Of each precision: bytes per number, and how many numbers each is split into for the matrix units.
NUMBER_BYTES = {"bfloat16": (2, 1), "float16": (2, 1), "float32": (4, 2), "tf32": (4, 1)}
# Rows of a product of a warp.
_TILE_ROWS = 8
# Rows of a cluster up to which no tiled kernel is faster: on an H200 one of 48 rows takes 7.4 µs a step with 512 units
# and 11.5 with 1,024, where others take 2 and 8 for 16 rows.
_FEW_ROWS = 16
_BARRIER_BYTES = 8
# The most bytes that each block of a cluster receives in a step from the others directly. On an H200 16 blocks take
# 0.50 µs for 8 KiB, 0.78 for 16 and 1.49 for 40; through memory they take 0.60, 0.71 and 0.77.
_MOST_BETWEEN_BLOCKS = 14 << 10
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
    """The order of the weights for a GPU kernel: `weights.reshape(shape).transpose(axes)`, made contiguous.

    `weights` is Keras's recurrent kernel (H, 4, H), padded with zeros to (units, 4, units). The result holds what a
    thread passes to `multiply_add` of device.cuh, 16 bytes per product: (block, product, tile, lane, part, number).
    Each of these axes except block is one or more axes of `shape`. The weights of a block are a matrix, cut into tiles
    of 16 rows and products of 32 bytes of each row. Where 4 bytes hold w numbers, number n of part p of lane l, in its
    tile and product, is in row l // 4 + 8 * (p % 2) and column (l % 4 + 4 * (p // 2)) * w + n. The matrix of a block,
    whose units count from 0:

    - forward: columns are the units of h; tile t has all gates of the units 4 * t to 4 * t + 3, and its row r is gate
      r // 8 * 2 + r % 2 of unit 4 * t + r % 8 // 2.
    - forward, tiled: the same numbers in another order: (block, chunk, row // 8, eight, row % 8, number), where a chunk
      is 64 units of h, an eight is 8 of them, and row 128 * a + 64 * b + 16 * c + 8 * d + e is gate 2 * b + d of unit
      32 * a + 8 * c + e of the block.
    - backward, tiled: (block, chunk, row // 8, eight, row % 8, number), where rows are the units of h of the block,
      chunk 4 * b + g is gate g of the units of block b, and numbers 16 * w + 2 * n and the next are of its units
      16 * w + n and 8 more.
    - forward with masks of recurrent dropout: columns are the units of h; tile t is gate t % 4 of the 16 units from
      t // 4 * 16 on.
    - backward: rows are the units of h; column c is gate c // block_units of unit c % block_units.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """The options that a kernel is compiled with.

    Attributes:
        direction: The forward or the backward recurrence.
        precision: One of `sources.TYPES`. c and all sums are float32 in any.
        units: H, as `padded_units` rounds it up.
        rows: Rows of the batch that a cluster computes: one of `ROWS`, or of `tiles.ROWS` if it is tiled.
        activation: As `cellerate.activations` writes it.
        recurrent_activation: As `cellerate.activations` writes it.
        masked: Whether there is a mask.
        dropped: Whether h is multiplied by a separate mask for each gate (recurrent_dropout).
        turns: 1, or 2 if the rows are cut into halves that take turns: one is computed while what the other sends is
            on its way; only backward.
        wide: Whether four warps make a product together, which reads h from shared memory, once for all of them.
        tiled: Whether a cluster computes so many rows that h passes through shared memory in parts, and weights do.

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
    tiled: bool = False

    def __post_init__(self) -> None:
        if self.precision not in NUMBER_BYTES:
            raise ConfigError(f"precision is {self.precision!r}; expected one of {', '.join(NUMBER_BYTES)}.")
        if not 0 < self.units <= MOST_UNITS or self.units % self.block_units:
            raise ConfigError(
                f"units is {self.units}; expected a multiple of {_BLOCK_UNITS} up to {_MOST_OF_SMALL_BLOCKS}, or of "
                f"{_LARGE_BLOCK_UNITS} up to {MOST_UNITS}."
            )
        some = tiles.ROWS if self.tiled else ROWS
        if self.rows not in some:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, some))}.")
        if self.turns not in (1, 2):
            raise ConfigError(f"turns is {self.turns}; expected 1 or 2.")
        for name in ("activation", "recurrent_activation"):
            try:
                activations.read(getattr(self, name))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None

    @property
    def name(self) -> str:
        """The name of the compiled function."""
        return f"cellerate_lstm_{self.direction}"

    @property
    def way(self) -> str:
        """The one of `WAYS` in which it computes."""
        mine = {"turns": self.turns, "wide": self.wide, "tiled": self.tiled}
        return next(way for way, options in WAYS.items() if options == mine)

    @property
    def source(self) -> str:
        """The whole source as one text."""
        kinds = [sources.activation(name) for name in (self.activation, self.recurrent_activation)]
        masked = str(self.masked).lower()
        if self.tiled:
            of = self._tile
            chunks = tiles.BLOCK_CHUNKS[self.direction]
            options = [self.units, self.rows, *kinds, masked, chunks, of.slots, of.weight_slots, of.resident]
            plan, kernel = "TiledPlan", f"tiled_{self.direction}"
        else:
            options = [self.units, self.block_units, self.rows, *kinds, masked, str(self.dropped).lower()]
            tiers = f"Tiers<{self.tiers.registers}, {self.tiers.shared}>"
            options += [self.turns, str(self.wide).lower(), str(self.through_memory).lower(), tiers]
            plan, kernel = "Plan", self.direction
        shared = "".join(word.capitalize() for word in kernel.split("_")) + "Shared"
        entry = f"""
using namespace cellerate::gpu;
using Compiled = {plan}<{", ".join(map(str, [sources.TYPES[self.precision], *options]))}>;
static_assert(sizeof({shared}<Compiled>) == {self.shared_bytes});
static_assert(Compiled::kThreads == {self.threads});
extern "C" __global__ __cluster_dims__({self.blocks}) __launch_bounds__({self.threads}, 1)
void {self.name}(const __grid_constant__ {self.direction.capitalize()}Arguments<Compiled::Number> in) {{
  lstm_{kernel}<Compiled>(in);
}}
"""
        return sources.whole(f"lstm_{kernel}.cuh") + entry

    @property
    def block_units(self) -> int:
        """Units per thread block."""
        return tiles.BLOCK_UNITS if self.tiled else block_units(self.units)

    @property
    def threads(self) -> int:
        """Threads per block: one warp for every four of its units, if it is not tiled."""
        return tiles.THREADS if self.tiled else 8 * self.block_units

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
        """True if there is such a kernel: if a block has enough shared memory and registers for what it computes.

        Turns use the weights twice in a step, so these must not come from global memory. Wide products take all of
        them from registers.
        """
        size, split = NUMBER_BYTES[self.precision]
        if self.tiled:
            return size == tiles.NUMBER_BYTES and not self.dropped and self.units >= tiles.FEWEST_UNITS
        tiers, backward = self.tiers, self.direction == "backward"
        return (
            self.shared_bytes <= SHARED_BYTES
            and self._register_room >= _FEWEST_PRODUCTS_IN_REGISTERS
            and (self.turns == 1 or (backward and self.rows > _TILE_ROWS and tiers.streamed == 0))
            and (not self.wide or (not backward and split == 1 and not self.dropped))
            and (not self.wide or tiers.shared == tiers.streamed == 0)
        )

    @property
    def _register_room(self) -> int:
        """For about how many products a thread has registers for weights; with more, the compiler spills some."""
        size, split = NUMBER_BYTES[self.precision]
        row_tiles = self.rows // _TILE_ROWS
        # Registers for each tile of a turn, for factors and sums, and for each tile of all rows, for states and what
        # is read ahead.
        of_turn, of_all = 0 if self.wide else 4 * split, self.masked + size
        if self.direction == "forward":
            of_turn += 4 if self.wide else 4 * split
            of_all += 1 + 4 * self.dropped
        else:
            of_turn += 4 * self._unit_tiles * (2 if self.dropped else 1)
            of_all += 6
        others = 36 + 8 * (split - 1) + of_turn * -(-row_tiles // self.turns) + of_all * row_tiles
        return (min(255, _REGISTERS // self.threads) - others) // _WORDS_REGISTERS

    @property
    def _masks_shared(self) -> bool:
        """True if the backward kernel has room in shared memory for the masks of recurrent dropout."""
        return NUMBER_BYTES[self.precision][0] < 4 or self.block_units == _BLOCK_UNITS

    @property
    def _unit_tiles(self) -> int:
        """Tiles of 16 units per warp, in the backward recurrence."""
        return -(-self.units // 16 // (self.threads // 32))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block; the kernel's source asserts the same."""
        if self.tiled:
            return self._tile.shared_bytes
        total = self._exchange_bytes + WORDS_BYTES * max(1, self.tiers.shared * self.threads)
        return -(-total // 128) * 128

    @property
    def _tile(self) -> tiles.Tile:
        return tiles.tile(self.direction, self.units, self.rows, masked=self.masked)

    def exchanged(self, batch: int) -> int:
        """The count of numbers in memory that the blocks of a call exchange results through; 0 if they need none."""
        if not self.through_memory:
            return 0
        of_row = self.units * (tiles.BLOCK_CHUNKS[self.direction] if self.tiled else self._sent_parts)
        return 2 * clusters(self.rows, batch) * self.rows * of_row

    @property
    def through_memory(self) -> bool:
        """True if the blocks of a cluster exchange results through memory, and not by sending them to each other."""
        received = NUMBER_BYTES[self.precision][0] * self.rows * self.units * self._sent_parts
        return self.tiled or (self.direction == "forward" and received > _MOST_BETWEEN_BLOCKS)

    @property
    def _sent_parts(self) -> int:
        """Of how many parts each h is that forward sends: split, but where masks multiply it first."""
        return 1 if self.dropped else NUMBER_BYTES[self.precision][1]

    @property
    def _exchange_bytes(self) -> int:
        """The bytes of shared memory before the weights."""
        size, split = NUMBER_BYTES[self.precision]
        block = size * self.rows * self.block_units
        masks = 4 * size * self.units * self.rows if self.dropped else 8
        if self.direction == "forward":
            parts = self._sent_parts
            sums = 4 * self.rows * self.block_units if self.dropped else 1
            total = 2 * (self.blocks + 1) * parts * block + 4 * block + masks + 4 * sums
        else:
            total = 2 * self.blocks * block + 8 * split * block + (masks if self._masks_shared else 8)
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
    if variant.tiled and variant.direction == "backward":
        of_h = {"block": variant.blocks, "eight": tiles.BLOCK_UNITS // 8, "row": 8}
        of_gates = {"gate": 4}
        of_units = {
            "source": variant.blocks,
            "warp": tiles.BLOCK_UNITS // 16,
            "half": 2,
            "upper": 2,
            "lower": 4,
        }
        read = "block source gate eight warp upper row lower half"
    elif variant.direction == "backward":
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
    elif variant.tiled:
        of_h = {"chunk": variant.blocks, "eight": tiles.BLOCK_UNITS // 8, "number": 8}
        of_gates = {"pair": 2, "second": 2}
        of_units = {"block": variant.blocks, "half": 2, "warp": tiles.BLOCK_UNITS // 16, "row": 8}
        read = "block chunk half pair warp second eight row number"
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
    found = []
    for way in ways:
        tiled = WAYS[way]["tiled"]
        units = -(-variant.units // tiles.BLOCK_UNITS) * tiles.BLOCK_UNITS if tiled else variant.units
        for rows in tiles.ROWS if tiled else ROWS:
            found.append(dataclasses.replace(variant, units=units, rows=rows, **WAYS[way]))
    return sorted((one for one in found if one.fits), key=lambda one: one.rows)


def choose(
    variant: Variant,
    batch: int,
    resident: Callable[[Variant], int],
    step_us: Callable[[Variant], float],
    ways: Iterable[str] = ("plain",),
) -> Variant:
    """The variant with the number of rows, and in the way, that takes the least time for a batch.

    Clusters that the GPU cannot run at once run in waves, one after the other. Of equally many waves in the same way,
    those of the fewest rows are the fastest, and if no other kernel is left, nothing has to be measured. Tiled kernels
    are for batches that take several waves of a few rows.

    Args:
        variant: The variant, with any number of rows and in any way.
        batch: B.
        resident: Returns the number of clusters of a variant that the GPU runs at once.
        step_us: Returns the microseconds of a step of a variant in a full wave.
        ways: The entries of `WAYS` to choose from.
    """

    def waves(one: Variant) -> int:
        return -(-clusters(one.rows, batch) // max(1, resident(one)))

    fewest_rows: dict[tuple[str, int], Variant] = {}
    for one in fitting(variant, [way for way in ways if not WAYS[way]["tiled"]]):
        fewest_rows.setdefault((one.way, waves(one)), one)
    if all(count > 1 or one.rows > _FEW_ROWS for (_, count), one in fewest_rows.items()):
        for one in fitting(variant, [way for way in ways if WAYS[way]["tiled"]]):
            fewest_rows.setdefault((one.way, waves(one)), one)
    found = list(fewest_rows.values())
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda one: (waves(one) * step_us(one), one.rows))
