// The kernels of step_model.h: a chain of layers on packed weights, for a few rows at a time.
//
// Threads divide the columns of every product, because with few rows the time goes into reading weights, and each
// core keeps its own part of them in its cache. They meet at a barrier after every product.
#pragma once

#include "engine/step_exponentials.h"
#include "engine/step_pack.h"
#include "products/normalise.h"
#include "simd/alike.h"

namespace cellerate::CELLERATE_TARGET {

// One call. The rows of a chunk are in the order (step of the chunk, row of the batch).
template <Precision kPrecision>
class StepJob {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr Index kRowsAtOnce = 96;  // per product over several steps

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
  // The memory of a node while the job runs.
  struct Layer {
    float* floats;  // [row][float_row], outputs
    float* words;   // [row][word_row], the same as a left factor; for an LSTM, h before the chunk comes first
    float* scales;  // [row], int8
    float* cells;   // [panel][row of the batch][kLanes]
    float* hidden;  // [row of the batch][unit], the last h in full
    float* projected;  // [panel][row][kWidth]
    Index float_row, word_row;
  };

  bool is_static(const PackedNode& node) const { return kPrecision != Precision::kInt8 || node.bounded; }
  Range panels_of(const PackedNode& node, int index) const {
    const bool lstm = node.kind == StepKind::kLstm;
    return share(lstm ? node.recurrent.columns_panels : node.kernel.columns_panels, index, call_.threads);
  }
  // Whether the words of a node's outputs can only be made once the whole row is there.
  bool words_later(const PackedNode& node) const {
    if (node.kind == StepKind::kDense) return kPrecision != Precision::kFloat32;
    return node.kind == StepKind::kLstm && !is_static(node);
  }
  bool ended(Index row, Index step) const {
    if (call_.generation != nullptr) return batch_ > 1 && drawn_[row] < 0;
    return call_.lengths != nullptr && step >= call_.lengths[row];
  }

  // The outputs of node n as a left factor, starting with row `first` of the chunk.
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

  // Calls each(node, layer, at) for each LSTM, where `at` is the place of its h in a state; c follows it.
  template <class Each>
  void for_states(Each each) {
    Index at = 0;
    for (int n = 0; n < chain_.count; ++n) {
      const PackedNode& node = chain_.nodes[n];
      if (node.kind != StepKind::kLstm) continue;
      each(node, layers_[n], at);
      at += 2 * node.outputs;
    }
  }
  // Calls each(row, first unit, hidden, cells) for this thread's panels of an LSTM; the last two are where h and c
  // lie.
  template <class Each>
  void for_vectors(int index, const PackedNode& node, const Layer& layer, Each each) {
    const Range panels = panels_of(node, index);
    const Index padded = node.recurrent.columns_panels * kLanes;
    for (Index row = 0; row < batch_; ++row) {
      for (Index panel = panels.begin; panel < panels.end; ++panel) {
        each(row, panel * kLanes, layer.hidden + row * padded + panel * kLanes,
             layer.cells + (panel * batch_ + row) * kLanes);
      }
    }
  }

  void load_state(int index) {
    for_states([&](const PackedNode& node, const Layer& layer, Index at) {
      const float* states = call_.state + at;
      for_vectors(index, node, layer, [&](Index row, Index unit, float* hidden, float* cells) {
        const float* h = states + row * chain_.state_size;
        const F x = load_upto<Storage::kFloat32>(h, unit, node.outputs);
        Simd::store(hidden, x);
        Simd::store(cells, load_upto<Storage::kFloat32>(h + node.outputs, unit, node.outputs));
        if (is_static(node)) store_state<kPrecision>(layer.words + row * layer.word_row, unit, x);
      });
      if (is_static(node)) return;
      const Range rows = share(batch_, index, call_.threads);
      for (Index row = rows.begin; row < rows.end; ++row) {
        layer.scales[row] = row_to_words<kPrecision>(states + row * chain_.state_size, node.outputs,
                                                     layer.words + row * layer.word_row);
      }
    });
  }

  void store_state_of_call(int index) {
    for_states([&](const PackedNode& node, const Layer& layer, Index at) {
      for_vectors(index, node, layer, [&](Index row, Index unit, float* hidden, float* cells) {
        float* h = call_.new_state + row * chain_.state_size + at;
        store_upto<Storage::kFloat32>(h, Simd::load(hidden), unit, node.outputs);
        store_upto<Storage::kFloat32>(h + node.outputs, Simd::load(cells), unit, node.outputs);
      });
    });
  }

  // Draws ids and reads each, until there are enough.
  void generate(int index) {
    Generation& generation = *call_.generation;
    const Range mine = share(batch_, index, call_.threads);
    const float* logits = call_.logits;
    for (Index step = 0;; ++step) {
      int32_t id = 0;
      if (batch_ == 1) {
        // Each thread draws the id itself, from logits that do not change until all threads have met again.
        id = generation.next(index, logits);
        if (id < 0) break;
        // Alternates between two places: other threads may still read one while this thread writes the next.
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

  // Runs the nodes up to the last LSTM for some steps. The id of (row, step) is ids[row * stride + step].
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

  // Runs the nodes after the last LSTM for the rows whose logits are wanted.
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
    // The next chunk overwrites the rows.
    barrier_.wait();
  }

  void make_words(int n, Index row) {
    const PackedNode& node = chain_.nodes[n];
    const Layer& layer = layers_[n];
    const Index at = node.kind == StepKind::kLstm ? batch_ + row : row;
    layer.scales[at] =
        row_to_words<kPrecision>(floats_of(n, row), node.outputs, layer.words + at * layer.word_row);
  }

  // Runs a node without a state. If `out` is not null, the rows are written there instead, without padding.
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
          normalise_row(node.factors, node.bias, node.epsilon, node.outputs, to);
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
      // Every other step goes through the panels backwards: if the weights do not fit into a core's cache, it still
      // has those of the last panels.
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
    // The last h becomes the first of the next chunk. All threads have read the old one; the next barrier
    // makes the new one visible.
    const Range mine = share(batch_, index, call_.threads);
    for (Index row = mine.begin; row < mine.end; ++row) {
      std::memcpy(layer.words + row * layer.word_row, layer.words + (rows + row) * layer.word_row,
                  static_cast<size_t>(node.recurrent.depth) * sizeof(float));
      layer.scales[row] = layer.scales[rows + row];
    }
    if (n + 1 == chain_.count || (n == last_lstm_ && call_.generation == nullptr)) barrier_.wait();
  }

  // Turns the sums of the gates of one row and panel into c and h.
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
      F c = Simd::load(cell);
      if (node.usual) {
        const CellState next = usual_cell(sums[0], sums[1], sums[2], sums[3], c);
        c = next.c;
        h = next.h;
      } else {
        const Activation gate = node.recurrent_activation, candidate = node.activation;
        c = Simd::fma(activate(gate, sums[1]), c,
                      Simd::mul(activate(gate, sums[0]), activate(candidate, sums[2])));
        h = Simd::mul(activate(gate, sums[3]), activate(candidate, c));
      }
      const int lanes = lanes_before(unit, node.outputs);
      if (lanes < kLanes) {
        // Lanes without a unit have weights of zero, and an infinity would make their sums NaN.
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
  float* logits_ = nullptr;   // (B, V') after the last step of a generation
  int32_t* drawn_ = nullptr;  // (B) the ids that a step reads; -1 for a row that has ended
};

template <Precision kPrecision>
void run_steps_as(const std::byte* packed, const StepCall& call) {
  if constexpr (kAlike<kPrecision>) {
    CELLERATE_ALIKE::kStepKernels.run(packed, call);
  } else {
    StepJob<kPrecision> job(*reinterpret_cast<const PackedChain*>(packed), call);
    const Workspace workspace([&](Layout& layout) { job.lay_out(layout); });
    run_on(call.threads, job, true);
  }
}

inline size_t pack_steps(const StepChain& chain, std::byte* memory) {
  const WithoutDenormals guard;
  return StepPacker(chain, memory).pack();
}

inline void run_steps(const std::byte* packed, const StepCall& call) {
  const Precision precision = reinterpret_cast<const PackedChain*>(packed)->precision;
  if (precision == Precision::kFloat32) return run_steps_as<Precision::kFloat32>(packed, call);
  if (precision == Precision::kBfloat16) return run_steps_as<Precision::kBfloat16>(packed, call);
  run_steps_as<Precision::kInt8>(packed, call);
}

extern const StepKernels kStepKernels{pack_steps, run_steps, kExponentials};

}  // namespace cellerate::CELLERATE_TARGET
