// Products of rows and packed weights in the tiles of amx.h: many rows of a panel at once, with their sums in memory.
//
// A target with tiles multiplies all bfloat16 in them, because their sums round in another order than those of vectors.
// Whole numbers have the same sums either way, so vectors multiply a few rows of bytes. Another target runs int4.
#pragma once

#include "engine/row_products.h"

namespace cellerate::CELLERATE_TARGET {

// Vectors multiply bytes faster if there are fewer rows than kFewRows, fewer words in a row than fill a tile, or fewer words
// in all than kFewWords.
constexpr Index kFewRows = 4, kFewWords = 128;

// Whether `rows` rows are multiplied in tiles.
template <Precision kPrecision>
inline bool in_tiles(const StepMatrix& b, Index rows) {
  if constexpr (kOnlyTiles<kPrecision>) return true;
  return kHasTiles<kPrecision> && rows >= kFewRows && b.depth >= kTileWords && rows * b.depth >= kFewWords;
}

// The place of a word of a panel's column. Words of bfloat16 lie tile by tile: [half of the panel][tile along K]
// [vector][word][kLanes]. Those of bytes lie as vectors read them: [word][kWidth].
template <Precision kPrecision>
constexpr Index word_in_panel(Index stride, Index word, Index column) {
  if constexpr (!kHasTiles<kPrecision> || kPrecision != Precision::kBfloat16) return word * kWidth + column;
  constexpr Index kTile = kTileWords * kLanes;
  return column / (2 * kLanes) * stride * 2 * kLanes + word / kTileWords * 2 * kTile +
         column / kLanes % 2 * kTile + word % kTileWords * kLanes + column % kLanes;
}

// Where the initial sums of a panel's rows lie, kWidth numbers each: `row` numbers apart (0: one row for all), or
// anywhere.
struct TileStarts {
  Index row = kWidth;
  bool scattered = false;
};

// sums = start + A·B for one or two tiles of rows and two vectors of a panel.
//
// Args: left: the first row. row: words from row to row. start: null for zeros; its rows are `start_row` words apart.
template <Precision kPrecision, int kRowTiles>
void multiply_half(const float* left, Index row, const float* b, Index stride, const float* start,
                   Index start_row, float* sums) {
  constexpr bool kBytes = kPrecision == Precision::kInt8;
  constexpr Index kNext = word_in_panel<kPrecision>(0, 1, 0),
                  kSecond = word_in_panel<kPrecision>(0, 0, kLanes);
  load_sums<kRowTiles>(start, start_row);
  for (Index k = 0; k < stride; k += kTileWords) {
    const float* words = b + word_in_panel<kPrecision>(0, k, 0);
    load_tile<4>(left + k, row);
    load_passing_tile<6>(words, kNext);
    multiply_tiles<kBytes, 0, 4, 6>();
    load_passing_tile<7>(words + kSecond, kNext);
    multiply_tiles<kBytes, 1, 4, 7>();
    if constexpr (kRowTiles == 2) {
      load_tile<5>(left + kTileRows * row + k, row);
      multiply_tiles<kBytes, 2, 5, 6>();
      multiply_tiles<kBytes, 3, 5, 7>();
    }
  }
  store_sums<kRowTiles>(sums);
}

// sums = start + A·B for up to kBlockRows rows and the first vectors of a panel. `start` is as above, and null for bytes,
// whose sums are whole numbers.
template <Precision kPrecision>
void multiply_tile_rows(const StepRows& a, Index row, Index count, const StepMatrix& b, Index panel,
                        int vectors, const float* start, Index start_row, float* sums) {
  if constexpr (kPrecision == Precision::kInt8) {
    start = reinterpret_cast<const float*>(b.starts + panel * kWidth);
    start_row = 0;
  }
  const float* words = a.words + row * a.row;
  const float* weights = b.words + panel * b.stride * kWidth;
  for (int half = 0; half < vectors; half += 2) {
    const Index column = half * kLanes;
    const float* part = weights + word_in_panel<kPrecision>(b.stride, 0, column);
    const float* from = start == nullptr ? nullptr : start + column;
    count > kTileRows
        ? multiply_half<kPrecision, 2>(words, a.row, part, b.stride, from, start_row, sums + column)
        : multiply_half<kPrecision, 1>(words, a.row, part, b.stride, from, start_row, sums + column);
  }
}

// Completes the sums of the first vectors of a panel for some rows: scales whole numbers, and adds start(row).
template <Precision kPrecision, class Start>
void finish_sums(const StepRows& a, Index row, Index count, const StepMatrix& b, Index panel, int vectors,
                 Start start, float* sums) {
  for (Index r = 0; r < count; ++r, sums += kWidth) {
    const float* from = start(row + r);
    if constexpr (kPrecision == Precision::kInt8) {
      const F scale = Simd::set(a.scale_of(row + r));
      for (int j = 0; j < vectors; ++j) {
        const F factor = Simd::mul(Simd::load(b.scales + panel * kWidth + j * kLanes), scale);
        const F whole = Simd::to_float(Simd::load_int(reinterpret_cast<const int32_t*>(sums) + j * kLanes));
        Simd::store(sums + j * kLanes, Simd::fma(whole, factor, Simd::load(from + j * kLanes)));
      }
    } else {
      for (int j = 0; j < vectors; ++j) {
        Simd::store(sums + j * kLanes,
                    Simd::add(Simd::load(sums + j * kLanes), Simd::load(from + j * kLanes)));
      }
    }
  }
}

// Calls end(first row, how many, panel, sums) with start(row, panel) + A·B for up to kBlockRows rows of a panel at once.
//
// Args: vectors: `vectors(panel)` is the number of vectors of a panel that are used. backwards: goes from the last panels
// to the first. start: kWidth numbers. starts: how those of the rows of a panel lie; beyond the last row, as many as
// kTileRowsBeyond rows may be read.
template <Precision kPrecision, class Vectors, class Start, class End>
void for_tile_sums(const StepRows& a, Range rows, const StepMatrix& b, Range panels, bool backwards,
                   Vectors vectors, Start start, TileStarts starts, End end) {
  alignas(64) float sums[kBlockRows * kWidth];
  const bool later = kPrecision == Precision::kInt8 || starts.scattered;
  for (Index n = 0; n < panels.size(); ++n) {
    const Index panel = backwards ? panels.end - 1 - n : panels.begin + n;
    const int used = vectors(panel);
    for_blocks(rows, [&](Index row, Index count) {
      multiply_tile_rows<kPrecision>(a, row, count, b, panel, used, later ? nullptr : start(row, panel),
                                     starts.row, sums);
      const auto start_of = [&](Index r) { return start(r, panel); };
      if (later) finish_sums<kPrecision>(a, row, count, b, panel, used, start_of, sums);
      end(row, count, panel, static_cast<const float*>(sums));
    });
  }
}

// Calls give(row, column, vector) for the vectors of A·B + bias of `count` rows and the given panels, which together have
// `columns` columns.
template <Precision kPrecision, class Give>
void for_sums(const StepRows& a, Index count, const StepMatrix& b, const float* bias, Index columns,
              Range panels, Give give) {
  const auto give_rows = [&](Index row, Index tile, Index panel, const float* sums) {
    const Index end = smaller(columns, (panel + 1) * kWidth);
    for (Index r = 0; r < tile; ++r, sums += kWidth) {
      for (Index column = panel * kWidth; column < end; column += kLanes)
        give(row + r, column, Simd::load(sums + column % kWidth));
    }
  };
  if constexpr (kHasTiles<kPrecision>) {
    const auto vectors = [&](Index panel) { return last_of(columns).used(panel); };
    const auto start = [&](Index, Index panel) { return bias + panel * kWidth; };
    if (in_tiles<kPrecision>(b, count))
      return for_tile_sums<kPrecision>(a, {0, count}, b, panels, false, vectors, start, {.row = 0},
                                       give_rows);
  }
  if constexpr (!kOnlyTiles<kPrecision>) {
    if (is_grouped<kPrecision>(b)) {
      const auto begin = [&](Index, Index panel, float* sums) {
        std::memcpy(sums, bias + panel * kWidth, kWidth * sizeof *bias);
      };
      for_groups(a, {0, count}, b, panels, false, begin, give_rows);
    } else {
      for_blocks({0, count}, panels, false, [&](auto tile, auto side, Index row, Index panel) {
        constexpr int kCount = decltype(tile)::value, kPanels = decltype(side)::value;
        Sums<kCount, kPanels> sums;
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < 4 * kPanels; ++j) sums[r][j] = Simd::load(bias + panel * kWidth + j * kLanes);
        }
        add_product<kPrecision, kCount, kPanels>(a, row, b, panel, sums);
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < 4 * kPanels; ++j) {
            const Index column = panel * kWidth + j * kLanes;
            if (column >= columns) break;
            give(row + r, column, sums[r][j]);
          }
        }
      });
    }
  }
}

}  // namespace cellerate::CELLERATE_TARGET
