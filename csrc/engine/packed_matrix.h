// Packs weights into the matrices that row_products.h multiplies: once, in one block of memory.
#pragma once

#include "engine/row_tiles.h"

namespace cellerate::CELLERATE_TARGET {

inline uint16_t round_to_bf16(float x) {
  uint16_t lanes[kLanes];
  Simd::store_bf16(lanes, Simd::set(x));
  return lanes[0];
}

// The precision in which to store a matrix (K, panels). Targets that widen bfloat16 store float32 if the weights are so
// few that widening them takes more time than it saves.
inline Precision precision_kept(Precision precision, Index k, Index panels) {
  constexpr Index kFew = 128 << 10;  // bytes
  const bool widens = kWidens && precision == Precision::kBfloat16;
  return widens && k * panels * kWidth * 4 <= kFew ? Precision::kFloat32 : precision;
}

// Packs column n in int4: groups of numbers from -8 to 7, rounded as in cellerate.runtime.narrowing. Weights that were
// rounded in this way before keep their numbers and scales.
template <class Weight>
void pack_groups(Weight weight, Index n, const StepMatrix& to) {
  constexpr Index kRows4 = 4 * kGroup;
  const Index pairs = ceil_div(to.depth, 2), count = ceil_div(to.depth, kGroup);
  const Index panel = n / kWidth, lane = n % kWidth;
  for (Index group = 0; group < count; ++group) {
    float extreme = 0;
    for (Index row = group * kRows4; row < (group + 1) * kRows4; ++row) {
      if (__builtin_fabsf(weight(row)) > __builtin_fabsf(extreme)) extreme = weight(row);
    }
    uint32_t bits = static_cast<uint32_t>(round_to_bf16(extreme / -8)) << 16;
    auto scale = __builtin_bit_cast(float, bits);
    // If the scale would be a denormal number, the group becomes zeros.
    if (__builtin_fabsf(scale) < 1e-37f) {
      scale = 1;
      bits = __builtin_bit_cast(uint32_t, scale);
    }
    int32_t sum = 0;
    const auto number = [&](Index row) {
      const float quotient = __builtin_nearbyintf(weight(row) / scale);
      const auto found = static_cast<int32_t>(quotient > 7 ? 7.0f : quotient);
      sum += found;
      return static_cast<uint32_t>(found + kNumberOffset) & 15;
    };
    for (Index pair = group * kGroup / 2; pair < smaller((group + 1) * kGroup / 2, pairs); ++pair) {
      uint32_t word = 0;
      for (int byte = 0; byte < 4; ++byte)
        word |= (number(8 * pair + byte) | number(8 * pair + 4 + byte) << 4) << 8 * byte;
      std::memcpy(to.words + (panel * pairs + pair) * kWidth + lane, &word, sizeof word);
    }
    bits |= static_cast<uint32_t>(-sum) & 0xffff;
    std::memcpy(to.groups + (panel * count + group) * kWidth + lane, &bits, sizeof bits);
  }
}

// Packs a matrix (K, stride): packed column c is its column `column(c)`, or zeros if that is negative.
template <class Column>
void pack_matrix(Precision precision, const float* from, Index k, Index stride, Column column,
                 const StepMatrix& to) {
  const bool rounds = precision == Precision::kBfloat16;
  precision = precision_kept(precision, k, to.columns_panels);
  const int each = elements_of_word(precision);
  for (Index n = 0; n < to.columns_panels * kWidth; ++n) {
    const Index source = column(n);
    const auto weight = [&](Index row) {
      return row < k && source >= 0 ? from[row * stride + source] : 0.0f;
    };
    if (precision == Precision::kInt4) {
      pack_groups(weight, n, to);
      continue;
    }
    float scale = 1;
    if (precision == Precision::kInt8) {
      float largest = 0;
      for (Index row = 0; row < k; ++row) {
        const float size = __builtin_fabsf(weight(row));
        largest = size > largest ? size : largest;
      }
      // If the scale would be a denormal number, the column may become zeros.
      scale = largest / 127 < 1e-37f ? 1 : largest / 127;
      to.scales[n] = scale;
    }
    int32_t sum = 0;
    for (Index word = 0; word < to.stride; ++word) {
      const Index place = precision == Precision::kBfloat16
                              ? word_in_panel<Precision::kBfloat16>(to.stride, word, n % kWidth)
                              : word * kWidth + n % kWidth;
      float* at = to.words + n / kWidth * to.stride * kWidth + place;
      if (precision == Precision::kFloat32) {
        const float number = weight(word);
        const uint32_t rounded = static_cast<uint32_t>(round_to_bf16(number)) << 16;
        *at = rounds ? __builtin_bit_cast(float, rounded) : number;
      } else if (precision == Precision::kBfloat16) {
        const uint16_t pair[2] = {round_to_bf16(weight(2 * word)), round_to_bf16(weight(2 * word + 1))};
        std::memcpy(at, pair, sizeof pair);
      } else {
        int8_t bytes[4];
        for (int n4 = 0; n4 < each; ++n4) {
          const float quotient = __builtin_nearbyintf(weight(4 * word + n4) / scale);
          bytes[n4] = static_cast<int8_t>(quotient);
          sum += bytes[n4];
        }
        std::memcpy(at, bytes, sizeof bytes);
      }
    }
    if (precision == Precision::kInt8) to.starts[n] = -Simd::kByteOffset * sum;
  }
}

inline void lay_out_matrix(Precision precision, Index k, Index panels, Layout& memory, StepMatrix& matrix) {
  matrix.columns_panels = panels;
  precision = precision_kept(precision, k, panels);
  matrix.narrow = kWidens && precision == Precision::kBfloat16 ? k : 0;
  matrix.depth = ceil_div(k, elements_of_word(precision));
  const bool pairs = precision == Precision::kInt4, bytes = precision == Precision::kInt8;
  const bool tiles = Simd::kTiles && (bytes || precision == Precision::kBfloat16);
  matrix.stride = tiles ? round_up(matrix.depth, kTileWords) : matrix.depth;
  matrix.words = memory.take<float>(panels * ceil_div(matrix.stride, pairs ? 2 : 1) * kWidth);
  if (pairs) matrix.groups = memory.take<float>(panels * ceil_div(matrix.depth, kGroup) * kWidth);
  if (bytes) {
    matrix.starts = memory.take<int32_t>(panels * kWidth);
    matrix.scales = memory.take<float>(panels * kWidth);
  }
}

// Whether |h| is at most 1.
constexpr bool is_bounded(Activation activation, Activation recurrent_activation) {
  return activation == Activation::kTanh &&
         (recurrent_activation == Activation::kSigmoid || recurrent_activation == Activation::kHardSigmoid);
}

// Writes embeddings·kernel + bias, [id][panel][kWidth], for embeddings (V, D) and a kernel (D, 4H). It is float32
// whatever the precision, because that costs nothing at a step.
template <class Column>
void fill_table(const float* embeddings, Index vocabulary, Index inputs, const float* kernel, Column column,
                const float* bias, float* table) {
  const Index units = column.units, panels = ceil_div(units, kLanes);
  StepMatrix packed;
  const Workspace workspace(
      [&](Layout& layout) { lay_out_matrix(Precision::kFloat32, inputs, panels, layout, packed); });
  pack_matrix(Precision::kFloat32, kernel, inputs, 4 * units, column, packed);
  const StepRows rows{embeddings, inputs, nullptr};
  for_blocks({0, vocabulary}, {0, panels}, false, [&](auto count, auto side, Index row, Index panel) {
    constexpr int kCount = decltype(count)::value, kPanels = decltype(side)::value;
    Sums<kCount, kPanels> sums;
    for (int r = 0; r < kCount; ++r) {
      for (int j = 0; j < 4 * kPanels; ++j) sums[r][j] = Simd::load(bias + panel * kWidth + j * kLanes);
    }
    add_product<Precision::kFloat32, kCount, kPanels>(rows, row, packed, panel, sums);
    for (int r = 0; r < kCount; ++r) {
      float* to = table + ((row + r) * panels + panel) * kWidth;
      for (int j = 0; j < 4 * kPanels; ++j) Simd::store(to + j * kLanes, sums[r][j]);
    }
  });
}

}  // namespace cellerate::CELLERATE_TARGET
