// The kernels of step_model.h: a chain of layers on packed weights, a few rows at a time.
//
// Weights lie in panels of four vectors as in gemm.h, and a word of the summed axis K is one float, two bfloat16 or
// four bytes. Threads share the columns of every product, for with few rows the time goes into reading weights, and
// each core then keeps its own part in its cache. They meet at a barrier after every product.
#pragma once

#include "activations.h"
#include "lstm_layout.h"
#include "step_exponentials.h"
#include "step_model.h"

namespace cellerate::CELLERATE_TARGET {

// A table of embeddings·kernel + bias larger than this is not worth its memory.
constexpr Index kLargestTable = Index{64} << 20;
// Panels that a single row takes side by side: their sums hide the latency of a multiply-add.
constexpr int kSide = kRows >= 6 ? 4 : 2;

constexpr int elements_of_word(Precision precision) {
  return precision == Precision::kFloat32 ? 1 : precision == Precision::kBfloat16 ? 2 : 4;
}

// The right factor of a product, packed.
struct StepMatrix {
  Index columns_panels = 0;
  Index depth = 0;            // words of K
  float* words = nullptr;     // [panel][depth][kWidth]
  int32_t* starts = nullptr;  // int8: [panel][kWidth], -128 times the sum of a column
  float* scales = nullptr;    // int8: [panel][kWidth]
};

// The left factor: row r lies at words + r * row. scales has a factor for each row (int8), or is null for 1/127.
struct StepRows {
  const float* words;
  Index row;
  const float* scales;
};

struct PackedNode {
  StepKind kind;
  Index inputs, outputs;
  Activation activation, recurrent_activation;
  float epsilon;
  StepMatrix kernel, recurrent;
  float* bias;      // of a product [panel][kWidth]; otherwise beta or offset, padded, or null
  float* factors;   // gamma or scale, padded, or null
  float* table;     // of an LSTM: [id][panel][kWidth], or null; of an embedding the rows, padded
  bool table_used;  // of an embedding: the LSTM after it has the table
  bool bounded;     // of an LSTM: |h| is at most 1
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

// Packs a matrix (K, ...) whose packed column c is column `column(c)` of `stride`, or zeros where that is negative.
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
      // A column so small that its scale would be a denormal number is zero for all that matters.
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
    if (precision == Precision::kInt8) to.starts[n] = -128 * sum;
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

// kCount rows of kPanels panels of sums.
template <int kCount, int kPanels>
using Sums = F[kCount][4 * kPanels];

// One word of K for kCount rows: sum = product(x, w, sum). Weights that several rows share are loaded first.
template <int kCount, int kPanels, class Sum, class Product>
inline void add_word(const float* words, Index row, const float* weights, Index next_panel, Sum& sums,
                     Product product) {
  if constexpr (kCount == 1) {
    const F x = Simd::set(words[0]);
#pragma GCC unroll 16
    for (int j = 0; j < 4 * kPanels; ++j) {
      const F w = Simd::load(weights + j / 4 * next_panel + j % 4 * kLanes);
      sums[0][j] = product(x, w, sums[0][j]);
    }
  } else {
    const F w[4] = {Simd::load(weights), Simd::load(weights + kLanes), Simd::load(weights + 2 * kLanes),
                    Simd::load(weights + 3 * kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F x = Simd::set(words[r * row]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sums[r][j] = product(x, w[j], sums[r][j]);
    }
  }
}

// sums += A·B for kCount rows from `row` and kPanels panels from `panel`.
//
// All loops over sums are unrolled, or the compiler would keep them in memory.
template <Precision kPrecision, int kCount, int kPanels>
inline void add_product(const StepRows& a, Index row, const StepMatrix& b, Index panel,
                        Sums<kCount, kPanels>& sums) {
  const float* words = a.words + row * a.row;
  const Index next_panel = b.depth * kWidth;
  const float* weights = b.words + panel * next_panel;
  if constexpr (kPrecision == Precision::kInt8) {
    Simd::I whole[kCount][4 * kPanels];
    const int32_t* starts = b.starts + panel * kWidth;
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < 4 * kPanels; ++j) whole[r][j] = Simd::load_int(starts + j * kLanes);
    }
    for (Index k = 0; k < b.depth; ++k, weights += kWidth) {
      add_word<kCount, kPanels>(words + k, a.row, weights, next_panel, whole,
                                [](F x, F w, Simd::I sum) { return Simd::dot_bytes(x, w, sum); });
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const F scale = Simd::set(a.scales == nullptr ? 1.0f / 127 : a.scales[row + r]);
#pragma GCC unroll 16
      for (int j = 0; j < 4 * kPanels; ++j) {
        const F factor = Simd::mul(Simd::load(b.scales + panel * kWidth + j * kLanes), scale);
        sums[r][j] = Simd::fma(Simd::to_float(whole[r][j]), factor, sums[r][j]);
      }
    }
  } else {
    F local[kCount][4 * kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < 4 * kPanels; ++j) local[r][j] = sums[r][j];
    }
    for (Index k = 0; k < b.depth; ++k, weights += kWidth) {
      add_word<kCount, kPanels>(words + k, a.row, weights, next_panel, local, [](F x, F w, F sum) {
        if constexpr (kPrecision == Precision::kFloat32) {
          return Simd::fma(x, w, sum);
        } else if constexpr (Simd::kBfloat16Products) {
          return multiply_add<true>(x, w, sum);
        } else {
          return Simd::fma(Simd::high_half(x), Simd::high_half(w),
                           Simd::fma(Simd::low_half(x), Simd::low_half(w), sum));
        }
      });
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < 4 * kPanels; ++j) sums[r][j] = local[r][j];
    }
  }
}

template <int kCount>
struct PanelCount {
  static constexpr int value = kCount;
};

// Calls body(Rows<r>{}, PanelCount<p>{}, first row, first panel) for blocks that cover rows and panels, from the last
// panels to the first if `backwards`.
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

// A row of floats, of which the first n count, as the words of a product's left factor; gives its scale.
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
      // NaN from the first NaN or infinity on.
      strange = Simd::fma(x, Simd::set(0), strange);
    }
    float lanes[kLanes], stranges[kLanes];
    Simd::store(lanes, largest);
    Simd::store(stranges, strange);
    float most = 0, addend = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      most = lanes[lane] > most ? lanes[lane] : most;
      addend += stranges[lane];
    }
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

// Units [first, first + kLanes) of an h in [-1, 1] as part of its row's words.
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

// Sums of a row in an order that no target changes: 16 sums, each over every 16th feature, then these in order.
template <class Term>
double sum_in_order(Index n, Term term) {
  double sums[16] = {};
  for (Index i = 0; i < n; ++i) sums[i % 16] = term(i, sums[i % 16]);
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

inline void normalise_row(const PackedNode& node, float* row) {
  const Index n = node.outputs;
  const auto count = static_cast<double>(n);
  const double mean = sum_in_order(n, [&](Index i, double sum) { return sum + row[i]; }) / count;
  const double square = sum_in_order(n, [&](Index i, double sum) {
    const double off = row[i] - mean;
    return __builtin_fma(off, off, sum);
  });
  const double inverse = 1 / __builtin_sqrt(square / count + static_cast<double>(node.epsilon));
  for (Index i = 0; i < n; ++i) {
    const auto x = static_cast<float>((row[i] - mean) * inverse);
    row[i] = __builtin_fmaf(x, node.factors == nullptr ? 1.0f : node.factors[i],
                            node.bias == nullptr ? 0.0f : node.bias[i]);
  }
}

// Lays a chain out in memory and, where there is memory, packs it.
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
    const auto column = [units](Index c) {
      const Index unit = c / kWidth * kLanes + c % kLanes;
      return unit < units ? c % kWidth / kLanes * units + unit : -1;
    };
    node.bounded =
        from.activation == Activation::kTanh && (from.recurrent_activation == Activation::kSigmoid ||
                                                 from.recurrent_activation == Activation::kHardSigmoid);
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
    // The table is float32 whatever the precision: it costs nothing at a step.
    StepMatrix kernel;
    Layout sizes(nullptr);
    lay_out_matrix(Precision::kFloat32, from.inputs, panels, sizes, kernel);
    const Scratch scratch(sizes.bytes());
    Layout memory(scratch.data());
    lay_out_matrix(Precision::kFloat32, from.inputs, panels, memory, kernel);
    pack_matrix(Precision::kFloat32, from.kernel, from.inputs, 4 * units, column, kernel);
    const StepRows rows{chain_.nodes[0].kernel, from.inputs, nullptr};
    for_blocks({0, chain_.nodes[0].inputs}, {0, panels}, false,
               [&](auto count, auto side, Index row, Index panel) {
                 constexpr int kCount = decltype(count)::value, kPanels = decltype(side)::value;
                 Sums<kCount, kPanels> sums;
                 for (int r = 0; r < kCount; ++r) {
                   for (int j = 0; j < 4 * kPanels; ++j)
                     sums[r][j] = Simd::load(node.bias + panel * kWidth + j * kLanes);
                 }
                 add_product<Precision::kFloat32, kCount, kPanels>(rows, row, kernel, panel, sums);
                 for (int r = 0; r < kCount; ++r) {
                   float* to = node.table + ((row + r) * panels + panel) * kWidth;
                   for (int j = 0; j < 4 * kPanels; ++j) Simd::store(to + j * kLanes, sums[r][j]);
                 }
               });
  }

  const StepChain& chain_;
  std::byte* const memory_;
};

// One call. Rows of a chunk are counted (step of the chunk, row of the batch).
template <Precision kPrecision>
class StepJob {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr Index kRowsAtOnce = 96;  // of a product over time

 public:
  StepJob(const PackedChain& chain, const StepCall& call)
      : chain_(chain),
        call_(call),
        barrier_(call.threads),
        batch_(call.batch),
        chunk_(call.generation != nullptr ? 1 : smaller(call.steps, larger(1, kRowsAtOnce / call.batch))) {
    last_lstm_ = 0;
    for (int n = 0; n < chain.count; ++n) {
      if (chain.nodes[n].kind == StepKind::kLstm) last_lstm_ = n;
    }
  }

  void lay_out(Layout& memory) {
    const auto count = [](Index a, Index b) { return static_cast<size_t>(a * b); };
    const Index rows = chunk_ * batch_;
    layers_ = memory.take<Layer>(static_cast<size_t>(chain_.count));
    for (int n = 0; n < chain_.count; ++n) {
      const PackedNode& node = chain_.nodes[n];
      Layer layer{};
      layer.float_row = spread(round_up(node.outputs, kLanes));
      layer.word_row = spread(ceil_div(round_up(node.outputs, kLanes), kEach));
      if (node.kind == StepKind::kLstm) {
        const Index panels = node.recurrent.columns_panels;
        layer.cells = memory.take<float>(count(panels * batch_, kLanes));
        layer.hidden = memory.take<float>(count(batch_, panels * kLanes));
        layer.words = memory.take<float>(count((chunk_ + 1) * batch_, layer.word_row));
        layer.scales = memory.take<float>(count(chunk_ + 1, batch_));
        if (node.table == nullptr) layer.projected = memory.take<float>(count(rows * panels, kWidth));
        if (kPrecision != Precision::kFloat32)
          layer.floats = memory.take<float>(count(rows, layer.float_row));
      } else if (!(node.kind == StepKind::kEmbedding && node.table_used)) {
        layer.floats = memory.take<float>(count(rows, layer.float_row));
        layer.words = kPrecision == Precision::kFloat32 ? layer.floats
                                                        : memory.take<float>(count(rows, layer.word_row));
        if (kPrecision == Precision::kFloat32) layer.word_row = layer.float_row;
        layer.scales = memory.take<float>(count(rows, 1));
      }
      if (layers_ != nullptr) layers_[n] = layer;
    }
    logits_ = memory.take<float>(count(batch_, chain_.outputs));
    drawn_ = memory.take<int32_t>(static_cast<size_t>(batch_));
  }

  void run(int index) {
    load_state(index);
    barrier_.wait();
    if (call_.generation != nullptr) {
      generate(index);
    } else {
      for (Index begin = 0; begin < call_.steps; begin += chunk_) {
        const Index steps = smaller(chunk_, call_.steps - begin);
        run_chunk(index, begin, steps, call_.ids + begin, call_.steps);
        finish_chunk(index, begin, steps);
      }
    }
    store_state_of_call(index);
  }

 private:
  // What a node has while the job runs.
  struct Layer {
    float* floats;  // [row][float_row], outputs
    float*
        words;  // [row][word_row], the same as a left factor; of an LSTM the first batch is h before the chunk
    float* scales;     // [row], int8
    float* cells;      // [panel][row of the batch][kLanes]
    float* hidden;     // [row of the batch][unit], the last h in full
    float* projected;  // [panel][row][kWidth]
    Index float_row, word_row;
  };

  bool is_static(const PackedNode& node) const { return kPrecision != Precision::kInt8 || node.bounded; }
  Range panels_of(const PackedNode& node, int index) const {
    const bool lstm = node.kind == StepKind::kLstm;
    return share(lstm ? node.recurrent.columns_panels : node.kernel.columns_panels, index, call_.threads);
  }
  // Whether the words of a node's outputs are only made when the whole row is there.
  bool words_later(const PackedNode& node) const {
    if (node.kind == StepKind::kDense) return kPrecision != Precision::kFloat32;
    return node.kind == StepKind::kLstm && !is_static(node);
  }
  bool ended(Index row, Index step) const {
    if (call_.generation != nullptr) return batch_ > 1 && drawn_[row] < 0;
    return call_.lengths != nullptr && step >= call_.lengths[row];
  }

  // The outputs of node n as a left factor, from row `first` of the chunk on.
  StepRows rows_of(int n, Index first) const {
    const PackedNode& node = chain_.nodes[n];
    const Layer& layer = layers_[n];
    if (node.kind == StepKind::kLstm) first += batch_;
    const bool scaled = kPrecision == Precision::kInt8 && !(node.kind == StepKind::kLstm && node.bounded);
    return {layer.words + first * layer.word_row, layer.word_row, scaled ? layer.scales + first : nullptr};
  }
  float* floats_of(int n, Index row) const {
    const Layer& layer = layers_[n];
    if (chain_.nodes[n].kind == StepKind::kLstm && kPrecision == Precision::kFloat32)
      return layer.words + (batch_ + row) * layer.word_row;
    return layer.floats + row * layer.float_row;
  }

  void load_state(int index) {
    Index at = 0;
    for (int n = 0; n < chain_.count; ++n) {
      const PackedNode& node = chain_.nodes[n];
      if (node.kind != StepKind::kLstm) continue;
      const Layer& layer = layers_[n];
      const Range panels = panels_of(node, index);
      const Index padded = node.recurrent.columns_panels * kLanes;
      for (Index row = 0; row < batch_; ++row) {
        const float* h = call_.state + row * chain_.state_size + at;
        for (Index panel = panels.begin; panel < panels.end; ++panel) {
          const Index unit = panel * kLanes;
          const F x = load_upto<Storage::kFloat32>(h, unit, node.outputs);
          Simd::store(layer.hidden + row * padded + unit, x);
          Simd::store(layer.cells + (panel * batch_ + row) * kLanes,
                      load_upto<Storage::kFloat32>(h + node.outputs, unit, node.outputs));
          if (is_static(node)) store_state<kPrecision>(layer.words + row * layer.word_row, unit, x);
        }
      }
      if (!is_static(node)) {
        const Range rows = share(batch_, index, call_.threads);
        for (Index row = rows.begin; row < rows.end; ++row) {
          layer.scales[row] = row_to_words<kPrecision>(call_.state + row * chain_.state_size + at,
                                                       node.outputs, layer.words + row * layer.word_row);
        }
      }
      at += 2 * node.outputs;
    }
  }

  void store_state_of_call(int index) {
    Index at = 0;
    for (int n = 0; n < chain_.count; ++n) {
      const PackedNode& node = chain_.nodes[n];
      if (node.kind != StepKind::kLstm) continue;
      const Layer& layer = layers_[n];
      const Range panels = panels_of(node, index);
      const Index padded = node.recurrent.columns_panels * kLanes;
      for (Index row = 0; row < batch_; ++row) {
        float* h = call_.new_state + row * chain_.state_size + at;
        for (Index panel = panels.begin; panel < panels.end; ++panel) {
          const Index unit = panel * kLanes;
          store_upto<Storage::kFloat32>(h, Simd::load(layer.hidden + row * padded + unit), unit,
                                        node.outputs);
          store_upto<Storage::kFloat32>(h + node.outputs,
                                        Simd::load(layer.cells + (panel * batch_ + row) * kLanes), unit,
                                        node.outputs);
        }
      }
      at += 2 * node.outputs;
    }
  }

  // Draws ids and reads each, until there are enough.
  void generate(int index) {
    Generation& generation = *call_.generation;
    const Range mine = share(batch_, index, call_.threads);
    const float* logits = call_.logits;
    for (Index step = 0;; ++step) {
      int32_t id = 0;
      if (batch_ == 1) {
        // Each thread draws for itself, from logits that stay the same until all have met again.
        id = generation.next(index, logits);
        if (id < 0) break;
        // In two places by turns: the others read one while this thread may already write the next.
        if (index == 0) cancelled_[step % 2] = generation.cancelled();
      } else {
        for (Index row = mine.begin; row < mine.end; ++row)
          drawn_[row] = generation.next(row, logits + row * chain_.outputs);
        barrier_.wait();
        bool any = false;
        for (Index row = 0; row < batch_; ++row) any |= drawn_[row] >= 0;
        if (!any) break;
      }
      run_chunk(index, step, 1, batch_ == 1 ? &id : drawn_, 1);
      finish_chunk(index, step, 1, logits_);
      logits = logits_;
      if (batch_ == 1 && cancelled_[step % 2]) break;
    }
    if (index != 0 || logits != logits_) return;
    for (Index row = 0; row < batch_; ++row) {
      if (generation.drawn(row) > 0) {
        std::memcpy(call_.logits + row * chain_.outputs, logits_ + row * chain_.outputs,
                    static_cast<size_t>(chain_.outputs) * sizeof(float));
      }
    }
  }

  // Runs the nodes up to the last LSTM for some steps, the id of (row, step) being ids[row * stride + step].
  void run_chunk(int index, Index begin, Index steps, const int32_t* ids, Index stride) {
    const Range mine = share(steps * batch_, index, call_.threads);
    for (int n = 0; n <= last_lstm_; ++n) {
      const PackedNode& node = chain_.nodes[n];
      if (node.kind == StepKind::kEmbedding) {
        if (node.table_used) continue;
        for (Index row = mine.begin; row < mine.end; ++row) {
          const Index b = row % batch_, step = row / batch_;
          const Index id = ended(b, begin + step) ? 0 : ids[b * stride + step];
          std::memcpy(floats_of(0, row), node.table + id * node.outputs,
                      static_cast<size_t>(node.outputs) * sizeof(float));
          make_words(0, row);
        }
        barrier_.wait();
      } else if (node.kind == StepKind::kLstm) {
        run_lstm(index, n, begin, steps, ids, stride);
      } else {
        run_stateless(index, n, {0, steps * batch_}, nullptr);
      }
    }
  }

  // Runs the nodes after the last LSTM for those rows whose logits are wanted.
  void finish_chunk(int index, Index begin, Index steps, float* logits = nullptr) {
    const bool last = begin + steps == call_.steps;
    const bool all = call_.log_probabilities != nullptr;
    if (logits == nullptr && !all && (!last || call_.logits == nullptr)) return;
    const Range rows{all ? 0 : (steps - 1) * batch_, steps * batch_};
    float* const out = logits != nullptr ? logits : all ? nullptr : call_.logits;
    for (int n = last_lstm_ + 1; n < chain_.count; ++n) {
      run_stateless(index, n, rows, n + 1 == chain_.count ? out : nullptr);
    }
    const int end = chain_.count - 1;
    if (out != nullptr && (end == last_lstm_ || chain_.nodes[end].kind != StepKind::kDense)) {
      const Range mine = share(rows.size(), index, call_.threads);
      for (Index row = mine.begin; row < mine.end; ++row) {
        std::memcpy(out + row * chain_.outputs, floats_of(end, rows.begin + row),
                    static_cast<size_t>(chain_.outputs) * sizeof(float));
      }
      barrier_.wait();
    }
    if (!all) return;
    const Range mine = share(rows.size(), index, call_.threads);
    for (Index row = mine.begin; row < mine.end; ++row) {
      const Index b = row % batch_, next = begin + row / batch_ + 1;
      if (next == call_.steps) continue;
      call_.log_probabilities[b * (call_.steps - 1) + next - 1] =
          ended(b, next) ? 0.0f
                         : static_cast<float>(log_softmax(kExponentials, floats_of(end, row), chain_.outputs,
                                                          call_.ids[b * call_.steps + next]));
    }
    // The rows are written again in the next chunk.
    barrier_.wait();
  }

  void make_words(int n, Index row) {
    const PackedNode& node = chain_.nodes[n];
    const Layer& layer = layers_[n];
    const Index at = node.kind == StepKind::kLstm ? batch_ + row : row;
    layer.scales[at] =
        row_to_words<kPrecision>(floats_of(n, row), node.outputs, layer.words + at * layer.word_row);
  }

  // One node without a state; `out`, if not null, takes the rows densely instead.
  void run_stateless(int index, int n, Range rows, float* out) {
    const PackedNode& node = chain_.nodes[n];
    if (node.kind == StepKind::kDense) {
      const StepRows x = rows_of(n - 1, 0);
      for_blocks(rows, panels_of(node, index), false, [&](auto count, auto side, Index row, Index panel) {
        constexpr int kCount = decltype(count)::value, kPanels = decltype(side)::value;
        Sums<kCount, kPanels> sums;
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < 4 * kPanels; ++j)
            sums[r][j] = Simd::load(node.bias + panel * kWidth + j * kLanes);
        }
        add_product<kPrecision, kCount, kPanels>(x, row, node.kernel, panel, sums);
        for (int r = 0; r < kCount; ++r) {
          float* to = out != nullptr ? out + (row + r - rows.begin) * chain_.outputs : floats_of(n, row + r);
          for (int j = 0; j < 4 * kPanels; ++j) {
            const Index column = panel * kWidth + j * kLanes;
            if (column >= node.outputs) break;
            store_upto<Storage::kFloat32>(to, activate(node.activation, sums[r][j]), column, node.outputs);
          }
        }
      });
      barrier_.wait();
      if (out != nullptr || !words_later(node) || n + 1 == chain_.count) return;
    }
    const Range mine = share(rows.size(), index, call_.threads);
    for (Index row = rows.begin + mine.begin; row < rows.begin + mine.end; ++row) {
      if (node.kind != StepKind::kDense) {
        float* to = floats_of(n, row);
        std::memcpy(to, floats_of(n - 1, row), static_cast<size_t>(node.outputs) * sizeof(float));
        if (node.kind == StepKind::kLayerNorm) {
          normalise_row(node, to);
        } else {
          for (Index i = 0; i < node.outputs; ++i) {
            to[i] = __builtin_fmaf(to[i], node.factors[i], node.bias[i]);
          }
        }
      }
      make_words(n, row);
    }
    barrier_.wait();
  }

  void run_lstm(int index, int n, Index begin, Index steps, const int32_t* ids, Index stride) {
    const PackedNode& node = chain_.nodes[n];
    const Layer& layer = layers_[n];
    const Range panels = panels_of(node, index);
    const Index all_panels = node.recurrent.columns_panels, rows = steps * batch_;
    if (node.table == nullptr) {
      const StepRows x = rows_of(n - 1, 0);
      for_blocks({0, rows}, panels, false, [&](auto count, auto side, Index row, Index panel) {
        constexpr int kCount = decltype(count)::value, kPanels = decltype(side)::value;
        Sums<kCount, kPanels> sums;
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < 4 * kPanels; ++j)
            sums[r][j] = Simd::load(node.bias + panel * kWidth + j * kLanes);
        }
        add_product<kPrecision, kCount, kPanels>(x, row, node.kernel, panel, sums);
        for (int r = 0; r < kCount; ++r) {
          float* to = layer.projected + ((row + r) * all_panels + panel) * kWidth;
          for (int j = 0; j < 4 * kPanels; ++j) Simd::store(to + j * kLanes, sums[r][j]);
        }
      });
    }
    const auto stays = [&](Index row, Index step) {
      return ended(row, begin + step) || (chain_.masks_zero && ids[row * stride + step] == 0);
    };
    for (Index step = 0; step < steps; ++step) {
      // There and back by turns: where the weights do not fit a core's cache, it still has those of the last panels.
      for_blocks({0, batch_}, panels, (begin + step) % 2 == 1,
                 [&](auto count, auto side, Index row, Index panel) {
                   constexpr int kCount = decltype(count)::value, kPanels = decltype(side)::value;
                   Sums<kCount, kPanels> sums;
                   for (int r = 0; r < kCount; ++r) {
                     const float* start =
                         layer.projected + ((step * batch_ + row + r) * all_panels + panel) * kWidth;
                     if (node.table != nullptr) {
                       const Index id = stays(row + r, step) ? 0 : ids[(row + r) * stride + step];
                       start = node.table + (id * all_panels + panel) * kWidth;
                     }
                     for (int j = 0; j < 4 * kPanels; ++j) sums[r][j] = Simd::load(start + j * kLanes);
                   }
                   const StepRows h{layer.words + step * batch_ * layer.word_row, layer.word_row,
                                    is_static(node) ? nullptr : layer.scales + step * batch_};
                   add_product<kPrecision, kCount, kPanels>(h, row, node.recurrent, panel, sums);
                   for (int r = 0; r < kCount; ++r) {
                     for (int p = 0; p < kPanels; ++p)
                       advance(n, step, stays(row + r, step), row + r, panel + p, &sums[r][4 * p]);
                   }
                 });
      barrier_.wait();
      if (!is_static(node)) {
        const Range mine = share(batch_, index, call_.threads);
        for (Index row = mine.begin; row < mine.end; ++row) make_words(n, step * batch_ + row);
        barrier_.wait();
      }
    }
    // The last h becomes the first of the next chunk. All have read the old one; the barrier of whatever comes
    // next makes the new one seen.
    const Range mine = share(batch_, index, call_.threads);
    for (Index row = mine.begin; row < mine.end; ++row) {
      std::memcpy(layer.words + row * layer.word_row, layer.words + (rows + row) * layer.word_row,
                  static_cast<size_t>(node.recurrent.depth) * sizeof(float));
      layer.scales[row] = layer.scales[rows + row];
    }
    if (n + 1 == chain_.count || (n == last_lstm_ && call_.generation == nullptr)) barrier_.wait();
  }

  // The gates' sums of one row and panel become c and h.
  void advance(int n, Index step, bool stays, Index row, Index panel, const F* sums) {
    const PackedNode& node = chain_.nodes[n];
    const Layer& layer = layers_[n];
    const Index unit = panel * kLanes;
    float* cell = layer.cells + (panel * batch_ + row) * kLanes;
    float* hidden = layer.hidden + row * node.recurrent.columns_panels * kLanes + unit;
    F h;
    if (stays) {
      h = Simd::load(hidden);
    } else {
      const F i = activate(node.recurrent_activation, sums[0]);
      const F f = activate(node.recurrent_activation, sums[1]);
      const F g = activate(node.activation, sums[2]);
      const F o = activate(node.recurrent_activation, sums[3]);
      F c = Simd::fma(f, Simd::load(cell), Simd::mul(i, g));
      h = Simd::mul(o, activate(node.activation, c));
      const int lanes = lanes_before(unit, node.outputs);
      if (lanes < kLanes) {
        // Lanes without a unit have weights of zero, which an infinity would turn into NaN.
        c = first_lanes(c, lanes);
        h = first_lanes(h, lanes);
      }
      Simd::store(cell, c);
      Simd::store(hidden, h);
    }
    const Index at = step * batch_ + row;
    if (kPrecision != Precision::kFloat32) Simd::store(layer.floats + at * layer.float_row + unit, h);
    if (is_static(node)) store_state<kPrecision>(layer.words + (batch_ + at) * layer.word_row, unit, h);
  }

  const PackedChain& chain_;
  const StepCall& call_;
  Barrier barrier_;
  const Index batch_;
  const Index chunk_;  // steps taken together
  int last_lstm_;
  bool cancelled_[2] = {};
  Layer* layers_ = nullptr;
  float* logits_ = nullptr;   // (B, V') of the last step of a generation
  int32_t* drawn_ = nullptr;  // (B) the ids it reads; -1 for a row that has ended
};

template <Precision kPrecision>
void run_steps_as(const PackedChain& chain, const StepCall& call) {
  StepJob<kPrecision> job(chain, call);
  Layout sizes(nullptr);
  job.lay_out(sizes);
  const Scratch scratch(sizes.bytes());
  Layout memory(scratch.data());
  job.lay_out(memory);
  run_on(call.threads, job);
}

inline size_t pack_steps(const StepChain& chain, std::byte* memory) {
  const WithoutDenormals guard;
  return StepPacker(chain, memory).pack();
}

inline void run_steps(const std::byte* packed, const StepCall& call) {
  const auto& chain = *reinterpret_cast<const PackedChain*>(packed);
  if (chain.precision == Precision::kFloat32) return run_steps_as<Precision::kFloat32>(chain, call);
  if (chain.precision == Precision::kBfloat16) return run_steps_as<Precision::kBfloat16>(chain, call);
  run_steps_as<Precision::kInt8>(chain, call);
}

extern const StepKernels kStepKernels{pack_steps, run_steps, kExponentials};

}  // namespace cellerate::CELLERATE_TARGET
