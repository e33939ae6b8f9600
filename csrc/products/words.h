// The words of products, and the matrices that they form.
//
// Everything is counted in words of 32 bits: one float, or two bfloat16 that are neighbours along the summed axis K.
// A panel of B is four vectors wide and lies as [K][4 * lanes].
#pragma once

#include <cstdint>

#include "cells/lstm.h"

// Forces inlining into the caller's loop. Without vectors, inlining would only enlarge the code.
#if defined(__AVX2__) || defined(__ARM_NEON)
#define CELLERATE_PART_OF_CALLER [[gnu::always_inline]]
#else
#define CELLERATE_PART_OF_CALLER
#endif

// Keeps a large function in one copy: GCC would make another for each constant argument.
#ifdef __clang__
#define CELLERATE_ONE_COPY [[gnu::noinline]]
#else
#define CELLERATE_ONE_COPY [[gnu::noinline, gnu::noclone]]
#endif

namespace cellerate::CELLERATE_TARGET {

using F = Simd::F;
using Index = int64_t;

constexpr int kLanes = Simd::kLanes;
constexpr int kWidth = 4 * kLanes;  // columns of a panel
constexpr int kRows = Simd::kRows;

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index b) { return ceil_div(a, b) * b; }
constexpr Index smaller(Index a, Index b) { return a < b ? a : b; }
constexpr Index larger(Index a, Index b) { return a > b ? a : b; }

struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
};

// Part `index` of `count` of [0, total), cut at multiples of `grain`.
inline Range share(Index total, Index index, Index count, Index grain = 1) {
  const Index grains = ceil_div(total, grain);
  return {smaller(total, grains * index / count * grain),
          smaller(total, grains * (index + 1) / count * grain)};
}

// Fetches memory that is read soon into the cache, where the processor does not foresee it. Always inlined, because GCC
// takes a function that only fetches for one without effect, and leaves its calls out.
[[gnu::always_inline]] inline void fetch(const void* from, Index bytes = 1) {
  for (Index at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
}

// The last panel of a matrix, if only its first vectors are used. Products may leave the others alone.
struct LastPanel {
  Index panel = -1;
  int vectors = 4;
  // The vectors of a panel that are used.
  int used(Index of) const { return of == panel ? vectors : 4; }
};
// That of a matrix of `columns` columns.
constexpr LastPanel last_of(Index columns) {
  const Index whole = columns / kWidth;
  return {whole, static_cast<int>(ceil_div(columns - whole * kWidth, kLanes))};
}

// A matrix of floats in panels: [panel][row][kWidth].
struct Panels {
  float* data = nullptr;
  Index rows = 0;
  LastPanel last{};
  float* at(Index panel, Index row) const { return data + (panel * rows + row) * kWidth; }
};

// The left factor of a product. Block n of row r lies at data + n * block + r * row and is `run` words long; the words
// of all blocks make up K. For gradients of gates, a block is a panel of units, gate after gate. If the last panel is
// not full, `tail` words of each of its gates count, and its gates lie `tail_gate` words apart; the other words may be
// skipped.
struct Left {
  const float* data;
  Index row, block, run, blocks;
  Index tail = 0, tail_gate = 0;
};

}  // namespace cellerate::CELLERATE_TARGET
