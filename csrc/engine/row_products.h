// Products of a few rows with packed weights, and rows as their left factors.
//
// Weights lie in panels of four vectors, as in gemm.h. A word of the summed axis K is one float, two bfloat16 or four
// bytes.
#pragma once

#include "cells/activations.h"
#include "cells/lstm_layout.h"

namespace cellerate::CELLERATE_TARGET {

// How many panels a single row takes side by side: enough sums to hide the latency of a multiply-add.
constexpr int kSide = kRows >= 6 ? 4 : 2;

constexpr int elements_of_word(Precision precision) {
  return precision == Precision::kFloat32 ? 1 : precision == Precision::kBfloat16 ? 2 : 4;
}

// The right factor of a product, packed.
struct StepMatrix {
  Index columns_panels = 0;
  Index depth = 0;            // words of K
  float* words = nullptr;     // [panel][depth][kWidth]
  int32_t* starts = nullptr;  // int8: [panel][kWidth], -kByteOffset times the sum of a column
  float* scales = nullptr;    // int8: [panel][kWidth]
  // Floats are multiplied, but the words are pairs of bfloat16, and this many numbers are summed; else 0.
  Index narrow = 0;
};

// Whether a target multiplies bfloat16 as floats. Then x and h stay floats; only weights are rounded.
constexpr bool kWidens = !Simd::kBfloat16Products;

// A panel of narrow weights as floats, for all tiles of rows that multiply by it one after another: to widen it for each
// tile would take as long as half of the products.
class WidePanel {
 public:
  // Room for a panel of any of these matrices, of this thread in a team of so many.
  template <class... Matrices>
  void lay_out(int me, int count, Layout& memory, const Matrices&... matrices) {
    Index most = 0;
    for (const StepMatrix* each : {&matrices...})
      most = larger(most, each->narrow == 0 ? 0 : 2 * each->depth);
    if (most == 0) return;
    auto* room = memory.take<float>(static_cast<size_t>(count * most * kWidth));
    words_ = room == nullptr ? nullptr : room + me * most * kWidth;
  }
  const float* of(const float* weights, Index depth) {
    if (weights == widened_) return words_;
    float* to = words_;
    for (Index k = 0; k < depth; ++k, to += 2 * kWidth) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const F pair = Simd::load(weights + k * kWidth + j * kLanes);
        Simd::store(to + j * kLanes, Simd::low_half(pair));
        Simd::store(to + kWidth + j * kLanes, Simd::high_half(pair));
      }
    }
    widened_ = weights;
    return words_;
  }

 private:
  float* words_ = nullptr;
  const float* widened_ = nullptr;
};

// The left factor: row r lies at words + r * row. For int8, `scales` has a factor for each row, or is null for 1/127.
struct StepRows {
  const float* words;
  Index row;
  const float* scales;
};

// Sums of kCount rows and kPanels panels, of which kVectors vectors each are wanted.
template <int kCount, int kPanels, int kVectors = 4>
using Sums = F[kCount][kVectors * kPanels];

// Takes one word of K for kCount rows: sum = product(x, w, sum). Weights that several rows share are loaded first.
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
    F w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) w[j] = Simd::load(weights + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F x = Simd::set(words[r * row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[r][j] = product(x, w[j], sums[r][j]);
    }
  }
}

// The same as add_word() for a row of floats and all words of narrow weights, the lower number of a pair first.
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

// sums += A·B for kCount rows from `row` and kPanels panels from `panel`, of which the first kVectors vectors.
//
// All loops over sums are unrolled, and it is a part of its caller; otherwise the compiler would keep the sums in memory,
// and copy them twice. Without vectors they are there anyway.
template <Precision kPrecision, int kCount, int kPanels, int kVectors = 4>
CELLERATE_PART_OF_CALLER inline void add_product(const StepRows& a, Index row, const StepMatrix& b,
                                                 Index panel, Sums<kCount, kPanels, kVectors>& sums,
                                                 [[maybe_unused]] WidePanel& wide) {
  const float* words = a.words + row * a.row;
  const Index next_panel = b.depth * kWidth;
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
      const F scale = Simd::set(a.scales == nullptr ? 1.0f / 127 : a.scales[row + r]);
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
      if (b.narrow > 0 && kCount == 1) {
        add_narrow<kPanels, kVectors>(words, weights, next_panel, b.narrow, local[0]);
        depth = 0;
      } else if (b.narrow > 0) {
        weights = wide.of(weights, b.depth);
        depth = b.narrow;
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
template <int kCount>
struct VectorCount {
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

// Turns the first n floats of a row into the words of a product's left factor, and gives their scale.
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
    // Half after half, so that one waits for few others.
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

// The same of n numbers in [-1, 1], whose scale is that of store_state().
template <Precision kPrecision>
void states_to_words(const float* from, Index n, float* to) {
  for (Index first = 0; first < n; first += kLanes)
    store_state<kPrecision>(to, first, load_upto<Storage::kFloat32>(from, first, n));
}

}  // namespace cellerate::CELLERATE_TARGET
