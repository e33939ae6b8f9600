"""The kernel that generates from a model: its compile-time options, and the places of its weights.

This is arithmetic about sizes; it needs neither a GPU nor a compiler. The kernel's source is generate.cuh.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

from cellerate.errors import ConfigError
from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.kernel import SHARED_BYTES, clusters
from cellerate.kernels.lstm.cuda.plan import (
    MOST_UNITS,
    NUMBER_BYTES,
    PRODUCT_BYTES,
    WORDS_BYTES,
    Tiers,
    block_units,
)

# The numbers of rows that a cluster may have; each warp draws for an eighth of them, one after the other.
ROWS = (8, 16, 32)
# Units of h per panel, logits per tile, and how far apart the rows are where the parts of logits are added up.
_PANEL_UNITS, _TILE, _PART_ROW = 32, 16, 20
PRECISIONS = tuple(precision for precision in sources.TYPES if precision != "tf32")
"""The precisions in which generation computes: the dtypes of weights, and of h where it is multiplied."""
# The products whose weights a thread keeps in registers, by the threads of a block.
_PRODUCTS_IN_REGISTERS = {256: 36, 512: 12}
# The most tiles of logits per warp. They are unrolled in the kernel's code: more would take minutes to compile.
MOST_ROUNDS = 64
# The most bytes of a cluster's logits that are worth the shared memory; more go through global memory.
_MOST_SHARED_LOGITS_BYTES = 64 << 10
ROW_BYTES = 80
"""The size of `Row` in generate_plan.cuh, what a row asks for."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """An LSTM of a model.

    Attributes:
        units: H.
        activation: As `cellerate.activations` writes it.
        recurrent_activation: As `cellerate.activations` writes it.
    """

    units: int
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"


@dataclasses.dataclass(frozen=True)
class Generator:
    """The options that a generating kernel is compiled with.

    Attributes:
        precision: One of `PRECISIONS`; c and all sums are float32 in any.
        layers: The LSTMs.
        vocabulary: V, the number of ids that it can read.
        outputs: The number of logits.
        masks_zero: Whether id 0 leaves the state as it is.
        rows: Rows of the batch that a cluster computes: 8, 16 or 32.

    Raises:
        ConfigError: There is no such kernel.
    """

    precision: str
    layers: tuple[Layer, ...]
    vocabulary: int
    outputs: int
    masks_zero: bool = False
    rows: int = 8

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}.")
        if self.rows not in ROWS:
            raise ConfigError(f"rows is {self.rows}; expected one of {', '.join(map(str, ROWS))}.")
        for layer in self.layers:
            if not 0 < layer.units <= MOST_UNITS:
                raise ConfigError(f"an LSTM has {layer.units} units; expected 1 to {MOST_UNITS}.")

    @property
    def name(self) -> str:
        """The name of the compiled function."""
        return "cellerate_generate"

    @property
    def source(self) -> str:
        """The whole source as one text."""
        layers, tiers = self.layers, self.tiers
        tables: dict[str, list[Any]] = {
            "int units": [layer.units for layer in layers],
            "Activation activation": [sources.activation(layer.activation) for layer in layers],
            "Activation recurrent_activation": [
                sources.activation(layer.recurrent_activation) for layer in layers
            ],
            "int registers": [one.registers for one in tiers],
            "int shared": [one.shared for one in tiers],
        }
        functions = "".join(
            f"""
  CELLERATE_DEVICE static constexpr {name}(int n) {{
    const {name.split()[0]} of[] = {{{", ".join(map(str, values))}}};
    return of[n];
  }}"""
            for name, values in tables.items()
        )
        entry = f"""
using namespace cellerate::gpu;
struct Chain {{
  using Number = {sources.TYPES[self.precision]};
  static constexpr int kBlockUnits = {self.block_units}, kRows = {self.rows}, kLayers = {len(layers)};
  static constexpr int kVocabulary = {self.vocabulary}, kOutputs = {self.outputs};
  static constexpr bool kMasksZero = {str(self.masks_zero).lower()};
  static constexpr bool kSharedLogits = {str(self.shared_logits).lower()};
  static constexpr bool kSharedTable = {str(self.shared_table).lower()};{functions}
}};
using Compiled = GeneratePlan<Chain>;
static_assert(sizeof(GenerateShared<Compiled>) == {self.shared_bytes});
static_assert(Compiled::kThreads == {self.threads} && Compiled::kBlocks == {self.blocks});
static_assert(sizeof(Row) == {ROW_BYTES});
extern "C" __global__ __cluster_dims__({self.blocks}) __launch_bounds__({self.threads}, 1)
void {self.name}(const __grid_constant__ GenerateArguments in) {{
  generate<Compiled>(in);
}}
"""
        return sources.whole("generate.cuh") + entry

    @property
    def block_units(self) -> int:
        """Units per thread block, in each layer."""
        return block_units(max(layer.units for layer in self.layers))

    @property
    def threads(self) -> int:
        """Threads per block: one warp for every four of its units."""
        return 8 * self.block_units

    @property
    def blocks(self) -> int:
        """Thread blocks per cluster."""
        return max(self.blocks_of(layer) for layer in self.layers)

    def blocks_of(self, layer: Layer) -> int:
        """The number of blocks that have units of a layer."""
        return -(-layer.units // self.block_units)

    def padded_units(self, layer: Layer) -> int:
        """The units of a layer, rounded up to whole blocks."""
        return self.blocks_of(layer) * self.block_units

    @functools.cached_property
    def head(self) -> Head:
        """The division of the logits among blocks and warps."""
        warps, tiles = self.threads // 32, -(-self.outputs // _TILE)
        block_tiles = -(-tiles // self.blocks)
        tile_warps = 1
        while tile_warps < min(block_tiles, warps):
            tile_warps *= 2
        pairs = self._products(self.layers[-1]) // 2
        return Head(
            block_tiles=block_tiles,
            senders=-(-tiles // block_tiles),
            tile_warps=tile_warps,
            depth_warps=warps // tile_warps,
            rounds=-(-block_tiles // tile_warps),
            pairs=-(-pairs // (warps // tile_warps)),
        )

    def _products(self, layer: Layer) -> int:
        """The products of a warp with a matrix whose columns are the units of a layer."""
        return self.padded_units(layer) * NUMBER_BYTES[self.precision][0] // PRODUCT_BYTES

    @functools.cached_property
    def products(self) -> tuple[int, ...]:
        """The products of a warp per matrix: recurrent_kernel 0; kernel 1, recurrent_kernel 1; ...; the head."""
        layers = [self._products(layer) for layer in self.layers]
        found = [layers[0]]
        for below, layer in itertools.pairwise(layers):
            found += [below, layer]
        return (*found, self.head.rounds * self.head.pairs * 2)

    @functools.cached_property
    def tiers(self) -> tuple[Tiers, ...]:
        """Where the weights of each matrix lie: in the nearest place with room."""
        count = len(self.products)
        registers, left = [], _PRODUCTS_IN_REGISTERS[self.threads]
        for place, products in enumerate(self.products):
            # The kernel needs at least one of each matrix.
            registers.append(max(1, min(products, left - (count - place - 1))))
            left -= registers[-1]
        # A step waits for the products of the kernels and the head, whose inputs another layer or block has just
        # computed; so their weights come first. Products of the recurrent kernels are computed during such waits.
        order = [*range(1, count - 1, 2), *range(0, count - 1, 2)]
        order = [count - 1, *order] if self.head.rounds == 1 else [*order, count - 1]
        shared = [0] * count
        free = SHARED_BYTES - self._exchange_bytes - self._gates_bytes
        room = max(0, free) // (WORDS_BYTES * self.threads)
        for place in order:
            shared[place] = min(self.products[place] - registers[place], room)
            room -= shared[place]
        return tuple(
            Tiers(near, nearby, products - near - nearby)
            for products, near, nearby in zip(self.products, registers, shared, strict=True)
        )

    @property
    def shared_logits(self) -> bool:
        """True if blocks send logits to each other's shared memory; if not, they go through global memory."""
        room = SHARED_BYTES - self._gates_bytes - WORDS_BYTES - self._beside_logits_bytes
        return self._logits_bytes <= min(room, _MOST_SHARED_LOGITS_BYTES)

    @property
    def logits_scratch_bytes(self) -> int:
        """The bytes of global memory that a cluster needs for logits."""
        return 0 if self.shared_logits else self._logits_bytes

    @property
    def _logits_bytes(self) -> int:
        return 4 * _TILE * self.rows * self.head.block_tiles * self.head.senders

    @property
    def _exchange_bytes(self) -> int:
        """The bytes of shared memory before the weights."""
        return self._beside_logits_bytes + (self._logits_bytes if self.shared_logits else 16)

    @property
    def _beside_logits_bytes(self) -> int:
        """The bytes of shared memory besides logits, weights and table."""
        size, split = NUMBER_BYTES[self.precision]
        panel = size * split * self.rows * _PANEL_UNITS
        panels = sum(self.padded_units(layer) for layer in self.layers) // _PANEL_UNITS
        sent = len(self.layers) * self.block_units // _PANEL_UNITS
        total = 2 * (panels + sent) * panel
        total += 4 * self.threads // 32 * _PART_ROW * self.rows if self.head.depth_warps > 1 else 16
        total += 4 * _TILE * self.head.block_tiles
        total += self.rows * (ROW_BYTES + 8 + 4 * 4) + 8 * (2 * len(self.layers) + 1)
        return -(-total // WORDS_BYTES) * WORDS_BYTES

    @functools.cached_property
    def shared_table(self) -> bool:
        """True if the table of the first layer is in shared memory: if the weights leave room for it."""
        return self._weights_bytes + self._table_bytes <= SHARED_BYTES

    @property
    def _table_bytes(self) -> int:
        return self._gates_bytes * self.vocabulary * self.block_units

    @property
    def _gates_bytes(self) -> int:
        """The size of the gates of one unit, the least size of the table in shared memory."""
        return 4 * NUMBER_BYTES[self.precision][0]

    @property
    def _weights_bytes(self) -> int:
        """The bytes of shared memory up to the end of the weights."""
        shared = sum(tiers.shared for tiers in self.tiers) * self.threads
        return self._exchange_bytes + WORDS_BYTES * max(1, shared)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block; the kernel's source asserts the same."""
        table = self._table_bytes if self.shared_table else self._gates_bytes
        return -(-(self._weights_bytes + table) // 128) * 128


@dataclasses.dataclass(frozen=True)
class Head:
    """The division of the logits, in tiles of 16, among blocks and warps.

    Attributes:
        block_tiles: Tiles per block.
        senders: The number of blocks with tiles.
        tile_warps: The number of tiles that the warps of a block compute at once.
        depth_warps: The number of warps that share a tile, each with some of the units of h.
        rounds: Tiles per warp, one after another.
        pairs: Pairs of products per tile and warp.
    """

    block_tiles: int
    senders: int
    tile_warps: int
    depth_warps: int
    rounds: int
    pairs: int


def fitting(generator: Generator) -> list[Generator]:
    """The kernel with each number of rows for which a block has enough shared memory, in ascending order."""
    found = [dataclasses.replace(generator, rows=rows) for rows in ROWS]
    return [one for one in found if one.shared_bytes <= SHARED_BYTES]


def choose(generator: Generator, batch: int, resident: Callable[[Generator], int]) -> Generator:
    """The kernel with the number of rows that is likely fastest for a batch: the fewest waves, then the fewest rows.

    Args:
        generator: The kernel, with any number of rows.
        batch: B.
        resident: Returns the number of clusters of a kernel that the GPU runs at once.

    Raises:
        ConfigError: No number of rows fits.
    """
    fit = fitting(generator)
    if not fit:
        raise ConfigError(
            "the model needs more shared memory than a block has: its layers are too many or too wide."
        )

    def waves(one: Generator) -> int:
        return -(-clusters(one.rows, batch) // max(1, resident(one)))

    # Nothing has fewer waves than one; the kernels after it need not even be compiled.
    alone = next((one for one in fit if waves(one) == 1), None)
    return alone or min(fit, key=lambda one: (waves(one), one.rows))
