// Products of a few rows and packed weights, and the packing of the rows.
//
// Weights lie in panels of four vectors, as in gemm.h. A word of the summed axis K is one float, two bfloat16 or four
// bytes.
#pragma once

#include "cells/activations.h"
#include "cells/lstm_layout.h"
#include "systems/threads.h"

namespace cellerate::CELLERATE_TARGET {

// The panels that a single row multiplies at once: enough sums to hide the latency of a multiply-add.
constexpr int kSide = kRows >= 6 ? 4 : 2;

constexpr int elements_of_word(Precision precision) {
  return precision == Precision::kFloat32 ? 1 : precision == Precision::kBfloat16 ? 2 : 4;
}

// Words of K that share a scale in int4: 32 numbers, as in cellerate.runtime.narrowing.
constexpr Index kGroup = 8;

// The right factor of a product, packed.
struct StepMatrix {
  Index columns_panels = 0;
  Index depth = 0;            // words of K
  Index stride = 0;           // words of K from panel to panel: depth, or more for whole tiles of row_tiles.h
  float* words = nullptr;     // [panel][stride][kWidth]; int4: [panel][pairs of words][kWidth]
  int32_t* starts = nullptr;  // int8: [panel][kWidth], -kByteOffset times the sum of a column
  float* scales = nullptr;    // int8: [panel][kWidth]
  // int4: [panel][group][kWidth], a scale in bfloat16 above minus the sum of the numbers of a column; else null.
  float* groups = nullptr;
  // If the words are pairs of bfloat16 that are multiplied as floats, the number of elements in the sum; else 0.
  Index narrow = 0;
};

// Whether the words are int4. A target with tiles leaves those to another one.
template <Precision kPrecision>
inline bool is_grouped(const StepMatrix& b) {
  return kPrecision == Precision::kInt8 && !Simd::kTiles && b.groups != nullptr;
}

// Whether a target multiplies bfloat16 as floats. Then x and h stay floats; only weights are rounded.
constexpr bool kWidens = !Simd::kBfloat16Products;

// A vector's bits as integers.
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

// int4 numbers are multiplied as the upper halves of bytes, so 16 times too large, because the upper numbers then need
// no shift. On targets whose byte products take absolute values (kShortSums), the numbers are stored plus 8 and summed
// in 16 bits; then eight times the sum of the left factor is subtracted, and the sum times 16 is the same result.
constexpr int kNumberOffset = Simd::kShortSums ? 8 : 0;

// The numbers in the lower and in the upper half of each byte, as signed bytes.
inline F lower_numbers(F pairs) {
  return (F)(Simd::kShortSums ? (Bits)pairs & 0x0f0f0f0f : (Bits)pairs << 4 & 0xf0f0f0f0);
}
inline F upper_numbers(F pairs) {
  return (F)(Simd::kShortSums ? (Bits)pairs >> 4 & 0x0f0f0f0f : (Bits)pairs & 0xf0f0f0f0);
}
// The initial value of a sum of int4 products, and its scale, from a word of StepMatrix::groups.
inline Simd::I start_of([[maybe_unused]] F group) {
  if constexpr (Simd::kByteOffset == 0) return (Simd::I)Ints{};
  return (Simd::I)(((Ints)((Bits)group << 16) >> 16) * (16 * Simd::kByteOffset));
}
inline F scale_of(F group) { return (F)((Bits)group & 0xffff0000u); }

// sum + the products of a word of bytes and a word of numbers.
template <class S = Simd>
inline Simd::I dot_numbers(F x, F numbers, Simd::I sum) {
  if constexpr (S::kShortSums) return S::dot_shorts(x, numbers, sum);
  return S::dot_bytes(x, numbers, sum);
}
// The correction to add to the sums of a group, for `count` words of a row, at most kGroup.
template <class S = Simd>
inline Ints taken_off([[maybe_unused]] const float* words, [[maybe_unused]] Index count) {
  if constexpr (S::kShortSums) {
    float whole[kGroup] = {};
    if (count < kGroup) {
      std::memcpy(whole, words, static_cast<size_t>(count) * sizeof *words);
      words = whole;
    }
    return Ints{} - 16 * kNumberOffset * S::sum_of_bytes(words);
  }
  return Ints{};
}
// The sums of a group as floats, 16 times too large.
template <class S = Simd>
inline F whole_of(Simd::I sums, [[maybe_unused]] Ints off) {
  if constexpr (S::kShortSums) return S::to_float((Simd::I)((Ints)S::sixteenfold(sums) + off));
  return S::to_float(sums);
}
// sums += the total of all groups of a row.
inline void add_total(F total, float row_scale, float* sums) {
  Simd::store(sums, Simd::fma(total, Simd::set(row_scale / 16), Simd::load(sums)));
}

// The left factor: row r lies at words + r * row. For int8, `scales` has a factor for each row, or is null for 1/127.
struct StepRows {
  const float* words;
  Index row;
  const float* scales;
  float scale_of(Index r) const { return scales == nullptr ? 1.0f / 127 : scales[r]; }
};

// The sums of kCount rows and the first kVectors vectors of each of kPanels panels.
template <int kCount, int kPanels, int kVectors = 4>
using Sums = F[kCount][kVectors * kPanels];

// Adds the products of one word of K for kCount rows: sum = product(x, w, sum). Loads weights that rows share first.
template <int kCount, int kPanels, int kVectors, class Sum, class Product>
inline void add_word(const float* words, Index row, const float* weights, Index next_panel, Sum& sums,
                     Product product) {
  if constexpr (kCount == 1) {
    const F x = Simd::set(words[0]);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors * kPanels; ++j) {
      const F w = Simd::load(weights + j / kVectors * next_panel + j % kVectors * kLanes);
      sums[0][j] = product(x, w, sums[0][j]);
    }
  } else {
    add_outer_product<kCount, kVectors>([&](int r) { return Simd::set(words[r * row]); }, weights, sums,
                                        product);
  }
}

// Like add_word(), for one row of floats and all words of bfloat16 weights; takes the lower number of a pair first.
template <int kPanels, int kVectors>
inline void add_narrow(const float* x, const float* weights, Index next_panel, Index count, F* sums) {
  for (Index k = 0; k < count; k += 2, weights += kWidth) {
    const F low = Simd::set(x[k]), high = Simd::set(k + 1 < count ? x[k + 1] : 0.0f);
#pragma GCC unroll 16
    for (int j = 0; j < kVectors * kPanels; ++j) {
      const F pair = Simd::load(weights + j / kVectors * next_panel + j % kVectors * kLanes);
      sums[j] = Simd::fma(high, Simd::high_half(pair), Simd::fma(low, Simd::low_half(pair), sums[j]));
    }
  }
}
// The same for several rows. It loads the pairs twice, because the targets that widen have no registers to keep them.
template <int kCount, int kVectors>
inline void add_narrow(const float* x, Index row, const float* weights, Index count,
                       F (&sums)[kCount][kVectors]) {
  const auto add = [&](const float* pairs, Index k, auto half_of) {
    F at[kCount];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) at[r] = Simd::set(x[r * row + k]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const F half = half_of(Simd::load(pairs + j * kLanes));
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) sums[r][j] = Simd::fma(at[r], half, sums[r][j]);
    }
  };
  for (Index k = 0; k < count; k += 2, weights += kWidth) {
    add(weights, k, Simd::low_half);
    const float* again = weights;
    asm("" : "+r"(again));  // else the compiler would keep the pairs and move sums to memory
    if (k + 1 < count) add(again, k + 1, Simd::high_half);
  }
}

// sums += the product of up to three rows of bytes and a panel of int4; sums each group in integers, then scales it.
template <int kCount>
[[gnu::noinline]] void add_groups_of(const StepRows& a, Index row, const StepMatrix& b, Index panel,
                                     float* sums) {
  // Short sums, or the sums of several rows, hide the latency of a product anyway.
  constexpr bool kApart = kCount == 1 && !Simd::kShortSums;
  const float* x = a.words + row * a.row;
  const float* weights = b.words + panel * ceil_div(b.depth, 2) * kWidth;
  const float* groups = b.groups + panel * ceil_div(b.depth, kGroup) * kWidth;
  F total[kCount][4];
#pragma GCC unroll 16
  for (int n = 0; n < 4 * kCount; ++n) total[n / 4][n % 4] = Simd::set(0);
  for (Index first = 0; first < b.depth; first += kGroup, groups += kWidth) {
    Simd::I lower[kCount][4], upper[kCount][4];
#pragma GCC unroll 16
    for (int n = 0; n < 4 * kCount; ++n) {
      lower[n / 4][n % 4] = start_of(Simd::load(groups + n % 4 * kLanes));
      upper[n / 4][n % 4] = (Simd::I)Ints{};
    }
    const Index end = smaller(first + kGroup, b.depth);
    for (Index k = first; k < end; k += 2, weights += kWidth) {
      // If the last pair lacks its second word, this word and the upper numbers are zeros.
      F low[kCount], high[kCount];
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        low[r] = Simd::set(x[r * a.row + k]);
        high[r] = Simd::set(k + 1 < end ? x[r * a.row + k + 1] : 0.0f);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const F both = Simd::load_shared(weights + j * kLanes);
        const F lower_ones = lower_numbers(both), upper_ones = upper_numbers(both);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
          lower[r][j] = dot_numbers(low[r], lower_ones, lower[r][j]);
          Simd::I& sum = kApart ? upper[r][j] : lower[r][j];
          sum = dot_numbers(high[r], upper_ones, sum);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const Ints off = taken_off(x + r * a.row + first, end - first);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const auto sum = kApart ? (Simd::I)((Ints)lower[r][j] + (Ints)upper[r][j]) : lower[r][j];
        total[r][j] = Simd::fma(whole_of(sum, off), scale_of(Simd::load(groups + j * kLanes)), total[r][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < 4 * kCount; ++n)
    add_total(total[n / 4][n % 4], a.scale_of(row + n / 4), sums + n * kLanes);
}

// sums += A·B for `count` rows from `row`, at most kRows, and a panel of int4; sums are (count, kWidth). Unlike
// add_product(), it is out of line, because it is the only difference between programs in int4 and int8.
inline void add_groups(const StepRows& a, Index row, Index count, const StepMatrix& b, Index panel,
                       float* sums) {
  while (count > 0) {
    // Four rows run as two and two, because one row takes as long as two.
    const Index tile = count == 4 ? 2 : smaller(3, count);
    if (tile == 3)
      add_groups_of<3>(a, row, b, panel, sums);
    else if (tile == 2)
      add_groups_of<2>(a, row, b, panel, sums);
    else
      add_groups_of<1>(a, row, b, panel, sums);
    row += tile, count -= tile, sums += tile * kWidth;
  }
}

// Calls begin(row, panel, sums of the row) for each row and panel, adds A·B in int4, and calls end(first row, how many,
// panel, sums) for a few rows at once. `backwards` goes from the last panels to the first.
template <class Begin, class End>
inline void for_groups(const StepRows& a, Range rows, const StepMatrix& b, Range panels, bool backwards,
                       Begin begin, End end) {
  alignas(64) float sums[kRows * kWidth];
  for (Index n = 0; n < panels.size(); ++n) {
    const Index panel = backwards ? panels.end - 1 - n : panels.begin + n;
    for (Index row = rows.begin; row < rows.end; row += kRows) {
      const Index count = smaller(kRows, rows.end - row);
      for (Index r = 0; r < count; ++r) begin(row + r, panel, sums + r * kWidth);
      add_groups(a, row, count, b, panel, sums);
      end(row, count, panel, static_cast<const float*>(sums));
    }
  }
}

// sums += A·B for kCount rows from `row` and the first kVectors vectors of kPanels panels from `panel`.
//
// All loops over sums are unrolled, and the function is inlined; otherwise the compiler would keep the sums in memory
// and copy them twice. Without vectors the sums are in memory anyway.
template <Precision kPrecision, int kCount, int kPanels, int kVectors = 4>
CELLERATE_PART_OF_CALLER inline void add_product(const StepRows& a, Index row, const StepMatrix& b,
                                                 Index panel, Sums<kCount, kPanels, kVectors>& sums) {
  const float* words = a.words + row * a.row;
  const Index next_panel = b.stride * kWidth;
  const float* weights = b.words + panel * next_panel;
  if constexpr (kPrecision == Precision::kInt8) {
    Simd::I whole[kCount][kVectors * kPanels];
    const int32_t* starts = b.starts + panel * kWidth;
    const float* scales = b.scales + panel * kWidth;
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors * kPanels; ++j)
        whole[r][j] = Simd::load_int(starts + j / kVectors * kWidth + j % kVectors * kLanes);
    }
    for (Index k = 0; k < b.depth; ++k, weights += kWidth) {
      add_word<kCount, kPanels, kVectors>(words + k, a.row, weights, next_panel, whole,
                                          [](F x, F w, Simd::I sum) { return Simd::dot_bytes(x, w, sum); });
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F scale = Simd::set(a.scale_of(row + r));
#pragma GCC unroll 16
      for (int j = 0; j < kVectors * kPanels; ++j) {
        const F factor = Simd::mul(Simd::load(scales + j / kVectors * kWidth + j % kVectors * kLanes), scale);
        sums[r][j] = Simd::fma(Simd::to_float(whole[r][j]), factor, sums[r][j]);
      }
    }
  } else {
    F local[kCount][kVectors * kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors * kPanels; ++j) local[r][j] = sums[r][j];
    }
    Index depth = b.depth;
    if constexpr (kWidens) {
      if (b.narrow > 0) {
        if constexpr (kCount == 1)
          add_narrow<kPanels, kVectors>(words, weights, next_panel, b.narrow, local[0]);
        else
          add_narrow<kCount, kVectors>(words, a.row, weights, b.narrow, local);
        depth = 0;
      }
    }
    for (Index k = 0; k < depth; ++k, weights += kWidth) {
      add_word<kCount, kPanels, kVectors>(words + k, a.row, weights, next_panel, local, [](F x, F w, F sum) {
        return multiply_add<kPrecision == Precision::kBfloat16>(x, w, sum);
      });
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors * kPanels; ++j) sums[r][j] = local[r][j];
    }
  }
}

template <int kCount>
struct PanelCount {
  static constexpr int value = kCount;
};

// Calls body(Rows<r>{}, PanelCount<p>{}, first row, first panel) for blocks that cover the rows and panels;
// `backwards` goes from the last panels to the first.
template <class Body>
inline void for_blocks(Range rows, Range panels, bool backwards, Body body) {
  const auto in_turn = [backwards](Index count, auto each) {
    for (Index n = 0; n < count; ++n) each(backwards ? count - 1 - n : n);
  };
  if (rows.size() > 1) {
    in_turn(panels.size(), [&](Index n) {
      for_tiles(rows, [&](auto count, Index row) { body(count, PanelCount<1>{}, row, panels.begin + n); });
    });
    return;
  }
  const Index whole = panels.size() / kSide;
  in_turn(whole,
          [&](Index n) { body(Rows<1>{}, PanelCount<kSide>{}, rows.begin, panels.begin + n * kSide); });
  Index panel = panels.begin + whole * kSide;
  if constexpr (kSide > 2) {
    if (panel + 2 <= panels.end) {
      body(Rows<1>{}, PanelCount<2>{}, rows.begin, panel);
      panel += 2;
    }
  }
  if (panel < panels.end) body(Rows<1>{}, PanelCount<1>{}, rows.begin, panel);
}

// Turns the first n floats of a row into the words of a product's left factor, and returns their scale.
template <Precision kPrecision>
float row_to_words(const float* from, Index n, float* to) {
  if constexpr (kPrecision == Precision::kFloat32) {
    if (from != to) std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
    return 1;
  } else if constexpr (kPrecision == Precision::kBfloat16) {
    auto* halves = reinterpret_cast<uint16_t*>(to);
    for (Index first = 0; first < n; first += kLanes) {
      Simd::store_bf16(halves + first, load_upto<Storage::kFloat32>(from, first, n));
    }
    return 1;
  } else {
    F largest = Simd::set(0), strange = Simd::set(0);
    for (Index first = 0; first < n; first += kLanes) {
      const F x = load_upto<Storage::kFloat32>(from, first, n);
      largest = Simd::max(largest, Simd::max(x, Simd::sub(Simd::set(0), x)));
      // Becomes NaN with the first NaN or infinity.
      strange = Simd::fma(x, Simd::set(0), strange);
    }
    float lanes[kLanes], stranges[kLanes];
    Simd::store(lanes, largest);
    Simd::store(stranges, strange);
    // Reduces by halves, because each step then waits for few others.
#pragma GCC unroll 8
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
      for (int lane = 0; lane < half; ++lane) {
        lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
        stranges[lane] += stranges[lane + half];
      }
    }
    const float most = lanes[0], addend = stranges[0];
    const float scale = most < 1e-35f ? 1 : most / 127;
    const F inverse = Simd::set(most < 1e-35f ? 0 : 127 / most);
    auto* bytes = reinterpret_cast<uint8_t*>(to);
    for (Index first = 0; first < n; first += kLanes) {
      const F x = Simd::mul(load_upto<Storage::kFloat32>(from, first, n), inverse);
      Simd::store_bytes(bytes + first, clamp(x, -127, 127));
    }
    return scale + addend;
  }
}

// Stores units [first, first + kLanes) of an h in [-1, 1] into the words of its row.
template <Precision kPrecision>
void store_state(float* row, Index first, F h) {
  if constexpr (kPrecision == Precision::kFloat32) {
    Simd::store(row + first, h);
  } else if constexpr (kPrecision == Precision::kBfloat16) {
    Simd::store_bf16(reinterpret_cast<uint16_t*>(row) + first, h);
  } else {
    Simd::store_bytes(reinterpret_cast<uint8_t*>(row) + first,
                      clamp(Simd::mul(h, Simd::set(127)), -127, 127));
  }
}

// Like row_to_words(), for n numbers in [-1, 1], with the scale of store_state().
template <Precision kPrecision>
void states_to_words(const float* from, Index n, float* to) {
  for (Index first = 0; first < n; first += kLanes)
    store_state<kPrecision>(to, first, load_upto<Storage::kFloat32>(from, first, n));
}

// Whether the target multiplies the words of a precision in the tiles of row_tiles.h.
template <Precision kPrecision>
constexpr bool kHasTiles = Simd::kTiles && kPrecision != Precision::kFloat32;

// Whether vectors multiply no words of a precision. The sums of bfloat16 round in another order in tiles.
template <Precision kPrecision>
constexpr bool kOnlyTiles = kHasTiles<kPrecision> && kPrecision == Precision::kBfloat16;

// Tiles read so many rows beyond the last one of a left factor, which need room.
template <Precision kPrecision>
constexpr Index kTileRowsBeyond = kHasTiles<kPrecision> ? kTileRows - 1 : 0;

// Clears the words of a row from number `count` to the end of its last tile. Their weights are zero, but as bfloat16 they
// might be NaN.
template <Precision kPrecision>
inline void clear_to_tile([[maybe_unused]] float* row, [[maybe_unused]] Index count) {
  if constexpr (kHasTiles<kPrecision> && kPrecision == Precision::kBfloat16) {
    const Index end = 2 * round_up(ceil_div(count, 2), kTileWords);
    std::memset(reinterpret_cast<uint16_t*>(row) + count, 0,
                static_cast<size_t>(end - count) * sizeof(uint16_t));
  }
}

// The threads that share a block of rows, and which of them this one is.
struct Team {
  int me, count;
  Barrier* barrier;
  // A single thread skips share(), whose two divisions would take a hundredth of a step.
  Range share_of(Index total) const { return count == 1 ? Range{0, total} : share(total, me, count); }
  void meet() const {
    if (count > 1) barrier->wait();
  }
};

// The rows of a product's left factor as words. The threads of a team convert them together.
template <Precision kPrecision>
class RowWords {
  // Converting at most so many numbers takes less time than meeting: then each thread converts all rows for itself.
  static constexpr Index kFew = 4096;

 public:
  // Room for `most` rows.
  void lay_out(Index most, Index inputs, const Team& team, Layout& memory) {
    inputs_ = inputs;
    row_ = spread(ceil_div(round_up(inputs, kLanes), elements_of_word(kPrecision)));
    own_ = team.count > 1 && most * inputs <= kFew;
    // A block of fewer rows may need more.
    const Index rows = larger(most, team.count * smaller(most, kFew / inputs)),
                mine = own_ ? team.me * most : 0;
    auto* words = memory.take<float>((rows + kTileRowsBeyond<kPrecision>)*row_);
    auto* scales = memory.take<float>(rows);
    if (words == nullptr) return;
    words_ = words + mine * row_;
    scales_ = scales + mine;
  }
  // Converts `count` rows from the numbers at from(row), which are in [-1, 1] if they are states. The team must meet
  // before the next call.
  template <class From>
  StepRows make(const Team& team, Index count, bool states, From from) const {
    const Range mine = own_ ? Range{0, count} : team.share_of(count);
    for (Index row = mine.begin; row < mine.end; ++row) {
      float* to = words_ + row * row_;
      if (states) {
        states_to_words<kPrecision>(from(row), inputs_, to);
      } else {
        scales_[row] = row_to_words<kPrecision>(from(row), inputs_, to);
      }
      clear_to_tile<kPrecision>(to, inputs_);
    }
    if (!own_) team.meet();
    return {words_, row_, kPrecision == Precision::kInt8 && !states ? scales_ : nullptr};
  }

 private:
  Index inputs_ = 0, row_ = 0;
  bool own_ = false;
  float *words_ = nullptr, *scales_ = nullptr;
};

}  // namespace cellerate::CELLERATE_TARGET
