// An LSTM over whole sequences on weights that were packed once, for the rows of a block: what program_kernels.h calls.
//
// For each step and panel of units, a tile of registers starts from the input projection, or from a table's row, adds
// h·R, and turns the sums of the four gates into the new c and h, as in lstm_forward.h. Nothing is kept for backward.
#pragma once

#include "engine/program.h"
#include "engine/program_pack.h"

namespace cellerate::CELLERATE_TARGET {

// A matrix of numbers: row (step * rows of the block + row of the block) lies at data + that * stride.
struct Frames {
  float* data = nullptr;
  Index rows = 0, steps = 0, features = 0, stride = 0;  // steps is 1 without a time axis
  float* at(Index step, Index row) const { return data + (step * rows + row) * stride; }
  Index all() const { return steps * rows; }
};

// The threads that share a block of rows, and which of them this one is.
struct Team {
  int me, count;
  Barrier* barrier;
  Range share_of(Index total, Index grain = 1) const { return share(total, me, count, grain); }
  void meet() const {
    if (count > 1) barrier->wait();
  }
};

struct LstmTask {
  Frames x;                       // or ids
  const int32_t* ids = nullptr;   // [step][row], each a row of the table or of the embeddings
  const uint8_t* mask = nullptr;  // [step][row]
  const Frames* h0 = nullptr;
  const Frames* c0 = nullptr;
  Frames outputs;   // all steps, or the last; its data is null if nobody wants them
  Frames h_T, c_T;  // data is null if nobody wants them
  Index rows = 0, steps = 0;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false, return_sequences = true, natural = false;
  // Where x is made by another layer at the same time: its progress, and ours for the layer that reads our outputs;
  // both count steps from `base`.
  const Progress* follows = nullptr;
  Progress* leads = nullptr;
  long base = 0;
};

template <Precision kPrecision>
class LstmRun {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr bool kFloats = kPrecision == Precision::kFloat32;
  static constexpr Index kRowsAtOnce = 96;  // of the input projection
  // Between two layers that follow each other: few, so that the second begins soon.
  static constexpr Index kStepsAtOnce = 8;

 public:
  LstmRun(const PackedLstm& weights, const LstmTask& task, const Team& team)
      : weights_(weights),
        task_(task),
        team_(team),
        panels_(weights.recurrent.columns_panels),
        tail_(tail_vectors(weights.units)),
        mine_(team.share_of(panels_)),
        chunk_(steps_at_once(task)),
        usual_(has_usual_gates(weights.activation, weights.recurrent_activation)),
        static_(kPrecision != Precision::kInt8 || weights.bounded) {}

  void lay_out(Layout& memory) {
    const auto count = [](Index a, Index b) { return static_cast<size_t>(a * b); };
    const Index rows = task_.rows;
    h_row_ = spread(ceil_div(panels_ * kLanes, kEach));
    for (float*& h : h_) h = memory.take<float>(count(rows, h_row_));
    for (float*& scales : h_scales_) scales = memory.take<float>(static_cast<size_t>(rows));
    hidden_ = kFloats ? nullptr : memory.take<float>(count(rows, panels_ * kLanes));
    c_ = memory.take<float>(count(rows, panels_ * kLanes));
    first_ = memory.take<int32_t>(static_cast<size_t>(rows));
    if (weights_.table == nullptr) {
      // As much as a block of fewer rows, with more steps at once, may need.
      const Index most = smaller(task_.steps * rows, larger(kRowsAtOnce, rows));
      projected_ = {memory.take<float>(count(most * panels_, kWidth)), chunk_ * rows};
      const bool as_they_are = kFloats && task_.ids == nullptr;
      x_row_ = as_they_are ? task_.x.stride : spread(ceil_div(round_up(weights_.inputs, kLanes), kEach));
      x_ = as_they_are ? nullptr : memory.take<float>(count(most, x_row_));
      x_scales_ = memory.take<float>(static_cast<size_t>(most));
    }
  }

  void run() {
    begin();
    team_.meet();
    for (Index begin = 0; begin < task_.steps; begin += chunk_) {
      const Index end = smaller(task_.steps, begin + chunk_);
      if (task_.follows != nullptr) task_.follows->wait_for(task_.base + static_cast<long>(end));
      if (weights_.table == nullptr) project(begin, end);
      advance_steps(begin, end);
      // All of the team have met after the last step.
      if (task_.leads != nullptr && team_.me == 0) task_.leads->publish(task_.base + static_cast<long>(end));
    }
    end();
  }

 private:
  static Index steps_at_once(const LstmTask& task) {
    const Index most = smaller(task.steps, larger(1, kRowsAtOnce / task.rows));
    return task.follows != nullptr || task.leads != nullptr ? smaller(most, kStepsAtOnce) : most;
  }
  Index time_of(Index step) const { return task_.go_backwards ? task_.steps - 1 - step : step; }
  bool masked(Index row, Index step) const {
    return task_.mask != nullptr && task_.mask[time_of(step) * task_.rows + row] == 0;
  }
  float* cell(Index panel, Index row) const { return c_ + (panel * task_.rows + row) * kLanes; }
  // Where h is kept in full before a step.
  float* hidden(Index step, Index row) const {
    return kFloats ? h_[step % 2] + row * h_row_ : hidden_ + row * panels_ * kLanes;
  }

  void begin() {
    const Index units = weights_.units;
    for (Index row = 0; row < task_.rows; ++row) {
      for (Index panel = mine_.begin; panel < mine_.end; ++panel) {
        const Index unit = panel * kLanes;
        const F h = task_.h0 != nullptr ? load_upto<Storage::kFloat32>(task_.h0->at(0, row), unit, units)
                                        : Simd::set(0);
        const F c = task_.c0 != nullptr ? load_upto<Storage::kFloat32>(task_.c0->at(0, row), unit, units)
                                        : Simd::set(0);
        if (!kFloats) Simd::store(hidden(0, row) + unit, h);
        if (static_) store_state<kPrecision>(h_[0] + row * h_row_, unit, h);
        Simd::store(cell(panel, row), c);
      }
    }
    const Range rows = team_.share_of(task_.rows);
    for (Index row = rows.begin; row < rows.end; ++row) {
      Index step = 0;
      while (step < task_.steps && masked(row, step)) ++step;
      first_[row] = static_cast<int32_t>(step);
    }
    if (static_) return;
    team_.meet();
    make_words(0);
  }

  // Turns h before a step into words where their scale needs the whole row.
  void make_words(Index step) {
    const Range rows = team_.share_of(task_.rows);
    for (Index row = rows.begin; row < rows.end; ++row) {
      h_scales_[step % 2][row] =
          row_to_words<kPrecision>(hidden(step, row), weights_.units, h_[step % 2] + row * h_row_);
    }
  }

  // Projects the inputs of steps [begin, end).
  void project(Index begin, Index end) {
    const Index rows = task_.rows, count = (end - begin) * rows;
    // The steps in the order of time: the first of them lies first.
    const Index first = task_.go_backwards ? task_.steps - end : begin;
    StepRows x{task_.x.data + first * rows * x_row_, x_row_, nullptr};
    if (x_ != nullptr) {
      const Range mine = team_.share_of(count);
      for (Index row = mine.begin; row < mine.end; ++row) {
        const Index place = first * rows + row;
        const float* from = task_.ids != nullptr ? weights_.embeddings + task_.ids[place] * weights_.inputs
                                                 : task_.x.data + place * task_.x.stride;
        x_scales_[row] = row_to_words<kPrecision>(from, weights_.inputs, x_ + row * x_row_);
      }
      x = {x_, x_row_, kPrecision == Precision::kInt8 ? x_scales_ : nullptr};
      team_.meet();
    }
    for_my_blocks({0, count}, false, [&](auto tile, auto side, auto wide, Index row, Index panel) {
      constexpr int kCount = decltype(tile)::value, kPanels = decltype(side)::value;
      constexpr int kVectors = decltype(wide)::value;
      Sums<kCount, kPanels, kVectors> sums;
      for (int r = 0; r < kCount; ++r) {
        for (int j = 0; j < kVectors * kPanels; ++j)
          sums[r][j] = Simd::load(weights_.bias + (panel + j / kVectors) * kWidth + j % kVectors * kLanes);
      }
      add_product<kPrecision, kCount, kPanels, kVectors>(x, row, weights_.kernel, panel, sums);
      for (int r = 0; r < kCount; ++r) {
        for (int j = 0; j < kVectors * kPanels; ++j)
          Simd::store(projected_.at(panel + j / kVectors, row + r) + j % kVectors * kLanes, sums[r][j]);
      }
    });
    // Nobody else reads this thread's panels; but the next chunk overwrites the words.
    if (x_ != nullptr) team_.meet();
  }

  // Calls body(Rows<r>{}, PanelCount<p>{}, VectorCount<v>{}, first row, first panel) for blocks that cover the rows and
  // this thread's panels.
  template <class Body>
  void for_my_blocks(Range rows, bool backwards, Body body) {
    const Index whole = tail_ == 0 ? panels_ : panels_ - 1;
    const auto last = [&] {
      if (mine_.begin == mine_.end || mine_.end <= whole) return;
      const auto each = [&](auto vectors) {
        for_tiles(rows, [&](auto count, Index row) { body(count, PanelCount<1>{}, vectors, row, whole); });
      };
      tail_ == 1 ? each(VectorCount<1>{}) : tail_ == 2 ? each(VectorCount<2>{}) : each(VectorCount<3>{});
    };
    if (backwards) last();
    for_blocks(rows, {mine_.begin, larger(mine_.begin, smaller(mine_.end, whole))}, backwards,
               [&](auto count, auto side, Index row, Index panel) {
                 body(count, side, VectorCount<4>{}, row, panel);
               });
    if (!backwards) last();
  }

  void advance_steps(Index begin, Index end) {
    const Index rows = task_.rows;
    const Index first = task_.go_backwards ? task_.steps - end : begin;
    for (Index step = begin; step < end; ++step) {
      const Index time = time_of(step);
      const StepRows h{h_[step % 2], h_row_, static_ ? nullptr : h_scales_[step % 2]};
      // Every other step goes through the panels backwards: if the weights do not fit into a core's cache, it still
      // has those of the last panels.
      for_my_blocks({0, rows}, step % 2 == 1, [&](auto tile, auto side, auto wide, Index row, Index panel) {
        constexpr int kCount = decltype(tile)::value, kPanels = decltype(side)::value;
        constexpr int kVectors = decltype(wide)::value, kWide = kVectors * kLanes;
        Sums<kCount, kPanels, kVectors> sums;
        for (int r = 0; r < kCount; ++r) {
          for (int p = 0; p < kPanels; ++p) {
            const float* start =
                weights_.table != nullptr
                    ? weights_.table + (task_.ids[time * rows + row + r] * panels_ + panel + p) * kWidth
                    : projected_.at(panel + p, (time - first) * rows + row + r);
            for (int j = 0; j < kVectors; ++j) sums[r][kVectors * p + j] = Simd::load(start + j * kLanes);
          }
        }
        add_product<kPrecision, kCount, kPanels, kVectors>(h, row, weights_.recurrent, panel, sums);
        alignas(64) float kept[kCount * kPanels * kWide];
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < kVectors * kPanels; ++j)
            Simd::store(kept + (r * kVectors * kPanels + j) * kLanes, sums[r][j]);
        }
        for (int r = 0; r < kCount; ++r) {
          for (int p = 0; p < kPanels; ++p)
            advance<kVectors>(step, row + r, panel + p, kept + (r * kPanels + p) * kWide);
        }
      });
      team_.meet();
      if (static_) continue;
      make_words(step + 1);
      team_.meet();
    }
  }

  // Turns the sums of the gates of one row and panel into c and h.
  template <int kVectors>
  void advance(Index step, Index row, Index panel, const float* sums) {
    constexpr Index kGate = units_of_vectors(kVectors);
    const auto gate_of = [&](int gate) {
      return kVectors == 4 ? Simd::load(sums + gate * kGate) : Simd::load_n(sums + gate * kGate, kGate);
    };
    const Index unit = panel * kLanes;
    const int lanes = lanes_before(unit, weights_.units);
    const bool stays = masked(row, step);
    F h;
    if (stays) {
      h = Simd::load(hidden(step, row) + unit);
    } else {
      F c = Simd::load(cell(panel, row));
      const F i = gate_of(0), f = gate_of(1), g = gate_of(2), o = gate_of(3);
      const CellState next = usual_ ? usual_cell(i, f, g, o, c) : other_cell(i, f, g, o, c);
      c = next.c;
      h = next.h;
      if (lanes < kLanes) {
        // Lanes without a unit have weights of zero, and an infinity would make their sums NaN.
        c = first_lanes(c, lanes);
        h = first_lanes(h, lanes);
      }
      Simd::store(cell(panel, row), c);
      if (!kFloats) Simd::store(hidden(step, row) + unit, h);
    }
    if (static_) store_state<kPrecision>(h_[(step + 1) % 2] + row * h_row_, unit, h);
    const bool last = step + 1 == task_.steps;
    if (task_.outputs.data == nullptr || (!task_.return_sequences && !last)) return;
    const Index at = task_.return_sequences ? (task_.natural ? time_of(step) : step) : 0;
    const bool zero = stays && (task_.masked_output == MaskedOutput::kZero ||
                                (task_.masked_output == MaskedOutput::kPreviousOutput && step < first_[row]));
    float* to = task_.outputs.at(at, row) + unit;
    if (zero) h = Simd::set(0);
    lanes == kLanes ? Simd::store(to, h) : Simd::store_n(to, h, lanes);
  }

  // As usual_cell, with any activations; out of line, so that the code of the usual ones stays small.
  [[gnu::noinline]] CellState other_cell(F i, F f, F g, F o, F c) const {
    const Activation gate = weights_.recurrent_activation, candidate = weights_.activation;
    c = Simd::fma(activate(gate, f), c, Simd::mul(activate(gate, i), activate(candidate, g)));
    return {c, Simd::mul(activate(gate, o), activate(candidate, c))};
  }

  void end() {
    for (Index row = 0; row < task_.rows; ++row) {
      for (Index panel = mine_.begin; panel < mine_.end; ++panel) {
        const Index unit = panel * kLanes;
        if (task_.h_T.data != nullptr) {
          store_upto<Storage::kFloat32>(task_.h_T.at(0, row), Simd::load(hidden(task_.steps, row) + unit),
                                        unit, weights_.units);
        }
        if (task_.c_T.data != nullptr)
          store_upto<Storage::kFloat32>(task_.c_T.at(0, row), Simd::load(cell(panel, row)), unit,
                                        weights_.units);
      }
    }
  }

  const PackedLstm& weights_;
  const LstmTask& task_;
  const Team& team_;
  const Index panels_;
  const int tail_;     // vectors of the last panel if its gates lie side by side, else 0
  const Range mine_;   // panels
  const Index chunk_;  // steps projected at once
  const bool usual_;   // whether the activations are tanh and sigmoid
  const bool static_;  // whether the words of h have a scale that does not depend on it

  Index h_row_ = 0, x_row_ = 0;  // words from row to row
  float* h_[2] = {};             // [row][h_row_]: step k reads h_[k % 2] and writes the other
  float* h_scales_[2] = {};      // [row]
  float* hidden_ = nullptr;      // [row][unit]: h in full, where its words are rounded
  float* c_ = nullptr;           // [unit panel][row][kLanes]
  int32_t* first_ = nullptr;     // [row]: the first step that is not masked
  float* x_ = nullptr;           // [row of the chunk][x_row_], or null if x are words as they are
  float* x_scales_ = nullptr;    // [row of the chunk]
  Panels projected_;
};

}  // namespace cellerate::CELLERATE_TARGET
