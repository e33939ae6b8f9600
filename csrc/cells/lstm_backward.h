// The backward pass of one layer.
//
// Time runs backwards in chunks. Within a chunk, each step turns dh and dc into the gradients dz of the four gates,
// and dz·R^T is the dh of the step before. After a chunk, dx = dz·W^T and the gradients of the weights, [x h 1]^T·dz,
// are one product each over all its rows. With lookups, dz is summed by id instead, and the small products with the
// embeddings follow at the end; but if the caller asks for dx, dx replaces the gradient of the embeddings.
#pragma once

#include <stdexcept>

#include "cells/lstm_gates.h"
#include "cells/lstm_layout.h"
#include "simd/alike.h"
#include "systems/phases.h"

namespace cellerate::CELLERATE_TARGET {

template <Storage kStorage, bool kPairs>
class BackwardJob {
  using Stored = Element<kStorage>;
  using Type = typename Stored::Type;
  static constexpr Storage kComputed = kPairs ? Storage::kBfloat16 : Storage::kFloat32;
  using Computed = Element<kComputed>;
  static constexpr int kEach =
      kPairs ? 2 : 1;  // rows in one word of the summed axis, in the weights' products
  static constexpr Index kRun = kWidth / kEach;      // words of a panel's row, where K runs over the gates
  static constexpr Index kGateRun = kLanes / kEach;  // words of one gate in this row

 public:
  BackwardJob(const LstmBackward& in, const Plan& plan)
      : in_(in),
        plan_(plan),
        reserve_(in, const_cast<void*>(in.reserve)),
        rows_(round_up(plan.batch, kEach)),
        chunk_(steps_at_once(plan.steps, larger(1, kRowsAtOnce / rows_))),
        panel_rows_((chunk_ + 1) * rows_),
        depth_(words<kPairs>(panel_rows_)),
        packed_depth_(packed_depth<kPairs>(words<kPairs>(chunk_ * rows_))),
        state_panels_(ceil_div(plan.units, kWidth)),
        input_panels_(ceil_div(plan.inputs, kWidth)),
        gates_deep_(plan.unit_panels * kRun),
        tail_(ceil_div(plan.units % kLanes, kEach)),
        x_rows_(plan.vocabulary > 0 ? 0 : plan.inputs + (in.d_bias != nullptr ? 1 : 0)),
        candidate_(in.activation),
        gate_(in.recurrent_activation),
        usual_(has_usual_gates(in.activation, in.recurrent_activation)),
        last_(LastUnits::of<kPairs>(in)) {}

  // Takes the working memory. The first call is without memory, and only counts the bytes.
  void lay_out(Layout& memory) {
    const Index chunk_rows = chunk_ * rows_;
    Layout packed(const_cast<std::byte*>(in_.packed));
    lay_out_packed(in_.packed != nullptr ? packed : memory);
    if (in_.d_x != nullptr)
      d_x_ = {memory.take<float>(input_panels_ * chunk_rows * kWidth), chunk_rows, last_of(plan_.inputs)};
    d_h_ = {memory.take<float>(state_panels_ * plan_.batch * kWidth), plan_.batch, last_of(plan_.units)};
    d_c_ = memory.take<float>(plan_.unit_panels * plan_.batch * kLanes);
    if (kPairs) d_gates_ = memory.take<float>((plan_.unit_panels * panel_rows_ + kRowsBeyond<kPairs>)*kRun);
    d_paired_ = memory.take<float>(plan_.unit_panels * depth_ * kWidth);
    if (!kPairs) d_gates_ = d_paired_;
    x_gate_ = packed_words<kPairs>(x_rows_, packed_depth_);
    x_ = memory.take<float>((in_.dropout != nullptr ? 4 : 1) * x_gate_);
    h_gate_ = packed_words<kPairs>(plan_.units, packed_depth_);
    h_ = memory.take<float>((in_.recurrent_dropout != nullptr ? 4 : 1) * h_gate_);
    if (in_.d_row_bias != nullptr)
      d_row_bias_ = {memory.take<float>(plan_.unit_panels * plan_.batch * kWidth), plan_.batch};
    if (plan_.vocabulary > 0) {
      d_table_ = {memory.take<float>(plan_.unit_panels * plan_.vocabulary * kWidth), plan_.vocabulary};
      if (in_.d_embeddings != nullptr) {
        d_embeddings_ = {memory.take<float>(input_panels_ * plan_.vocabulary * kWidth), plan_.vocabulary,
                         last_of(plan_.inputs)};
      }
      embeddings_ = memory.take<float>(packed_words<false>(plan_.inputs, plan_.vocabulary));
    }
    first_ = memory.take<int32_t>(plan_.batch);
  }

  // Takes the memory of the packed weights.
  void lay_out_packed(Layout& memory) {
    recurrent_ = memory.take<float>(state_panels_ * gates_deep_ * kWidth);
    const bool wants_x = in_.d_x != nullptr || in_.d_embeddings != nullptr;
    if (wants_x) kernel_ = memory.take<float>(input_panels_ * plan_.unit_panels * kWidth * kWidth);
  }
  void pack_weights(Range states, Range inputs) {
    const bool by_gate = in_.recurrent_dropout != nullptr;
    pack_gates_transposed<kPairs>(in_.recurrent_kernel, plan_.units, plan_.units, by_gate, recurrent_,
                                  states);
    if (in_.d_x != nullptr) {
      pack_gates_transposed<kPairs>(in_.kernel, plan_.inputs, plan_.units, in_.dropout != nullptr, kernel_,
                                    inputs);
    } else if (in_.d_embeddings != nullptr) {
      pack_gates_transposed<false>(in_.kernel, plan_.inputs, plan_.units, false, kernel_, inputs);
    }
  }
  void pack_all() { pack_weights({0, state_panels_}, {0, input_panels_}); }

  void lead(Crew& crew) {
    PhaseClock clock({true, plan_.inputs, plan_.units, plan_.vocabulary}, 0);
    const Index parts = plan_.threads;
    clock.enter(Phase::kPack);
    each(crew, parts, [this](int part) { prepare(part); });
    for (Index end = plan_.steps; end > 0; end = larger(0, end - chunk_)) {
      const Index begin = larger(0, end - chunk_);
      clock.enter(Phase::kRecur);
      plan_.split_units ? recur_by_units(crew, begin, end) : recur_by_rows(crew, begin, end);
      clock.enter(Phase::kWeightGradients);
      each(crew, parts, [&](int part) {
        pack_inputs(part, begin, end);
        if constexpr (kTiled<kPairs>) clear_beyond_rows(part, end - begin);
      });
      if (in_.d_x != nullptr) {
        clock.enter(Phase::kInputGradients);
        each(crew, shares(), [&](int part) { input_gradients(part, begin, end); });
        clock.enter(Phase::kWeightGradients);
      }
      each(crew, shares(), [&](int part) { weight_gradients(part, begin, end); });
    }
    if (in_.d_h0 != nullptr || in_.d_c0 != nullptr) {
      each(crew, parts, [&](int part) { store_state_gradients(share(plan_.batch, part, plan_.threads)); });
    }
    if (plan_.vocabulary == 0) return;
    each(crew, parts, [this](int part) { pack_embeddings(part); });
    each(crew, parts, [this](int part) { table_gradients(part); });
  }

 private:
  // Rows of a chunk: enough to make loading and storing the sums of d_kernel and d_recurrent_kernel worthwhile, and
  // few enough for dz to stay in the last-level cache.
  static constexpr Index kRowsAtOnce = kTiled<kPairs> ? 1536 : 768;

  // The steps of a chunk, about `wanted`, such that the last chunk is hardly smaller than the others.
  static Index steps_at_once(Index steps, Index wanted) {
    return ceil_div(steps, ceil_div(steps, wanted + wanted / 4));
  }

  // The shares of a chunk's products: several for each thread while other programs want the cores.
  Index shares() const { return plan_.pieces > plan_.threads ? 4 * plan_.threads : plan_.threads; }

  void recur_by_rows(Crew& crew, Index begin, Index end) {
    const Range panels{0, plan_.unit_panels};
    each(crew, plan_.pieces, [&](int piece) {
      const Range rows = plan_.rows_of(piece);
      for (Index step = end - 1; step >= begin; --step) {
        differentiate_all(step, step - begin, rows, panels);
        multiply_back(step, step - begin, rows, panels);
      }
    });
  }

  // Each part computes dh only for its own units, so that threads meet once a step.
  void recur_by_units(Crew& crew, Index begin, Index end) {
    const Range rows{0, plan_.batch};
    for (Index step = end - 1; step >= begin - 1; --step) {
      each(crew, plan_.threads, [&](int part) {
        const Range panels = plan_.panels_of(part);
        if (step + 1 < end) multiply_back(step + 1, step + 1 - begin, rows, panels);
        if (step >= begin) differentiate_all(step, step - begin, rows, panels);
      });
    }
  }

  void differentiate_all(Index step, Index step_of_chunk, Range rows, Range panels) {
    for (Index panel = panels.begin; panel < panels.end; ++panel) {
      const bool last = panel + 1 == panels.end;
      const Place ahead = last ? Place{step - 1, panels.begin} : Place{step, panel + 1};
      usual_ ? differentiate<true>({step, panel}, step_of_chunk, rows, ahead)
             : differentiate<false>({step, panel}, step_of_chunk, rows, ahead);
    }
  }

  Index time_of(Index step) const { return in_.go_backwards ? plan_.steps - 1 - step : step; }
  bool masked(Index row, Index step) const {
    return in_.mask != nullptr && in_.mask[row * plan_.steps + time_of(step)] == 0;
  }
  // The vector of unit panel `panel` in d_h_.
  float* d_h(Index panel, Index row) const { return d_h_.at(panel / 4, row) + panel % 4 * kLanes; }
  float* d_c(Index panel, Index row) const { return d_c_ + (panel * plan_.batch + row) * kLanes; }
  // The column panels of the state that belong to unit panels.
  Range state_panels(Range panels) const { return {panels.begin / 4, ceil_div(panels.end, 4)}; }

  void prepare(int index) {
    if (in_.packed == nullptr)
      pack_weights(share(state_panels_, index, plan_.threads), share(input_panels_, index, plan_.threads));
    if (plan_.vocabulary > 0) {
      const Range mine = plan_.panels_shared(index);
      for (Index panel = mine.begin; panel < mine.end; ++panel) {
        std::memset(d_table_.at(panel, 0), 0, static_cast<size_t>(plan_.vocabulary * kWidth) * sizeof(float));
      }
    }
    if (index == 0 && in_.mask != nullptr) first_unmasked(in_, first_);
    const Range rows = share(plan_.batch, index, plan_.threads);
    for (Index row = rows.begin; row < rows.end; ++row) {
      for (Index panel = 0; panel < plan_.unit_panels; ++panel) {
        Simd::store(d_h(panel, row), given(in_.d_h_T, row, panel));
        Simd::store(d_c(panel, row), given(in_.d_c_T, row, panel));
      }
    }
  }

  // A vector of a (B, H) array, or zeros.
  F given(const void* array, Index row, Index panel) const {
    if (array == nullptr) return Simd::set(0);
    return load_upto<kStorage>(static_cast<const Type*>(array) + row * plan_.units, panel * kLanes,
                               plan_.units);
  }

  // A step and a panel of units.
  struct Place {
    Index step, panel;
  };
  Index position(Place place, Index row) const {
    return (place.step * plan_.unit_panels + place.panel) * plan_.batch + row;
  }
  const float* cells(Place place, Index row) const { return reserve_.cells + position(place, row) * kLanes; }

  // The gradients of a row's output at a step; null if nobody sees the output.
  const Type* output_gradients(Index step, Index row) const {
    if (in_.d_outputs == nullptr || (!in_.return_sequences && step + 1 < plan_.steps)) return nullptr;
    const Index output = in_.return_sequences ? row * plan_.steps + step : row;
    return static_cast<const Type*>(in_.d_outputs) + output * plan_.units;
  }
  // Whether the output of a masked step is an earlier h, whose gradient stays in dh for the step before.
  bool shows_earlier(Index step, Index row) const {
    return in_.masked_output != MaskedOutput::kZero &&
           (in_.masked_output != MaskedOutput::kPreviousOutput || step >= first_[row]);
  }

  // Fetches what the gradients of a row's gates are computed from. It lies far from that of other panels and steps.
  [[gnu::always_inline]] void fetch_row(Place place, Index row) const {
    if (place.step < 0) return;
    fetch(reserve_.gates + position(place, row) * kWidth,
          kWidth * static_cast<Index>(sizeof *reserve_.gates));
    fetch(cells(place, row));
    if (place.step > 0) fetch(cells({place.step - 1, place.panel}, row));
    const Type* outputs = output_gradients(place.step, row);
    if (outputs != nullptr) fetch(outputs + place.panel * kLanes);
  }

  struct Gates {
    F d[4];
  };

  // The gradients of the gates of one row and panel of units. Leaves in d_c and d_h the gradients of the step before,
  // without the product dz·R^T.
  template <bool kUsual>
  CELLERATE_PART_OF_CALLER Gates differentiate_row(Place place, Index row) {
    const auto [step, panel] = place;
    F dh = Simd::load(d_h(panel, row));
    const bool is_masked = masked(row, step);
    const Type* outputs = output_gradients(step, row);
    if (outputs != nullptr && (!is_masked || shows_earlier(step, row)))
      dh = Simd::add(dh, load_upto<kStorage>(outputs, panel * kLanes, plan_.units));
    if (is_masked) {
      Simd::store(d_h(panel, row), dh);
      return {{Simd::set(0), Simd::set(0), Simd::set(0), Simd::set(0)}};
    }
    const auto* kept = reserve_.gates + position(place, row) * kWidth;
    const auto gate = kUsual ? GateFunction<kPairs>(Activation::kSigmoid) : gate_;
    const auto candidate = kUsual ? GateFunction<kPairs>(Activation::kTanh) : candidate_;
    const Activation activation = kUsual ? Activation(Activation::kTanh) : in_.activation;
    const auto i = gate.at(Computed::load(kept)), f = gate.at(Computed::load(kept + kLanes));
    const auto g = candidate.at(Computed::load(kept + 2 * kLanes));
    const auto o = gate.at(Computed::load(kept + 3 * kLanes));
    const F c = Simd::load(cells(place, row));
    const F before = step > 0 ? Simd::load(cells({step - 1, panel}, row)) : given(in_.c0, row, panel);
    const F a = activate(activation, c);
    const F dc = Simd::fma(Simd::mul(dh, o.value), derivative(activation, c, a), Simd::load(d_c(panel, row)));
    Simd::store(d_c(panel, row), Simd::mul(dc, f.value));
    // Only a masked row's dh survives this step; see multiply_back.
    if (in_.mask != nullptr) Simd::store(d_h(panel, row), Simd::set(0));
    return {{Simd::mul(Simd::mul(dc, g.value), i.slope), Simd::mul(Simd::mul(dc, before), f.slope),
             Simd::mul(Simd::mul(dc, i.value), g.slope), Simd::mul(Simd::mul(dh, a), o.slope)}};
  }

  // Writes dz at one place for the given rows, and fetches what the next place needs.
  template <bool kUsual>
  void differentiate(Place place, Index step_of_chunk, Range rows, Place ahead) {
    const Index first = step_of_chunk * rows_;
    for (Index row = rows.begin; row < rows.end; row += kEach) {
      float* paired = d_paired_ + (place.panel * depth_ + (first + row) / kEach) * kWidth;
      for (Index each = row; each < smaller(row + kEach, rows.end); ++each) fetch_row(ahead, each);
      const Gates even = differentiate_row<kUsual>(place, row);
      Gates odd = {{Simd::set(0), Simd::set(0), Simd::set(0), Simd::set(0)}};
      if constexpr (kPairs) {
        if (row + 1 < rows.end) odd = differentiate_row<kUsual>(place, row + 1);
        write_row(place.panel, first + row, even);
        if (row + 1 < rows.end) write_row(place.panel, first + row + 1, odd);
      }
      // In this order: the lanes of a gate beyond the last unit are those of the next gate.
      const Index gate = last_.gate_of(place.panel);
      for (int j = 0; j < 4; ++j) Simd::store(paired + j * gate, word<kPairs>(even.d[j], odd.d[j]));
    }
  }

  float* d_gates(Index panel, Index row) const { return d_gates_ + (panel * panel_rows_ + row) * kRun; }
  void write_row(Index panel, Index row, const Gates& gates) {
    auto* to = reinterpret_cast<typename Computed::Type*>(d_gates(panel, row));
    for (int j = 0; j < 4; ++j) Computed::store(to + j * kLanes, gates.d[j]);
  }

  // The dh of the step before: dz·R^T, plus the dh of masked rows, which differentiate_row left in place.
  void multiply_back(Index step, Index step_of_chunk, Range rows, Range panels) {
    if (step == 0 && in_.d_h0 == nullptr) return;
    const Index block = panel_rows_ * kRun;
    const float* a = d_gates(0, step_of_chunk * rows_);
    const Range columns = state_panels(panels);
    const bool add = in_.mask != nullptr;
    if (in_.recurrent_dropout == nullptr)
      return multiply<kPairs>({a, kRun, block, kRun, plan_.unit_panels, tail_, last_.gate / kEach},
                              recurrent_, nullptr, d_h_, rows, columns, add);
    const auto factors = [&](int gate, Index row) {
      return in_.recurrent_dropout + (gate * plan_.batch + row) * plan_.units;
    };
    multiply_gates_apart<kPairs>({a, kRun, block, kGateRun, plan_.unit_panels, tail_}, recurrent_,
                                 plan_.units, factors, d_h_, rows, columns, add);
  }

  // h before a step, a row of storage type; null for zeros.
  const Type* state_before(Index step, Index row) const {
    if (step == 0) return in_.h0 == nullptr ? nullptr : static_cast<const Type*>(in_.h0) + row * plan_.units;
    if (reserve_.states != nullptr) {
      return reserve_.states + ((step - 1) * plan_.batch + row) * plan_.units;
    }
    return static_cast<const Type*>(in_.outputs) + (row * plan_.steps + step - 1) * plan_.units;
  }

  // Packs x, 1 and h of this thread's rows in a chunk as left factors.
  void pack_inputs(int index, Index begin, Index end) {
    const Range rows = share(plan_.batch, index, plan_.threads, kEach);
    const float one = Simd::kBfloat16Products && kPairs ? word_of_ones() : 1.0f;
    for (Index step = begin; step < end; ++step) {
      for (Index row = rows.begin; row < rows.end; row += kEach) {
        const Index k = ((step - begin) * rows_ + row) / kEach;
        const bool second = kPairs && row + 1 < plan_.batch;
        if (x_rows_ > 0) {
          const auto* x =
              static_cast<const Type*>(in_.x) + (row * plan_.steps + time_of(step)) * plan_.inputs;
          pack(x, second ? x + plan_.steps * plan_.inputs : nullptr, plan_.inputs, in_.dropout, row, x_,
               x_gate_, k);
          if (in_.d_bias != nullptr) {
            for (int copy = 0; copy < (in_.dropout != nullptr ? 4 : 1); ++copy) {
              *packed_at<kPairs>(x_ + copy * x_gate_, packed_depth_, plan_.inputs, k) = one;
            }
          }
        }
        const Type* h = state_before(step, row);
        if (h == nullptr) {
          clear_state(k);
        } else {
          pack(h, second ? state_before(step, row + 1) : nullptr, plan_.units, in_.recurrent_dropout, row, h_,
               h_gate_, k);
        }
      }
    }
  }
  // Packs a row (or the two rows of a word) as column k; with dropout, once for each gate.
  void pack(const Type* even, const Type* odd, Index n, const float* dropout, Index row, float* to,
            Index gate_words, Index k) {
    if (dropout == nullptr) return pack_column<kStorage, kPairs>(even, odd, n, to, packed_depth_, 0, k);
    for (int gate = 0; gate < 4; ++gate) {
      pack_column<kStorage, kPairs>(even, odd, n, to + gate * gate_words, packed_depth_, 0, k,
                                    dropout + (gate * plan_.batch + row) * n, n);
    }
  }
  void clear_state(Index k) {
    for (int copy = 0; copy < (in_.recurrent_dropout != nullptr ? 4 : 1); ++copy) {
      for (Index unit = 0; unit < plan_.units; ++unit) {
        *packed_at<kPairs>(h_ + copy * h_gate_, packed_depth_, unit, k) = 0;
      }
    }
  }
  // Pads the words along the rows of a chunk with zeros to whole tiles: this thread's share of both factors.
  void clear_beyond_rows(int index, Index steps);
  static float word_of_ones() {
    constexpr uint32_t kOnes = 0x3f803f80;  // twice 1 in bfloat16
    float word;
    std::memcpy(&word, &kOnes, sizeof word);
    return word;
  }

  // dx = dz·W^T for the rows of a chunk.
  void input_gradients(int index, Index begin, Index end);

  // Adds a chunk to the gradients of a share of the panels of the weights.
  void weight_gradients(int index, Index begin, Index end);

  // Multiplies `rows` rows of a packed left factor, or of one per gate, by a panel of dz, and adds each product to the
  // row `row_of` of the weights' gradients.
  template <class RowOf>
  void add_products(const float* left, Index gate_words, bool by_gate, Index rows, Index panel, Index deep,
                    bool first, const RowOf& row_of);

  // kRows rows of a packed left factor, or of one per gate, times a panel of dz. A function of its own keeps the sums
  // in registers, because their address does not escape.
  [[gnu::noinline]] Tile<kPairs, kRows> product(const float* left, Index gate_words, bool by_gate, Index row,
                                                const float* d_gates, Index deep) const;

  // Adds the gates of a panel to a row of 4H in Keras's order, or stores them there if `first`.
  void add_gates(const F (&sum)[4], float* row, Index panel, bool first);
  // The same from a row of the panel in memory.
  void add_sums(const float* sums, float* row, Index panel, bool first);

  // Adds the rows of dz of one panel to the rows of their ids in d_table_.
  void add_to_table(Index panel, Index begin, Index end);

  // Adds the rows of dz of one panel to the gradients of row_bias, and stores these after the last chunk.
  void add_to_row_bias(Index panel, Index begin, Index end);

  // Stores the gradients of the initial states of some rows.
  void store_state_gradients(Range rows);

  // Packs a share of the embeddings.
  void pack_embeddings(int index);

  // Computes the gradients of embeddings, kernel and bias from dz summed by id.
  void table_gradients(int index);

  const LstmBackward& in_;
  const Plan& plan_;
  const Reserve<kStorage, kPairs> reserve_;
  const Index rows_;   // of one step in a chunk: the batch, rounded up to whole words
  const Index chunk_;  // steps taken together
  // Rows from panel to panel of dz: those of a chunk and one more step, so that a step's rows of all panels do not fall
  // into the same sets of the cache.
  const Index panel_rows_;
  const Index depth_;         // words along these rows
  const Index packed_depth_;  // words along the rows of a chunk, in the packed left factors
  const Index state_panels_, input_panels_;
  const Index gates_deep_;  // words of K where K runs over the gates
  const Index tail_;        // words of each gate in the last panel, if that is not full
  const Index x_rows_;      // of the left factor [x 1]^T
  const GateFunction<kPairs> candidate_, gate_;
  const bool usual_;
  const LastUnits last_;

  float* recurrent_ = nullptr;  // R^T, packed
  float* kernel_ = nullptr;     // W^T, packed; for the gradient of embeddings always floats
  Panels d_x_;                  // rows: (step of the chunk, row)
  Panels d_h_;                  // columns: units
  float* d_c_ = nullptr;        // [unit panel][row][kLanes]
  float* d_gates_ = nullptr;    // dz as a left factor: [unit panel][panel_rows_][kRun]
  float* d_paired_ =
      nullptr;          // dz as a right factor: [unit panel][depth_][kWidth]; with floats the same memory
  float* x_ = nullptr;  // [x 1]^T as a packed left factor; with dropout one per gate
  float* h_ = nullptr;  // h^T as a packed left factor; with recurrent dropout one per gate
  Index x_gate_ = 0, h_gate_ = 0;  // words from one gate's to the next
  Panels d_row_bias_;              // dz summed over time
  Panels d_table_;                 // dz summed by id
  Panels d_embeddings_;
  float* embeddings_ = nullptr;  // embeddings^T as a packed left factor
  int32_t* first_ = nullptr;     // see first_unmasked
};

}  // namespace cellerate::CELLERATE_TARGET

#include "cells/lstm_gradients.h"

namespace cellerate::CELLERATE_TARGET {

// Once back through the weights, and once for their gradients.
constexpr double kBackwardPasses = 2;

inline size_t pack_backward(const LstmBackward& in, std::byte* memory) {
  const auto own = [&]<Storage kStorage>() {
    const Plan plan(in, kBackwardPasses);
    return pack_job(BackwardJob<kStorage, kPairsOf<kStorage>>(in, plan), memory);
  };
  return own_or_alike(in.storage, own,
                      [&] { return CELLERATE_ALIKE::kLstmKernels.pack_backward(in, memory); });
}

inline void backward(const LstmBackward& in) {
  const auto own = [&]<Storage kStorage>() {
    constexpr bool kPairs = kPairsOf<kStorage>;
    const Plan plan(in, kBackwardPasses);
    if (*Reserve<kStorage, kPairs>(in, const_cast<void*>(in.reserve)).layout != kReserveLayout<kPairs>) {
      throw std::invalid_argument("reserve: another target wrote it than the one in use, " CELLERATE_STRING(
          CELLERATE_TARGET) "; change targets between steps, not between forward and backward");
    }
    BackwardJob<kStorage, kPairs> job(in, plan);
    lead_on(plan.threads, job);
  };
  own_or_alike(in.storage, own, [&] { CELLERATE_ALIKE::kLstmKernels.backward(in); });
}

}  // namespace cellerate::CELLERATE_TARGET
