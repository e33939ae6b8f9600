// Products of bfloat16 in the tiles of AMX, each of which is 16 rows of 64 bytes.
//
// The words of gemm.h are what the tiles take: 16 words of 16 rows of A, and 16 words along K of a vector of a panel.
// A product adds up the even and the odd halves of 16 words separately, then both to the sum, so that sums are rounded
// in another order than those of vectors. Like theirs, they do not depend on how rows and panels are divided.
#pragma once

#include "products/words.h"

namespace cellerate::CELLERATE_TARGET {

// Rows and words of a tile, and the most rows whose sums fit beside the factors: 2 tiles of rows times 2 of columns.
constexpr Index kTileRows = 16, kTileWords = 16, kBlockRows = 2 * kTileRows;

// Whether words of the summed axis are multiplied in tiles; there they are padded with zeros to whole tiles.
template <bool kPairs>
constexpr bool kTiled = kPairs && Simd::kTiles;

// Rows beyond the last one of A that are read, and so need room.
template <bool kPairs>
constexpr Index kRowsBeyond = kTiled<kPairs> ? kTileRows - 1 : 0;

// The number of a tile is part of the instruction. "memory" keeps the compiler from moving what the tiles read and
// write; the intrinsics of GCC 12 lack that.
template <int kTile>
void load_tile(const float* rows, Index row_words) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(4 * row_words), "i"(kTile) : "memory");
}
// The same for words that are not read again soon: they need not stay in the first-level cache.
template <int kTile>
void load_passing_tile(const float* rows, Index row_words) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(4 * row_words), "i"(kTile) : "memory");
}
template <int kTile>
void store_tile(float* rows, Index row_words) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(4 * row_words), "i"(kTile) : "memory");
}
template <int kTile>
void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// The words of A and B are pairs of bfloat16, or four bytes, those of A without a sign.
template <bool kBytes, int kSum, int kA, int kB>
void multiply_tiles() {
  if constexpr (kBytes) {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  } else {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
}

// Configures eight tiles for this thread while it lives, and then restores the caller's tiles.
class TilesInUse {
 public:
  TilesInUse() {
    if constexpr (Simd::kTiles) start();
  }
  ~TilesInUse() {
    if constexpr (Simd::kTiles) end();
  }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;

 private:
  struct alignas(64) Shape {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };

  void start() {
    asm volatile("sttilecfg %0" : "=m"(before_));
    Shape shape{};
    shape.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      shape.row_bytes[tile] = 4 * kTileWords;
      shape.rows[tile] = kTileRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(shape));
  }
  void end() {
    if (before_.palette != 0) {
      asm volatile("ldtilecfg %0" ::"m"(before_));
    } else {
      asm volatile("tilerelease");
    }
  }

  Shape before_;
};

// Sets tiles 0 to 3 to the sums of one or two tiles of rows and two vectors: those at `start`, whose rows are `row` words
// apart (0: one row for all), or zeros if it is null.
template <int kRowTiles>
void load_sums(const float* start, Index row) {
  if (start == nullptr) {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
    return;
  }
  load_tile<0>(start, row);
  load_tile<1>(start + kLanes, row);
  if constexpr (kRowTiles == 2) {
    load_tile<2>(start + kTileRows * row, row);
    load_tile<3>(start + kTileRows * row + kLanes, row);
  }
}
// Stores them in rows of kWidth words.
template <int kRowTiles>
void store_sums(float* to) {
  store_tile<0>(to, kWidth);
  store_tile<1>(to + kLanes, kWidth);
  if constexpr (kRowTiles == 2) {
    store_tile<2>(to + kTileRows * kWidth, kWidth);
    store_tile<3>(to + kTileRows * kWidth + kLanes, kWidth);
  }
}

// Adds two vectors of a panel, for one or two tiles of rows, to the sums.
//
// Args: left: row by row, the first word of the first block. b: the first block's words of the two vectors.
template <int kRowTiles>
void add_half_panel(const float* left, const Left& a, Index blocks, const float* b) {
  for (Index n = 0; n < blocks; ++n, left += a.block) {
    for (Index i = 0; i < a.run; i += kTileWords, b += kTileWords * kWidth) {
      load_tile<4>(left + i, a.row);
      load_tile<6>(b, kWidth);
      multiply_tiles<false, 0, 4, 6>();
      load_tile<7>(b + kLanes, kWidth);
      multiply_tiles<false, 1, 4, 7>();
      if constexpr (kRowTiles == 2) {
        load_tile<5>(left + kTileRows * a.row + i, a.row);
        multiply_tiles<false, 2, 5, 6>();
        multiply_tiles<false, 3, 5, 7>();
      }
    }
  }
}

// c = start + A·B for one or two whole tiles of rows and a panel; `start` may be c, or null for zeros.
template <int kRowTiles>
void multiply_whole(const float* left, const Left& a, Index blocks, const float* b, const float* start,
                    Index start_row, float* c) {
  for (Index half = 0; half < kWidth; half += 2 * kLanes) {
    load_sums<kRowTiles>(start == nullptr ? nullptr : start + half, start_row);
    add_half_panel<kRowTiles>(left, a, blocks, b + half);
    store_sums<kRowTiles>(c + half);
  }
}

// c = start + A·B for up to kBlockRows rows and a panel. Memory beyond the rows of A is read but not used.
//
// Args: left: as above. start: rows of kWidth floats, `start_row` apart (0: one row for all); may be c; null for zeros.
// c: rows of kWidth floats.
inline void multiply_block(const float* left, const Left& a, Index blocks, const float* b, const float* start,
                           Index start_row, float* c, Index rows) {
  if (rows == kBlockRows) return multiply_whole<2>(left, a, blocks, b, start, start_row, c);
  if (rows == kTileRows) return multiply_whole<1>(left, a, blocks, b, start, start_row, c);
  alignas(64) float whole[kBlockRows][kWidth];
  if (start != nullptr && start_row != 0) {
    for (Index row = 0; row < rows; ++row) {
      for (Index j = 0; j < kWidth; ++j) whole[row][j] = start[row * start_row + j];
    }
    start = whole[0];
  }
  if (rows < kTileRows) {
    multiply_whole<1>(left, a, blocks, b, start, start_row, whole[0]);
  } else {
    multiply_whole<2>(left, a, blocks, b, start, start_row, whole[0]);
  }
  for (Index row = 0; row < rows; ++row) {
    for (Index j = 0; j < kWidth; ++j) c[row * kWidth + j] = whole[row][j];
  }
}

// Calls body(first row, rows) for blocks of rows that cover the range.
template <class Body>
void for_blocks(Range rows, Body body) {
  for (Index row = rows.begin; row < rows.end; row += kBlockRows) {
    body(row, smaller(kBlockRows, rows.end - row));
  }
}

}  // namespace cellerate::CELLERATE_TARGET
