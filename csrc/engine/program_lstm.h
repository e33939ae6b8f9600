// An LSTM of a program on packed weights, over whole sequences, for the rows of a block. program_kernels.h calls it.
//
// For each step and panel of units, a tile of registers starts from the input projection, or from a row of the table,
// adds h·R, and turns the sums of the four gates into the new c and h, as in lstm_forward.h, but without a reserve.
#pragma once

#include "engine/program.h"
#include "engine/program_pack.h"

namespace cellerate::CELLERATE_TARGET {

// A matrix of numbers: its row for step t and row r of the block begins at data + (t * rows + r) * stride.
struct Frames {
  float* data = nullptr;
  Index rows = 0, steps = 0, features = 0, stride = 0;  // steps is 1 without a time axis
  float* at(Index step, Index row) const { return data + (step * rows + row) * stride; }
  Index all() const { return steps * rows; }
};

struct LstmTask {
  Frames x;             // or ids
  bool states = false;  // x are states in [-1, 1], whose words have a scale of 1/127 in int8
  const int32_t* ids =
      nullptr;  // [step][row], each a row of the table or of the embeddings, or negative for the first
  const uint8_t* mask = nullptr;      // [step][row]
  const int32_t* mask_ids = nullptr;  // [step][row], in place of a mask: those up to `masked_id` are masked
  int32_t masked_id = 0;
  Frames h0, c0;    // data is null for zeros
  Frames outputs;   // all steps, or the last; data is null if no node reads them
  Frames h_T, c_T;  // data is null if no node reads them
  Index rows = 0, steps = 0;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false, return_sequences = true, natural = false;
  // The progress of the layer that computes x at the same time, and our progress for the layer that reads our outputs.
  // Both count steps from `base`.
  const Progress* follows = nullptr;
  Progress* leads = nullptr;
  long base = 0;
};

template <Precision kPrecision>
class LstmRun {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr bool kFloats = kPrecision == Precision::kFloat32;
  static constexpr Index kRowsAtOnce = 96;  // in an input projection
  // Rows whose gates become states at once, and the most that tiles of rows or panels make of them.
  static constexpr Index kGatesAtOnce = 12, kMostAtOnce = kGatesAtOnce + kRows - 1;
  // For a layer that another one follows: few steps, so that the follower begins soon.
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
    const Index rows = task_.rows;
    h_row_ = spread(ceil_div(panels_ * kLanes, kEach));
    for (float*& h : h_) h = memory.take<float>((rows + kTileRowsBeyond<kPrecision>)*h_row_);
    for (float*& scales : h_scales_) scales = memory.take<float>(rows);
    hidden_ = kFloats ? nullptr : memory.take<float>(rows * panels_ * kLanes);
    c_ = memory.take<float>(rows * panels_ * kLanes);
    first_ = memory.take<int32_t>(rows);
    if (weights_.table == nullptr) {
      // A block of fewer rows projects more steps at once, and may need this much.
      const Index most = smaller(task_.steps * rows, larger(kRowsAtOnce, rows));
      projected_ = {memory.take<float>((most * panels_ + kTileRowsBeyond<kPrecision>)*kWidth), chunk_ * rows};
      if (!as_they_are()) x_.lay_out(most, weights_.inputs, team_, memory);
    }
  }

  void run() {
    begin();
    team_.meet();
    ends_ = true;
    for (Index begin = 0; begin < task_.steps; begin += chunk_) {
      const Index end = smaller(task_.steps, begin + chunk_);
      if (task_.follows != nullptr) task_.follows->wait_for(task_.base + static_cast<long>(end));
      if (weights_.table == nullptr) project(begin, end);
      advance_steps(begin, end);
      // The whole team has met after the last step.
      if (task_.leads != nullptr && team_.me == 0) task_.leads->publish(task_.base + static_cast<long>(end));
    }
  }

  // Runs a single step. Call begin() before the first step, after which the team must meet, and end() after the last.
  // The task has one step; each call reads its ids, mask and x again, or takes x as words if `x` is not null.
  void step(const StepRows* x) {
    if (weights_.table == nullptr) project(0, 1, x);
    advance_steps(0, 1);
  }
  // The last h as words; valid until the step after the next.
  StepRows words() const { return {h_[turn_], h_row_, static_ ? nullptr : h_scales_[turn_]}; }
  void begin() {
    const Index units = weights_.units;
    for (Index row = 0; row < task_.rows; ++row) {
      for (Index panel = mine_.begin; panel < mine_.end; ++panel) {
        const Index unit = panel * kLanes;
        const F h = task_.h0.data != nullptr ? load_upto<Storage::kFloat32>(task_.h0.at(0, row), unit, units)
                                             : Simd::set(0);
        const F c = task_.c0.data != nullptr ? load_upto<Storage::kFloat32>(task_.c0.at(0, row), unit, units)
                                             : Simd::set(0);
        if (!kFloats) Simd::store(hidden(row) + unit, h);
        if (static_) store_state<kPrecision>(h_[0] + row * h_row_, unit, h);
        Simd::store(cell(panel, row), c);
      }
      if (mine_.end < panels_) continue;
      for (float* words : h_) clear_to_tile<kPrecision>(words + row * h_row_, panels_ * kLanes);
    }
    const bool looks_back = task_.masked_output == MaskedOutput::kPreviousOutput;
    const Range rows = team_.share_of(looks_back ? task_.rows : 0);
    for (Index row = rows.begin; row < rows.end; ++row) {
      Index step = 0;
      while (step < task_.steps && masked(row, step)) ++step;
      first_[row] = static_cast<int32_t>(step);
    }
    if (static_) return;
    team_.meet();
    make_words();
  }

  // Writes the last states of this thread's panels.
  void end() const {
    for (Index row = 0; row < task_.rows; ++row) {
      for (Index panel = mine_.begin; panel < mine_.end; ++panel) {
        const Index unit = panel * kLanes;
        if (task_.h_T.data != nullptr) {
          store_upto<Storage::kFloat32>(task_.h_T.at(0, row), Simd::load(hidden(row) + unit), unit,
                                        weights_.units);
        }
        if (task_.c_T.data != nullptr)
          store_upto<Storage::kFloat32>(task_.c_T.at(0, row), Simd::load(cell(panel, row)), unit,
                                        weights_.units);
      }
    }
  }

 private:
  // Whether x is used in place, without conversion to words.
  bool as_they_are() const { return kFloats && task_.ids == nullptr; }
  static Index steps_at_once(const LstmTask& task) {
    const Index most = smaller(task.steps, larger(1, kRowsAtOnce / task.rows));
    return task.follows != nullptr || task.leads != nullptr ? smaller(most, kStepsAtOnce) : most;
  }
  Index time_of(Index step) const { return task_.go_backwards ? task_.steps - 1 - step : step; }
  bool masked(Index row, Index step) const {
    const Index at = time_of(step) * task_.rows + row;
    if (task_.mask_ids != nullptr) return task_.mask_ids[at] <= task_.masked_id;
    return task_.mask != nullptr && task_.mask[at] == 0;
  }
  float* cell(Index panel, Index row) const { return c_ + (panel * task_.rows + row) * kLanes; }
  // The unrounded h before a step.
  float* hidden(Index row) const {
    return kFloats ? h_[turn_] + row * h_row_ : hidden_ + row * panels_ * kLanes;
  }
  // The row of a table that an id looks up.
  static Index looked_up(int32_t id) { return larger(id, 0); }

  // Turns h into words before a step, if their scale depends on the whole row.
  void make_words() {
    const Range rows = team_.share_of(task_.rows);
    for (Index row = rows.begin; row < rows.end; ++row)
      h_scales_[turn_][row] = row_to_words<kPrecision>(hidden(row), weights_.units, h_[turn_] + row * h_row_);
  }

  // Projects the inputs of steps [begin, end).
  void project(Index begin, Index end, const StepRows* given = nullptr) {
    const Index rows = task_.rows, count = (end - begin) * rows;
    // The first of these steps in the order of time, not of computation.
    const Index first = task_.go_backwards ? task_.steps - end : begin;
    const auto row_at = [&](Index row) -> const float* {
      const Index place = first * rows + row;
      return task_.ids != nullptr ? weights_.embeddings + looked_up(task_.ids[place]) * weights_.inputs
                                  : task_.x.data + place * task_.x.stride;
    };
    const StepRows x = given != nullptr        ? *given
                       : as_they_are()         ? StepRows{row_at(0), task_.x.stride, nullptr}
                       : kFloats && count == 1 ? StepRows{row_at(0), 0, nullptr}
                                               : x_.make(team_, count, task_.states, row_at);
    if constexpr (kHasTiles<kPrecision>) {
      if (in_tiles<kPrecision>(weights_.kernel, count)) return project_in_tiles(x, count);
    }
    if constexpr (!kOnlyTiles<kPrecision>) project_in_vectors(x, count);
    // No barrier: no other thread reads this thread's panels, and the team meets after a step before it converts again.
  }

  void project_in_vectors(const StepRows& x, Index count) {
    if (is_grouped<kPrecision>(weights_.kernel)) {
      for_groups(
          x, {0, count}, weights_.kernel, mine_, false,
          [&](Index, Index panel, float* sums) { copy_panel(weights_.bias + panel * kWidth, sums); },
          [&](Index row, Index tile, Index panel, const float* sums) {
            for (Index r = 0; r < tile; ++r) copy_panel(sums + r * kWidth, projected_.at(panel, row + r));
          });
      return;
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
  }

  int vectors_of(Index panel) const { return tail_ > 0 && panel + 1 == panels_ ? tail_ : 4; }

  void project_in_tiles(const StepRows& x, Index count) {
    for_tile_sums<kPrecision>(
        x, {0, count}, weights_.kernel, mine_, false, [this](Index panel) { return vectors_of(panel); },
        [&](Index, Index panel) { return weights_.bias + panel * kWidth; }, {.row = 0},
        [&](Index row, Index tile, Index panel, const float* sums) {
          for (Index r = 0; r < tile; ++r) copy_panel(sums + r * kWidth, projected_.at(panel, row + r));
        });
  }
  template <class Start>
  void advance_in_tiles(Index step, const StepRows& h, Start start) {
    for_tile_sums<kPrecision>(
        h, {0, task_.rows}, weights_.recurrent, mine_, turn_ == 1,
        [this](Index panel) { return vectors_of(panel); }, start, {.scattered = weights_.table != nullptr},
        [&](Index row, Index count, Index panel, const float* sums) {
          for (Index first = 0, next; first < count; first = next) {
            next = smaller(count, first + kTileRows);
            advance_all(step, row + first, next - first, panel, 1, sums + first * kWidth, kWidth);
          }
        });
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
      const StepRows h = words();
      const auto start_of_gates = [&](Index row, Index panel) -> const float* {
        return weights_.table != nullptr
                   ? weights_.table + (looked_up(task_.ids[time * rows + row]) * panels_ + panel) * kWidth
                   : projected_.at(panel, (time - first) * rows + row);
      };
      advance_gates(step, h, start_of_gates);
      end_step(step);
    }
  }

  // Advances all rows, whose gates begin as start_of_gates(row, panel).
  template <class Start>
  void advance_gates(Index step, const StepRows& h, Start start_of_gates) {
    if constexpr (kHasTiles<kPrecision>) {
      if (in_tiles<kPrecision>(weights_.recurrent, task_.rows))
        return advance_in_tiles(step, h, start_of_gates);
    }
    if constexpr (!kOnlyTiles<kPrecision>) advance_in_vectors(step, h, start_of_gates);
  }
  template <class Start>
  void advance_in_vectors(Index step, const StepRows& h, Start start_of_gates) {
    const Index rows = task_.rows;
    if (is_grouped<kPrecision>(weights_.recurrent)) {
      for_groups(
          h, {0, rows}, weights_.recurrent, mine_, turn_ == 1,
          [&](Index row, Index panel, float* sums) { copy_panel(start_of_gates(row, panel), sums); },
          [&](Index row, Index count, Index panel, const float* sums) {
            advance_all(step, row, count, panel, 1, sums, kWidth);
          });
      return;
    }
    Index first_kept = 0;
    // Every other step goes through the panels backwards: if the weights do not fit into a core's cache, the cache
    // still holds the last panels.
    for_my_blocks({0, rows}, turn_ == 1, [&](auto tile, auto side, auto wide, Index row, Index panel) {
      constexpr int kCount = decltype(tile)::value, kPanels = decltype(side)::value;
      constexpr int kVectors = decltype(wide)::value, kWide = kVectors * kLanes;
      Sums<kCount, kPanels, kVectors> sums;
      for (int r = 0; r < kCount; ++r) {
        for (int p = 0; p < kPanels; ++p) {
          const float* start = start_of_gates(row + r, panel + p);
          for (int j = 0; j < kVectors; ++j) sums[r][kVectors * p + j] = Simd::load(start + j * kLanes);
        }
      }
      add_product<kPrecision, kCount, kPanels, kVectors>(h, row, weights_.recurrent, panel, sums);
      if constexpr (kCount == 1 && kVectors == 4 && kLanes > 8) {
        // With a single row, a call would cost 8 ns for each panel of 16 units. Targets with smaller vectors have 16
        // registers and not 32; there the call is 4 % faster.
#pragma GCC unroll 1
        for (int p = 0; p < kPanels; ++p) {
          const F* of = &sums[0][4 * p];
          advance(step, row, panel + p, of[0], of[1], of[2], of[3]);
        }
        return;
      }
      float* const kept = sums_ + (row - first_kept) * kPanels * kWide;
      for (int r = 0; r < kCount; ++r) {
        for (int j = 0; j < kVectors * kPanels; ++j)
          Simd::store(kept + (r * kVectors * kPanels + j) * kLanes, sums[r][j]);
      }
      // The gates of several tiles at once: their operations wait for each other, those of different rows do not.
      const Index end = row + kCount;
      if (end < rows && end - first_kept < kGatesAtOnce) return;
      advance_all(step, first_kept, end - first_kept, panel, kPanels, sums_, kWide);
      first_kept = end < rows ? end : 0;
    });
  }

  // Ends a step: the results of all threads become the inputs of the next step.
  void end_step(Index step) {
    turn_ = 1 - turn_;
    if (ends_ && step + 1 == task_.steps) this->end();
    team_.meet();
    if (static_) return;
    make_words();
    team_.meet();
  }

  static void copy_panel(const float* from, float* to) {
    for (int j = 0; j < 4; ++j) Simd::store(to + j * kLanes, Simd::load(from + j * kLanes));
  }

  // Turns the sums of the gates of some rows of a panel, or of one row of several panels, into c and h. `next` is the
  // distance between the sums of two rows or panels.
  [[gnu::noinline]] void advance_all(Index step, Index row, Index rows, Index panel, Index panels,
                                     const float* sums, Index next) {
    const Index gate = units_of_vectors(vectors_of(panel));
    const Index count = rows * panels, unit = panel * kLanes;
    const Index next_row = panels > 1 ? 0 : 1, next_unit = panels > 1 ? kLanes : 0;
    const Index h_row = next_unit + next_row * (kFloats ? h_row_ : panels_ * kLanes);
    float* const c = cell(panel, row);
    float* const h = (kFloats ? h_[1 - turn_] + row * h_row_ : hidden(row)) + unit;
    const bool masks = task_.mask != nullptr || task_.mask_ids != nullptr;
    alignas(64) float held_c[kMostAtOnce * kLanes], held_h[kMostAtOnce * kLanes];
    for (Index n = 0; masks && n < count; ++n) {
      Simd::store(held_c + n * kLanes, Simd::load(c + n * kLanes));
      Simd::store(held_h + n * kLanes, Simd::load(hidden(row + n * next_row) + unit + n * next_unit));
    }
    usual_ ? usual_cells(sums, next, gate, count, c, h, h_row)
           : other_cells(sums, next, gate, count, c, h, h_row);
    float* const to = output(step, row);
    for (Index n = 0; n < count; ++n) {
      const Index at = row + n * next_row, first = unit + n * next_unit;
      const int lanes = lanes_before(first, weights_.units);
      const bool stays = masks && masked(at, step);
      if (stays || lanes < kLanes) {
        // Lanes without a unit have weights of zero, and an infinity would make their sums NaN.
        Simd::store(c + n * kLanes, first_lanes(Simd::load((stays ? held_c : c) + n * kLanes), lanes));
        Simd::store(h + n * h_row,
                    first_lanes(Simd::load(stays ? held_h + n * kLanes : h + n * h_row), lanes));
      }
      if (kFloats && to == nullptr) continue;
      const F now = Simd::load(h + n * h_row);
      if (!kFloats && static_) store_state<kPrecision>(h_[1 - turn_] + at * h_row_, first, now);
      if (to == nullptr) continue;
      const F shown = stays && shows_zero(at, step) ? Simd::set(0) : now;
      store_upto<Storage::kFloat32>(to + (at - row) * task_.outputs.stride, shown, first, weights_.units);
    }
  }

  // The outputs of a row and the rows after it, or null if a step has none.
  float* output(Index step, Index row) const {
    const bool last = step + 1 == task_.steps;
    if (task_.outputs.data == nullptr || (!task_.return_sequences && !last)) return nullptr;
    return task_.outputs.at(task_.return_sequences ? (task_.natural ? time_of(step) : step) : 0, row);
  }
  // Whether the output of a masked row is zero and not the output before.
  bool shows_zero(Index row, Index step) const {
    return task_.masked_output == MaskedOutput::kZero ||
           (task_.masked_output == MaskedOutput::kPreviousOutput && step < first_[row]);
  }

  CELLERATE_PART_OF_CALLER inline void advance(Index step, Index row, Index panel, F i, F f, F g, F o) {
    const Index unit = panel * kLanes;
    const int lanes = lanes_before(unit, weights_.units);
    const bool stays = masked(row, step);
    F h;
    if (stays) {
      h = Simd::load(hidden(row) + unit);
    } else {
      F c = Simd::load(cell(panel, row));
      const CellState next = usual_ ? usual_cell_here(i, f, g, o, c) : other_cell(i, f, g, o, c);
      c = next.c;
      h = next.h;
      if (lanes < kLanes) {
        c = first_lanes(c, lanes);
        h = first_lanes(h, lanes);
      }
      Simd::store(cell(panel, row), c);
      if (!kFloats) Simd::store(hidden(row) + unit, h);
    }
    if (static_) store_state<kPrecision>(h_[1 - turn_] + row * h_row_, unit, h);
    float* const to = output(step, row);
    if (to == nullptr) return;
    if (stays && shows_zero(row, step)) h = Simd::set(0);
    lanes == kLanes ? Simd::store(to + unit, h) : Simd::store_n(to + unit, h, lanes);
  }

  // Like usual_cells(), for any activations.
  void other_cells(const float* sums, Index next, Index gate, Index count, float* c, float* h,
                   Index h_row) const {
    for (Index n = 0; n < count; ++n, sums += next, c += kLanes, h += h_row) {
      const CellState found =
          other_cell(Simd::load(sums), Simd::load(sums + gate), Simd::load(sums + 2 * gate),
                     Simd::load(sums + 3 * gate), Simd::load(c));
      Simd::store(c, found.c);
      Simd::store(h, found.h);
    }
  }

  // Like usual_cell(), for any activations; out of line, so that the code of the usual activations stays small.
  [[gnu::noinline]] CellState other_cell(F i, F f, F g, F o, F c) const {
    const Activation gate = weights_.recurrent_activation, candidate = weights_.activation;
    c = Simd::fma(activate(gate, f), c, Simd::mul(activate(gate, i), activate(candidate, g)));
    return {c, Simd::mul(activate(gate, o), activate(candidate, c))};
  }

  const PackedLstm& weights_;
  const LstmTask task_;
  const Team team_;
  const Index panels_;
  const int tail_;     // vectors of the last panel if its gates lie side by side, else 0
  const Range mine_;   // panels
  const Index chunk_;  // steps projected at once
  const bool usual_;   // whether the activations are tanh and sigmoid
  const bool static_;  // whether the words of h have a fixed scale

  int turn_ = 0;              // a step reads h_[turn_] and writes the other
  bool ends_ = false;         // whether the last step writes the last states
  Index h_row_ = 0;           // words from row to row
  float* h_[2] = {};          // [row][h_row_]
  float* h_scales_[2] = {};   // [row]
  float* hidden_ = nullptr;   // [row][unit]: h in full, where its words are rounded
  float* c_ = nullptr;        // [unit panel][row][kLanes]
  int32_t* first_ = nullptr;  // [row]: the first step that is not masked
  RowWords<kPrecision> x_;    // x of the chunk as words, unless x is used in place
  Panels projected_;
  // The sums of the gates of some rows of a panel. The last vector of the last row may be read beyond its end.
  alignas(64) float sums_[kMostAtOnce * kWidth + kLanes] = {};
};

}  // namespace cellerate::CELLERATE_TARGET
