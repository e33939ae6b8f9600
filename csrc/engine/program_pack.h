// The weights of a program in the form that its kernels read: packed once, in one block of memory.
#pragma once

#include "engine/packed_matrix.h"
#include "engine/program.h"

namespace cellerate::CELLERATE_TARGET {

// Maps a column of the unit panels to its column in a kernel (K, 4H), or to -1. The gates of the last units may be
// packed side by side: 50 units then take 13 vectors and not 16.
struct UnitColumns {
  Index units;
  Index operator()(Index c) const {
    const Index panel = c / kWidth, column = c % kWidth;
    const int vectors = panel < units / kLanes ? 0 : tail_vectors(units);
    const Index each = vectors == 0 ? kLanes : units_of_vectors(vectors), gate = column / each;
    const Index unit = panel * kLanes + column % each;
    return gate < 4 && unit < units ? gate * units + unit : -1;
  }
};

struct PackedLstm {
  Index inputs = 0, units = 0;
  Activation activation{}, recurrent_activation{};
  StepMatrix kernel, recurrent;
  float* bias = nullptr;              // [panel][kWidth]
  float* table = nullptr;             // [id][panel][kWidth], or null
  const float* embeddings = nullptr;  // (V, D), read if there are ids but no table; or null
  bool bounded = false;               // whether |h| is at most 1
};

struct PackedLayer {
  PackedLstm lstm;
  StepMatrix kernel;         // dense
  float* bias = nullptr;     // dense: [panel][kWidth]; else beta or offset, or null
  float* factors = nullptr;  // gamma or scale, or null; an embedding's rows
};

struct PackedProgram {
  Precision precision;
  bool static_scales;
  PackedLayer* layers;
};

// Lays out a program and, unless the memory is null, packs its weights.
class ProgramPacker {
 public:
  ProgramPacker(const ProgramGraph& graph, std::byte* memory)
      : graph_(graph), memory_(memory), layout_(memory) {}

  size_t pack() {
    auto* program = layout_.take<PackedProgram>(1);
    layers_ = layout_.take<PackedLayer>(graph_.count);
    if (memory_ != nullptr) *program = {graph_.precision, graph_.static_scales, layers_};
    for (int32_t n = 0; n < graph_.count; ++n) {
      const ProgramNode& node = graph_.nodes[n];
      PackedLayer layer;
      if (node.op == ProgramOp::kLstm) {
        pack_lstm(n, layer.lstm);
      } else if (node.op == ProgramOp::kDense) {
        pack_dense(node, layer);
      } else if (node.op == ProgramOp::kEmbedding) {
        if (needs_rows(n)) layer.factors = copy(node.kernel, node.rows * node.columns);
      } else {
        layer.factors = copy(node.kernel, node.columns);
        layer.bias = copy(node.bias, node.columns);
      }
      if (memory_ != nullptr) layers_[n] = layer;
    }
    return layout_.bytes();
  }

 private:
  // The embedding whose rows an LSTM looks up, or null.
  const ProgramNode* looked_up(const ProgramNode& lstm) const {
    return graph_.links[lstm.inputs[0]].looked_up ? &graph_.nodes[lstm.inputs[0]] : nullptr;
  }
  // Whether a node reads the rows of an embedding, and not only a table of products.
  bool needs_rows(int32_t embedding) const {
    if (!graph_.links[embedding].looked_up) return true;
    for (int32_t n = embedding + 1; n < graph_.count; ++n) {
      const ProgramNode& node = graph_.nodes[n];
      if (node.op == ProgramOp::kLstm && node.inputs[0] == embedding && !graph_.links[n].tabled) return true;
    }
    return false;
  }

  float* copy(const float* from, Index count) {
    if (from == nullptr) return nullptr;
    auto* to = layout_.take<float>(count);
    if (memory_ != nullptr) std::memcpy(to, from, static_cast<size_t>(count) * sizeof *from);
    return to;
  }

  void pack_dense(const ProgramNode& node, PackedLayer& layer) {
    lay_out_matrix(graph_.precision, node.rows, ceil_div(node.columns, kWidth), layout_, layer.kernel);
    const Index columns = layer.kernel.columns_panels * kWidth;
    layer.bias = layout_.take<float>(columns);
    if (memory_ == nullptr) return;
    pack_matrix(
        graph_.precision, node.kernel, node.rows, node.columns,
        [&](Index c) { return c < node.columns ? c : -1; }, layer.kernel);
    for (Index c = 0; c < columns; ++c)
      layer.bias[c] = node.bias != nullptr && c < node.columns ? node.bias[c] : 0.0f;
  }

  void pack_lstm(int32_t n, PackedLstm& to) {
    const ProgramNode& node = graph_.nodes[n];
    const Index units = node.columns, panels = ceil_div(units, kLanes);
    const auto width = static_cast<size_t>(panels * kWidth);
    const ProgramNode* embedding = looked_up(node);
    const bool tabled = graph_.links[n].tabled;
    to.inputs = node.rows;
    to.units = units;
    to.activation = node.activation;
    to.recurrent_activation = node.recurrent_activation;
    to.bounded = is_bounded(node.activation, node.recurrent_activation);
    lay_out_matrix(graph_.precision, units, panels, layout_, to.recurrent);
    to.bias = layout_.take<float>(width);
    if (tabled) {
      to.table = layout_.take<float>(static_cast<size_t>(embedding->rows) * width);
    } else {
      lay_out_matrix(graph_.precision, node.rows, panels, layout_, to.kernel);
    }
    if (memory_ == nullptr) return;
    const UnitColumns column{units};
    pack_matrix(graph_.precision, node.recurrent_kernel, units, 4 * units, column, to.recurrent);
    for (Index c = 0; c < panels * kWidth; ++c)
      to.bias[c] = node.bias != nullptr && column(c) >= 0 ? node.bias[column(c)] : 0.0f;
    if (tabled) {
      fill_table(embedding->kernel, embedding->rows, node.rows, node.kernel, column, to.bias, to.table);
      return;
    }
    pack_matrix(graph_.precision, node.kernel, node.rows, 4 * units, column, to.kernel);
    // Embeddings come before the LSTMs that read them, so they are already packed.
    if (embedding != nullptr) to.embeddings = layers_[node.inputs[0]].factors;
  }

  const ProgramGraph& graph_;
  std::byte* const memory_;
  Layout layout_;
  PackedLayer* layers_ = nullptr;
};

}  // namespace cellerate::CELLERATE_TARGET
