// The forward pass of one layer.
//
// For each step and each panel of units, a tile of registers starts from the input projection, adds h·R, and turns
// the sums of the four gates into the new c and h.
#pragma once

#include "cells/lstm_gates.h"
#include "cells/lstm_layout.h"
#include "simd/alike.h"
#include "systems/phases.h"

namespace cellerate::CELLERATE_TARGET {

template <Storage kStorage, bool kPairs>
class ForwardJob {
  using Stored = Element<kStorage>;
  using Type = typename Stored::Type;
  static constexpr Storage kComputed = kPairs ? Storage::kBfloat16 : Storage::kFloat32;
  using Computed = Element<kComputed>;
  using State = typename Computed::Type;

 public:
  ForwardJob(const LstmForward& in, const Plan& plan)
      : in_(in),
        plan_(plan),
        reserve_(in, in.reserve),
        x_depth_(words<kPairs>(plan.inputs)),
        h_depth_(words<kPairs>(plan.units)),
        x_row_(spread(x_depth_)),
        h_row_(spread(words<kPairs>(plan.unit_panels * kLanes))),
        chunk_(plan.all_rows_together() ? larger(1, smaller(plan.steps, kRowsAtOnce / plan.batch)) : 1),
        candidate_(in.activation),
        gate_(in.recurrent_activation),
        usual_(has_usual_gates(in.activation, in.recurrent_activation)),
        last_(LastUnits::of<kPairs>(in)),
        projects_(plan.vocabulary == 0 && plan.inputs > 0) {}

  // Takes the working memory. The first call is without memory, and only counts the bytes.
  void lay_out(Layout& memory) {
    const Index panels = plan_.unit_panels, batch = plan_.batch;
    Layout packed(const_cast<std::byte*>(in_.packed));
    Layout& weights = in_.packed != nullptr ? packed : memory;
    lay_out_weights(weights);
    if (in_.row_bias != nullptr)
      row_bias_ = {memory.take<float>(panels * batch * kWidth), plan_.batch, last_};
    if (plan_.vocabulary > 0) {
      lay_out_table(in_.packs_table ? weights : memory);
    } else if (projects_) {
      const Index rows = chunk_ * plan_.batch;
      x_gate_ = (rows + kRowsBeyond<kPairs>)*x_row_;
      x_ = memory.take<float>(in_.dropout != nullptr ? 4 * x_gate_ : x_gate_);
      projected_ = {memory.take<float>(panels * static_cast<size_t>(rows) * kWidth), rows, last_};
    }
    for (float*& h : h_) h = memory.take<float>((batch + kRowsBeyond<kPairs>)*static_cast<size_t>(h_row_));
    if (in_.recurrent_dropout != nullptr) {
      dropped_ = memory.take<float>(4 * batch * static_cast<size_t>(h_row_));
    }
    c_ = memory.take<float>(panels * batch * kLanes);
    if (last_.panel >= 0) last_sums_ = memory.take<float>(batch * kWidth);
    first_ = memory.take<int32_t>(batch);
  }

  // Takes the memory of the packed weights.
  void lay_out_packed(Layout& memory) {
    lay_out_weights(memory);
    if (packs_table()) lay_out_table(memory);
  }
  void pack_all() {
    pack_weights({0, plan_.unit_panels}, true);
    if (packs_table()) project_table({0, plan_.unit_panels});
  }

  void lead(Crew& crew) {
    PhaseClock clock({false, plan_.inputs, plan_.units, plan_.vocabulary}, 0);
    clock.enter(Phase::kPack);
    each(crew, plan_.threads, [this](int part) { prepare(part); });
    if (plan_.vocabulary > 0 && (in_.packed == nullptr || !in_.packs_table))
      each(crew, plan_.threads, [this](int part) { project_table(plan_.panels_shared(part)); });
    if (plan_.split_units) return run_units(crew, clock);
    each(crew, plan_.pieces, [&](int piece) {
      // Only the first piece is timed, on any thread.
      const auto enter = [&](Phase phase) {
        if (piece == 0) clock.enter(phase);
      };
      run_rows(plan_.rows_of(piece), enter);
    });
  }

 private:
  static constexpr Index kRowsAtOnce = 96;  // per projection, where steps are projected together

  bool packs_table() const { return plan_.vocabulary > 0 && in_.packs_table; }
  void lay_out_weights(Layout& memory) {
    const Index panels = plan_.unit_panels;
    recurrent_ = memory.take<float>(panels * static_cast<size_t>(h_depth_) * kWidth);
    bias_ = memory.take<float>(panels * kWidth);
    const Index depth = plan_.vocabulary > 0 ? plan_.inputs : x_depth_;
    kernel_ = memory.take<float>(panels * static_cast<size_t>(depth) * kWidth);
  }
  void lay_out_table(Layout& memory) {
    const Index panels = plan_.unit_panels;
    table_ = {memory.take<float>(panels * static_cast<size_t>(plan_.vocabulary) * kWidth), plan_.vocabulary,
              last_};
  }

  Index time_of(Index step) const { return in_.go_backwards ? plan_.steps - 1 - step : step; }
  bool masked(Index row, Index step) const {
    return in_.mask != nullptr && in_.mask[row * plan_.steps + time_of(step)] == 0;
  }
  float* cell(Index panel, Index row) const { return c_ + (panel * plan_.batch + row) * kLanes; }
  State* state(float* h, Index row) const { return reinterpret_cast<State*>(h + row * h_row_); }

  Range all_panels() const { return {0, plan_.unit_panels}; }

  template <class Enter>
  void run_rows(Range rows, const Enter& enter) {
    for (Index begin = 0; begin < plan_.steps; begin += chunk_) {
      const Index end = smaller(plan_.steps, begin + chunk_);
      if (projects_) {
        enter(Phase::kProject);
        copy_inputs(begin, end, rows);
        project(begin, end, rows, all_panels());
      }
      enter(Phase::kRecur);
      for (Index step = begin; step < end; ++step) {
        if (in_.recurrent_dropout != nullptr) drop(h_[step % 2], rows);
        advance_all(step, step - begin, rows, all_panels());
      }
    }
  }

  // Runs all steps; threads divide the units of each step.
  void run_units(Crew& crew, PhaseClock& clock) {
    const int parts = plan_.threads;
    const Range rows{0, plan_.batch};
    for (Index begin = 0; begin < plan_.steps; begin += chunk_) {
      const Index end = smaller(plan_.steps, begin + chunk_);
      if (projects_) {
        clock.enter(Phase::kProject);
        each(crew, parts, [&](int part) { copy_inputs(begin, end, share(plan_.batch, part, parts)); });
        each(crew, parts, [&](int part) { project(begin, end, rows, plan_.panels_of(part)); });
      }
      clock.enter(Phase::kRecur);
      for (Index step = begin; step < end; ++step) {
        if (in_.recurrent_dropout != nullptr) {
          each(crew, parts, [&](int part) { drop(h_[step % 2], share(plan_.batch, part, parts)); });
        }
        each(crew, parts, [&](int part) { advance_all(step, step - begin, rows, plan_.panels_of(part)); });
      }
    }
  }

  void advance_all(Index step, Index step_of_chunk, Range rows, Range panels) {
    for (Index panel = panels.begin; panel < panels.end; ++panel) {
      if constexpr (kTiled<kPairs>) {
        if (in_.recurrent_dropout == nullptr) {
          for_blocks(rows, [&](Index row, Index count) { advance(step, step_of_chunk, panel, row, count); });
          continue;
        }
      }
      if (panel == last_.panel) {
        advance_last(step, step_of_chunk, rows);
        continue;
      }
      for_tiles(rows, [&](auto count, Index row) {
        advance<decltype(count)::value>(step, step_of_chunk, panel, row);
      });
    }
    write_outputs(step, rows, panels);
    if (step + 1 == plan_.steps) finish(rows, panels);
  }

  void pack_weights(Range panels, bool first) {
    pack_gates<kPairs>(in_.recurrent_kernel, plan_.units, plan_.units, last_, recurrent_, panels);
    if (first) pack_gate_bias(in_.bias, plan_.units, last_, bias_, plan_.unit_panels);
    if (plan_.vocabulary > 0) {
      pack_gates<false>(in_.kernel, plan_.inputs, plan_.units, last_, kernel_, panels);
    } else {
      pack_gates<kPairs>(in_.kernel, plan_.inputs, plan_.units, last_, kernel_, panels);
    }
  }

  // Packs a share of the weights, and sets the states of a share of the rows to their initial values.
  void prepare(int index) {
    if (in_.packed == nullptr) pack_weights(plan_.panels_shared(index), index == 0);
    if (index == 0 && in_.mask != nullptr) first_unmasked(in_, first_);
    const Range rows = share(plan_.batch, index, plan_.threads);
    for (Index row = rows.begin; row < rows.end; ++row) {
      std::memset(h_[0] + row * h_row_, 0, static_cast<size_t>(h_row_) * sizeof(float));
      std::memset(h_[1] + row * h_row_, 0, static_cast<size_t>(h_row_) * sizeof(float));
      for (Index panel = 0; panel < plan_.unit_panels; ++panel) {
        const Index unit = panel * kLanes;
        const auto* h0 = static_cast<const Type*>(in_.h0) + row * plan_.units;
        const auto* c0 = static_cast<const Type*>(in_.c0) + row * plan_.units;
        if (in_.h0 != nullptr) {
          Computed::store(state(h_[0], row) + unit, load_upto<kStorage>(h0, unit, plan_.units));
        }
        Simd::store(cell(panel, row),
                    in_.c0 != nullptr ? load_upto<kStorage>(c0, unit, plan_.units) : Simd::set(0));
        for (Index gate = 0; in_.row_bias != nullptr && gate < 4; ++gate) {
          const Range from = GateColumns{plan_.units}(panel, gate);
          const float* bias = in_.row_bias + row * 4 * plan_.units;
          Simd::store(row_bias_.at(panel, row) + gate * last_.gate_of(panel),
                      load_upto<Storage::kFloat32>(bias, from.begin, from.end));
        }
      }
    }
  }

  // Projects the table, for some panels.
  void project_table(Range panels) {
    multiply<false>({in_.embeddings, plan_.inputs, 0, plan_.inputs, 1}, kernel_, bias_, table_,
                    {0, plan_.vocabulary}, panels);
  }

  // Copies the inputs of steps [begin, end) of some rows.
  void copy_inputs(Index begin, Index end, Range rows) {
    const Index batch = plan_.batch;
    for (Index step = begin; step < end; ++step) {
      for (Index row = rows.begin; row < rows.end; ++row) {
        const auto* x = static_cast<const Type*>(in_.x) + (row * plan_.steps + time_of(step)) * plan_.inputs;
        float* to = x_ + ((step - begin) * batch + row) * x_row_;
        if (in_.dropout == nullptr) {
          copy_row<kStorage, kPairs>(x, plan_.inputs, to);
        } else {
          for (int gate = 0; gate < 4; ++gate) {
            const float* factors = in_.dropout + (gate * batch + row) * plan_.inputs;
            scale_row<kStorage, kPairs>(x, factors, plan_.inputs, to + gate * x_gate_);
          }
        }
      }
    }
  }

  // Projects the copied inputs, for some panels.
  void project(Index begin, Index end, Range rows, Range panels) {
    const Index batch = plan_.batch;
    const Range all = plan_.all_rows_together() ? Range{0, (end - begin) * batch} : rows;
    const Left x{x_, x_row_, 0, x_depth_, 1};
    if (in_.dropout == nullptr) {
      multiply<kPairs>(x, kernel_, bias_, projected_, all, panels);
    } else {
      multiply_by_gate<kPairs>(x, x_gate_, kernel_, bias_, projected_, all, panels);
    }
  }

  // Multiplies h by the dropout mask of each gate.
  void drop(float* h, Range rows) {
    for (int gate = 0; gate < 4; ++gate) {
      for (Index row = rows.begin; row < rows.end; ++row) {
        const float* factors = in_.recurrent_dropout + (gate * plan_.batch + row) * plan_.units;
        scale_row<kComputed, kPairs>(state(h, row), factors, plan_.units,
                                     dropped_ + (gate * plan_.batch + row) * h_row_);
      }
    }
  }

  // The sums of a row's gates before h·R, without the row's row_bias.
  const float* projection(Index step, Index step_of_chunk, Index panel, Index row) const {
    if (plan_.vocabulary > 0) return table_.at(panel, in_.ids[row * plan_.steps + time_of(step)]);
    return projects_ ? projected_.at(panel, step_of_chunk * plan_.batch + row) : row_bias_.at(panel, row);
  }
  bool adds_row_bias() const { return in_.row_bias != nullptr && (projects_ || plan_.vocabulary > 0); }

  // Copies the sums of a row's gates before h·R.
  void start_row(Index step, Index step_of_chunk, Index panel, Index row, float* to) const {
    Tile<false, 1> sums;
    sums.load(0, projection(step, step_of_chunk, panel, row));
    if (adds_row_bias()) sums.add_to(0, row_bias_.at(panel, row));
    sums.store(0, to);
  }

  // Runs one step of kCount rows and one panel of units.
  template <int kCount>
  void advance(Index step, Index step_of_chunk, Index panel, Index first_row) {
    const float* h = h_[step % 2];
    Tile<kPairs, kCount> tile;
    for (int r = 0; r < kCount; ++r) tile.load(r, projection(step, step_of_chunk, panel, first_row + r));
    if (adds_row_bias()) {
      for (int r = 0; r < kCount; ++r) tile.add_to(r, row_bias_.at(panel, first_row + r));
    }
    const float* weights = recurrent_ + panel * h_depth_ * kWidth;
    if (in_.recurrent_dropout != nullptr) {
      const Index gate = plan_.batch * h_row_;
      const float* by_gate[4];
      for (int j = 0; j < 4; ++j) by_gate[j] = dropped_ + j * gate + first_row * h_row_;
      tile.add_rows_by_gate(by_gate, h_row_, weights, h_depth_);
    } else {
      tile.add_rows(h + first_row * h_row_, h_row_, weights, h_depth_);
    }
    alignas(64) float sums[kCount][kWidth];
    for (int r = 0; r < kCount; ++r) tile.store(r, sums[r]);
    activate_rows(step, panel, {first_row, first_row + kCount}, sums[0]);
  }
  // Runs one step of some rows and the panel of the last units, which lie side by side.
  [[gnu::noinline]] void advance_last(Index step, Index step_of_chunk, Range rows) {
    const Index panel = last_.panel;
    const Panels sums{last_sums_, plan_.batch, {0, last_.vectors}};
    for (Index row = rows.begin; row < rows.end; ++row)
      start_row(step, step_of_chunk, panel, row, sums.at(0, row));
    multiply<kPairs>({h_[step % 2], h_row_, 0, h_depth_, 1}, recurrent_ + panel * h_depth_ * kWidth, nullptr,
                     sums, rows, {0, 1}, true);
    activate_rows(step, panel, rows, sums.at(0, rows.begin));
  }
  // Runs one step of some rows in AMX tiles, without recurrent dropout.
  void advance(Index step, Index step_of_chunk, Index panel, Index first_row, Index count) {
    alignas(64) float sums[kBlockRows][kWidth];
    const float* projected = sums[0];
    if (plan_.vocabulary > 0 || adds_row_bias()) {
      for (Index r = 0; r < count; ++r) start_row(step, step_of_chunk, panel, first_row + r, sums[r]);
    } else {
      projected = projection(step, step_of_chunk, panel, first_row);
    }
    const Left h{h_[step % 2], h_row_, 0, h_depth_, 1};
    multiply_block(h.data + first_row * h_row_, h, 1, recurrent_ + panel * h_depth_ * kWidth, projected,
                   kWidth, sums[0], count);
    activate_rows(step, panel, {first_row, first_row + count}, sums[0]);
  }

  // Out of line, because it is the same for tiles of any number of rows.
  [[gnu::noinline]] void activate_rows(Index step, Index panel, Range rows, const float* sums) {
    if (!usual_) return activate_rows<false, true>(step, panel, rows, sums);
    in_.reserve != nullptr ? activate_rows<true, true>(step, panel, rows, sums)
                           : activate_rows<true, false>(step, panel, rows, sums);
  }

  // Turns the sums of the four gates into the new c and h of these rows, and stores what backward needs. Without kGates
  // it computes only c and h, which is faster.
  template <bool kUsual, bool kGates>
  void activate_rows(Index step, Index panel, Range rows, const float* sums) {
    const auto gate = kUsual ? GateFunction<kPairs>(Activation::kSigmoid) : gate_;
    const auto candidate = kUsual ? GateFunction<kPairs>(Activation::kTanh) : candidate_;
    const float* h = h_[step % 2];
    float* next_h = h_[(step + 1) % 2];
    const Index position = (step * plan_.unit_panels + panel) * plan_.batch;
    const Index unit = panel * kLanes;
    const int lanes = lanes_before(unit, plan_.units);
    const Index next_gate = last_.gate_of(panel);
    for (Index row = rows.begin; row < rows.end; ++row, sums += kWidth) {
      F sum[4];
      for (int j = 0; j < 4; ++j)
        sum[j] = lanes < kLanes ? Simd::load_n(sums + j * next_gate, lanes) : Simd::load(sums + j * kLanes);
      [[maybe_unused]] F value[4], e[4];
      CellState next;
      if constexpr (kGates) {
        for (int j = 0; j < 4; ++j) value[j] = (j == 2 ? candidate : gate).value(sum[j], e[j]);
        next.c = Simd::fma(value[1], Simd::load(cell(panel, row)), Simd::mul(value[0], value[2]));
        next.h =
            Simd::mul(value[3], activate(kUsual ? Activation(Activation::kTanh) : in_.activation, next.c));
      } else {
        next = usual_cell(sum[0], sum[1], sum[2], sum[3], Simd::load(cell(panel, row)));
      }
      // Lanes without a unit have weights of zero, but an infinite input makes their sums NaN.
      const auto units_of = [lanes](F x) { return lanes < kLanes ? first_lanes(x, lanes) : x; };
      next = {units_of(next.c), units_of(next.h)};
      if (masked(row, step))
        next = {Simd::load(cell(panel, row)), Computed::load(state(const_cast<float*>(h), row) + unit)};
      Simd::store(cell(panel, row), next.c);
      Computed::store(state(next_h, row) + unit, next.h);
      if constexpr (kGates) {
        if (in_.reserve == nullptr) continue;
        auto* kept = reserve_.gates + (position + row) * kWidth;
        for (int j = 0; j < 4; ++j) {
          const F one = (j == 2 ? candidate : gate).kept(sum[j], value[j], e[j]);
          Computed::store(kept + j * kLanes, units_of(one));
        }
        Simd::store(reserve_.cells + (position + row) * kLanes, next.c);
      }
    }
  }

  // Copies units [begin, end) of a row of h to storage.
  void copy_state(float* h, Index row, Index begin, Index end, Type* to) const {
    const State* from = state(h, row);
    if constexpr (kStorage == kComputed) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(Type));
    } else {
      for (Index unit = begin; unit < end; unit += kLanes) {
        store_upto<kStorage>(to, load_upto<kComputed>(from, unit, end), unit, end);
      }
    }
  }

  // Writes the outputs of a step, and its states if backward cannot take them from the outputs.
  void write_outputs(Index step, Range rows, Range panels) {
    const bool last = step + 1 == plan_.steps;
    float* h = h_[(step + 1) % 2];
    const Index begin = panels.begin * kLanes;
    const Index end = smaller(plan_.units, panels.end * kLanes);
    for (Index row = rows.begin; row < rows.end; ++row) {
      if (in_.reserve != nullptr && reserve_.states != nullptr) {
        copy_state(h, row, begin, end, reserve_.states + (step * plan_.batch + row) * plan_.units);
      }
      if (!in_.return_sequences && !last) continue;
      const Index position = in_.return_sequences ? row * plan_.steps + step : row;
      Type* to = static_cast<Type*>(in_.outputs) + position * plan_.units;
      const bool zero =
          masked(row, step) && (in_.masked_output == MaskedOutput::kZero ||
                                (in_.masked_output == MaskedOutput::kPreviousOutput && step < first_[row]));
      if (zero) {
        std::memset(to + begin, 0, static_cast<size_t>(end - begin) * sizeof(Type));
      } else {
        copy_state(h, row, begin, end, to);
      }
    }
  }

  void finish(Range rows, Range panels) {
    const Index begin = panels.begin * kLanes;
    const Index end = smaller(plan_.units, panels.end * kLanes);
    for (Index row = rows.begin; row < rows.end; ++row) {
      copy_state(h_[plan_.steps % 2], row, begin, end, static_cast<Type*>(in_.h_T) + row * plan_.units);
      for (Index panel = panels.begin; panel < panels.end; ++panel) {
        store_upto<kStorage>(static_cast<Type*>(in_.c_T) + row * plan_.units, Simd::load(cell(panel, row)),
                             panel * kLanes, plan_.units);
      }
    }
  }

  const LstmForward& in_;
  const Plan& plan_;
  const Reserve<kStorage, kPairs> reserve_;
  const Index x_depth_, h_depth_;  // words of K
  const Index x_row_, h_row_;      // words from row to row
  const Index chunk_;              // steps projected at once
  const GateFunction<kPairs> candidate_, gate_;
  const bool usual_;
  const LastUnits last_;
  const bool projects_;  // whether the inputs are multiplied at each position

  float* kernel_ = nullptr;     // packed
  float* recurrent_ = nullptr;  // packed
  float* bias_ = nullptr;       // packed
  Panels row_bias_;             // for each row
  Panels table_;                // embeddings·kernel + bias, one row per id
  float* x_ = nullptr;          // [step of the chunk][row][x_row_]; with dropout one per gate
  Index x_gate_ = 0;            // words from one gate's x_ to the next
  Panels projected_;            // x·kernel + bias, rows in the order of x_
  float* h_[2] = {};            // [row][h_row_]: step k reads h_[k % 2] and writes the other
  float* dropped_ = nullptr;    // [gate][row][h_row_]
  float* c_ = nullptr;          // [unit panel][row][kLanes]
  float* last_sums_ = nullptr;  // [row][kWidth], of the last units
  int32_t* first_ = nullptr;    // see first_unmasked
};

inline size_t pack_forward(const LstmForward& in, std::byte* memory) {
  const auto own = [&]<Storage kStorage>() {
    const Plan plan(in);
    return pack_job(ForwardJob<kStorage, kPairsOf<kStorage>>(in, plan), memory);
  };
  return own_or_alike(in.storage, own,
                      [&] { return CELLERATE_ALIKE::kLstmKernels.pack_forward(in, memory); });
}

inline void forward(const LstmForward& in) {
  const auto own = [&]<Storage kStorage>() {
    constexpr bool kPairs = kPairsOf<kStorage>;
    const Plan plan(in);
    if (in.reserve != nullptr) *Reserve<kStorage, kPairs>(in, in.reserve).layout = kReserveLayout<kPairs>;
    ForwardJob<kStorage, kPairs> job(in, plan);
    lead_on(plan.threads, job);
  };
  own_or_alike(in.storage, own, [&] { CELLERATE_ALIKE::kLstmKernels.forward(in); });
}

}  // namespace cellerate::CELLERATE_TARGET
