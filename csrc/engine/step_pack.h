// The weights of a chain in the form that the steps read: packed once, in one block of memory.
#pragma once

#include "engine/step_products.h"

namespace cellerate::CELLERATE_TARGET {

// The most bytes that a table of embeddings·kernel + bias is worth.
constexpr Index kLargestTable = Index{64} << 20;

struct PackedNode {
  StepKind kind;
  Index inputs, outputs;
  Activation activation, recurrent_activation;
  float epsilon;
  StepMatrix kernel, recurrent;
  float* bias;      // of a product, [panel][kWidth]; otherwise beta or offset, padded, or null
  float* factors;   // gamma or scale, padded, or null
  float* table;     // for an LSTM, [id][panel][kWidth], or null; for an embedding its rows, padded
  bool table_used;  // for an embedding: whether the LSTM after it has a table
  bool bounded;     // for an LSTM: whether |h| is at most 1
  bool usual;       // for an LSTM: whether its activations are tanh and sigmoid
};

struct PackedChain {
  Precision precision;
  int count;
  Index vocabulary, outputs, state_size, widest;
  bool masks_zero;
  PackedNode* nodes;
};

inline uint16_t round_to_bf16(float x) {
  uint16_t lanes[kLanes];
  Simd::store_bf16(lanes, Simd::set(x));
  return lanes[0];
}

// Packs a matrix (K, stride): packed column c is its column `column(c)`, or zeros if that is negative.
template <class Column>
void pack_matrix(Precision precision, const float* from, Index k, Index stride, Column column,
                 const StepMatrix& to) {
  const int each = elements_of_word(precision);
  for (Index n = 0; n < to.columns_panels * kWidth; ++n) {
    const Index source = column(n);
    const auto weight = [&](Index row) {
      return row < k && source >= 0 ? from[row * stride + source] : 0.0f;
    };
    float scale = 1;
    if (precision == Precision::kInt8) {
      float largest = 0;
      for (Index row = 0; row < k; ++row) {
        const float size = __builtin_fabsf(weight(row));
        largest = size > largest ? size : largest;
      }
      // A column so small that its scale would be a denormal number may become zeros.
      scale = largest / 127 < 1e-37f ? 1 : largest / 127;
      to.scales[n] = scale;
    }
    int32_t sum = 0;
    for (Index word = 0; word < to.depth; ++word) {
      float* at = to.words + (n / kWidth * to.depth + word) * kWidth + n % kWidth;
      if (precision == Precision::kFloat32) {
        *at = weight(word);
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
  matrix.depth = ceil_div(k, elements_of_word(precision));
  matrix.words = memory.take<float>(static_cast<size_t>(panels * matrix.depth * kWidth));
  if (precision == Precision::kInt8) {
    matrix.starts = memory.take<int32_t>(static_cast<size_t>(panels * kWidth));
    matrix.scales = memory.take<float>(static_cast<size_t>(panels * kWidth));
  }
}

// Where the columns of unit panels come from in a kernel of (K, 4H); -1 beyond its units.
struct UnitColumns {
  Index units;
  Index operator()(Index c) const {
    const Index unit = c / kWidth * kLanes + c % kLanes;
    return unit < units ? c % kWidth / kLanes * units + unit : -1;
  }
};

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

// Lays out a chain in memory and, if there is memory, packs it.
class StepPacker {
 public:
  StepPacker(const StepChain& chain, std::byte* memory) : chain_(chain), memory_(memory) {}

  size_t pack() {
    Layout layout(memory_);
    auto* packed = layout.take<PackedChain>(1);
    auto* nodes = layout.take<PackedNode>(static_cast<size_t>(chain_.count));
    const StepNode& embedding = chain_.nodes[0];
    const bool has_table = chain_.count > 1 && chain_.nodes[1].kind == StepKind::kLstm &&
                           embedding.inputs * round_up(chain_.nodes[1].outputs, kLanes) * 16 <= kLargestTable;
    PackedChain whole{chain_.precision, chain_.count, embedding.inputs, 0, 0, 0, embedding.masks_zero, nodes};
    for (int n = 0; n < chain_.count; ++n) {
      const StepNode& from = chain_.nodes[n];
      PackedNode node{};
      node.kind = from.kind;
      node.inputs = from.inputs;
      node.outputs = from.outputs;
      node.activation = from.activation;
      node.recurrent_activation = from.recurrent_activation;
      node.epsilon = from.epsilon;
      const bool tabled = n == 1 && has_table;
      switch (from.kind) {
        case StepKind::kEmbedding:
          node.table_used = has_table;
          if (!has_table) node.table = copy(layout, from.kernel, from.inputs * from.outputs);
          break;
        case StepKind::kLstm:
          pack_lstm(layout, from, node, tabled);
          whole.state_size += 2 * from.outputs;
          break;
        case StepKind::kDense:
          lay_out_matrix(chain_.precision, from.inputs, ceil_div(from.outputs, kWidth), layout, node.kernel);
          node.bias = layout.take<float>(static_cast<size_t>(node.kernel.columns_panels * kWidth));
          if (memory_ == nullptr) break;
          pack_matrix(
              chain_.precision, from.kernel, from.inputs, from.outputs,
              [&](Index c) { return c < from.outputs ? c : -1; }, node.kernel);
          for (Index c = 0; c < node.kernel.columns_panels * kWidth; ++c)
            node.bias[c] = from.bias != nullptr && c < from.outputs ? from.bias[c] : 0.0f;
          break;
        default:
          node.factors = copy(layout, from.kernel, from.outputs);
          node.bias = copy(layout, from.bias, from.outputs);
          break;
      }
      whole.outputs = from.outputs;
      whole.widest = larger(whole.widest, from.outputs);
      if (memory_ != nullptr) nodes[n] = node;
    }
    if (memory_ != nullptr) *packed = whole;
    return layout.bytes();
  }

 private:
  float* copy(Layout& layout, const float* from, Index count) {
    if (from == nullptr) return nullptr;
    auto* to = layout.take<float>(static_cast<size_t>(count));
    if (memory_ != nullptr) std::memcpy(to, from, static_cast<size_t>(count) * sizeof *from);
    return to;
  }

  void pack_lstm(Layout& layout, const StepNode& from, PackedNode& node, bool tabled) {
    const Index units = from.outputs, panels = ceil_div(units, kLanes);
    const auto width = static_cast<size_t>(panels * kWidth);
    const UnitColumns column{units};
    node.bounded = is_bounded(from.activation, from.recurrent_activation);
    node.usual = has_usual_gates(from.activation, from.recurrent_activation);
    lay_out_matrix(chain_.precision, units, panels, layout, node.recurrent);
    node.bias = layout.take<float>(width);
    if (tabled) {
      node.table = layout.take<float>(static_cast<size_t>(chain_.nodes[0].inputs) * width);
    } else {
      lay_out_matrix(chain_.precision, from.inputs, panels, layout, node.kernel);
    }
    if (memory_ == nullptr) return;
    pack_matrix(chain_.precision, from.recurrent_kernel, units, 4 * units, column, node.recurrent);
    for (Index c = 0; c < panels * kWidth; ++c) {
      node.bias[c] = from.bias != nullptr && column(c) >= 0 ? from.bias[column(c)] : 0.0f;
    }
    if (!tabled) {
      pack_matrix(chain_.precision, from.kernel, from.inputs, 4 * units, column, node.kernel);
      return;
    }
    fill_table(chain_.nodes[0].kernel, chain_.nodes[0].inputs, from.inputs, from.kernel, column, node.bias,
               node.table);
  }

  const StepChain& chain_;
  std::byte* const memory_;
};

}  // namespace cellerate::CELLERATE_TARGET
