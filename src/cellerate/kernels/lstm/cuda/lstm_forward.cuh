// The forward recurrence of one LSTM layer in one direction.
//
// Source of the idea that weights stay in registers and blocks exchange h: persistent RNNs (Diamos et al.,
// "Persistent RNNs: Stashing Recurrent Weights On-Chip", 2016), here on Hopper's distributed shared memory.
#pragma once

#include "arguments.cuh"
#include "lstm.cuh"
#include "wide_products.cuh"

namespace cellerate::gpu {

template <class P>
struct ForwardShared {
  using Number = typename P::Number;
  // h is sent in the form for the matrix units, but if masks multiply it first, the receiver splits it.
  static constexpr int kParts = P::kDropped ? 1 : Layout<Number>::kSplit;

  // The h of all units, of this step and of the next, ordered by `in_panel`. Wide products need it at the beginning
  // of the shared memory.
  alignas(128) Panels<P, P::kPanels, kParts> h[2];
  // The numbers that this block sends, and those that it writes if they differ: for even and for odd steps.
  Panels<P, P::kBlockPanels, kParts> sent[2];
  Panels<P, P::kBlockPanels, 1> state[2];   // not used if `sent` is the same
  Panels<P, P::kBlockPanels, 1> output[2];  // not used if the state is the same
  // With a mask for each gate: the masks of all units, (4, kPanels) panels.
  Number dropout[P::kDropped ? 4 * P::kPanels * P::kRows * kPanelUnits : 1];
  // Signal that h has arrived: one barrier for even steps and one for odd steps.
  Barrier arrived[2];
  // With a mask for each gate: the sums of all gates, units and rows.
  float sums[P::kDropped ? 4 * P::kBlockUnits * P::kRows : 1];
  // The weights that do not fit into registers.
  static constexpr int kProducts = P::kUnits / Layout<Number>::kProduct;
  using Weights = gpu::Weights<Number, typename P::Tiers, P::kThreads, kProducts, 1, P::kWarps>;
  Words weights[Weights::kSharedWords > 0 ? Weights::kSharedWords : 1];
};

// The recurrence in one block: its units, for the rows of its cluster.
template <class P>
class ForwardBlock {
  using Number = typename P::Number;
  using L = Layout<Number>;
  static constexpr int kProducts = ForwardShared<P>::kProducts;
  static constexpr int kParts = ForwardShared<P>::kParts;
  // Whether the sent panel differs from plain h, because h is split or rounded.
  static constexpr bool kOwnState = !P::kDropped && (L::kSplit == 2 || L::kRounds);
  static constexpr bool kOwnOutput = P::kMasked;
  // The bytes that a block sends in a step.
  static constexpr int kSent =
      P::kBlockPanels * kParts * P::kRows * kPanelUnits * static_cast<int>(sizeof(Number));
  static_assert(P::kTurns == 1);
  static_assert(!P::kWide || (!P::kDropped && L::kSplit == 1 && P::kWarps % 4 == 0));

 public:
  CELLERATE_DEVICE explicit ForwardBlock(const ForwardArguments<Number>& in)
      : in_(in),
        shared_(*reinterpret_cast<ForwardShared<P>*>(shared_memory())),
        block_unit_(here_.warp * 4 + here_.lane / 8),
        unit_(here_.first_unit + block_unit_),
        there_(unit_ < in.units),
        first_cell_(at(0, 0) * in.units + unit_),
        tile_cells_(8l * in.steps * in.units) {}

  CELLERATE_DEVICE void run() {
    load_weights();
    begin();
    read_ids(0);
    read_ahead(0);
    for (int step = 0; step < in_.steps; ++step) {
      take(step);
    }
    finish();
    // No block may end while another may still send to it or read from it.
    sync_cluster();
  }

 private:
  // Computes a step of all rows.
  CELLERATE_DEVICE void take(int step) {
    const int now = step & 1, next = now ^ 1;
    Barrier &arrived = shared_.arrived[now], &arrives = shared_.arrived[next];
    if (step > 0) wait_for(arrived, ((step - 1) >> 1) & 1);
    const bool last = step + 1 == in_.steps;
    if (here_.thread == 0 && !last) expect_bytes(arrives, P::kBlocks * kSent);
    float sums[P::kTiles][4] = {};
    multiply(now, sums);
    if constexpr (P::kDropped) stage(sums);
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      advance(next, tile, gates_of(sums[tile], tile));
    }
    // The fence before copies waits for all of this thread's writes to memory.
    if constexpr (P::kWide && !P::kThroughMemory) order_before_copies();
    sync_block();
    if (!last) {
      Number *to = shared_.h[next].of(here_.rank * P::kBlockPanels), *from = shared_.sent[next].of(0);
      if constexpr (P::kThroughMemory) {
        // Steps alternate between two places, because a late block may still receive the h of the step before.
        const long place = (here_.cluster * 2l + next) * P::kBlocks + here_.rank;
        Number* memory = in_.exchanged + place * (kSent / static_cast<int>(sizeof(Number)));
        send_through_memory<P, kSent>(here_, to, from, memory, arrives);
      } else if constexpr (P::kWide) {
        for_each_block(here_, [&](int block) { copy_to_block(block, to, from, kSent, arrives); });
      } else {
        send_to_blocks<P, kSent>(here_, to, from, arrives);
      }
    }
    // Memory gets other work only after that.
    if (!last) read_ahead(step + 1);
    keep(step);
    write(step, next);
  }

  // The row that this thread computes in each tile.
  CELLERATE_DEVICE int row_in_tile() const { return 2 * (here_.lane & 3) + ((here_.lane >> 2) & 1); }
  CELLERATE_DEVICE int row(int tile) const { return tile * 8 + row_in_tile(); }
  CELLERATE_DEVICE long at(int tile, int step) const {
    return static_cast<long>(here_.first_row + row(tile)) * in_.steps + step;
  }
  // The place of this thread's unit in (B, T, H).
  CELLERATE_DEVICE long cell(int tile, int step) const {
    return first_cell_ + static_cast<long>(step) * in_.units + tile * tile_cells_;
  }

  // The 16 rows of a product are all gates of four units, so that two lanes together have the gates of a unit. With a
  // mask for each gate, they are one gate of 16 units, because they are multiplied with h under that gate's mask.
  CELLERATE_DEVICE void load_weights() {
    const Words* of_block = in_.weights + here_.rank * kProducts * P::kThreads;
    weights_.load(of_block, here_.warp, shared_.weights);
  }

  // Fills h with the initial states of all units, and loads the states of this thread.
  CELLERATE_DEVICE void begin() {
    begin_h();
    // Wide products read shared memory like copies, so they need the same fence.
    if constexpr (P::kWide) order_before_copies();
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      const int b = here_.first_row + row(tile);
      inside_[tile] = there_ && b < in_.batch;
      const long n = static_cast<long>(b) * in_.units + unit_;
      c_[tile] = inside_[tile] && in_.c0 != nullptr ? in_.c0[n] : 0.0f;
      h_[tile] = inside_[tile] && in_.h0 != nullptr ? widen(in_.h0[n]) : 0.0f;
      output_[tile] = 0.0f;
    }
    make_barriers(shared_.arrived);
  }
  CELLERATE_DEVICE void begin_h() {
    constexpr int kNumbers = P::kRows * kPanelUnits;
    for (int n = here_.thread; n < P::kPanels * kNumbers; n += P::kThreads) {
      const int panel = n / kNumbers, r = n % kNumbers / kPanelUnits, u = n % kPanelUnits;
      const int b = here_.first_row + r, unit = panel * kPanelUnits + u;
      const bool there = in_.h0 != nullptr && b < in_.batch && unit < in_.units;
      const float h = there ? widen(in_.h0[static_cast<long>(b) * in_.units + unit]) : 0.0f;
      store_h(h, shared_.h[0].of(panel) + in_panel<Number>(r, u));
      if constexpr (P::kDropped) {
        for (int gate = 0; gate < 4; ++gate) {
          const long from = (static_cast<long>(gate) * in_.batch + b) * in_.units + unit;
          const float scale = b < in_.batch && unit < in_.units ? in_.recurrent_dropout[from] : 0.0f;
          narrow(scale, dropout(gate, panel)[in_panel<Number>(r, u)]);
        }
      }
    }
  }

  CELLERATE_DEVICE static void store_h(float h, Number* to) {
    if constexpr (P::kDropped) {
      narrow(h, *to);
    } else {
      store_split(h, to, P::kRows * kPanelUnits);
    }
  }
  // The masks of a gate for all rows and the units of a panel.
  CELLERATE_DEVICE Number* dropout(int gate, int panel) {
    return shared_.dropout + (gate * P::kPanels + panel) * P::kRows * kPanelUnits;
  }

  // Starts to load the inputs of a step from memory, one step ahead. Nothing here may wait for memory, not even for an
  // id, which was loaded a step before: at such a wait, the compiler waits for the inputs of the previous tiles, too.
  CELLERATE_DEVICE void read_ahead(int step) {
    weights_.read_ahead();
    if (in_.ids == nullptr) {
      each_inside([&](int tile) { projected_[tile].read(in_.projected + 4 * cell(tile, step)); });
    } else {
      each_inside([&](int tile) {
        // The caller checks ids; if one is wrong all the same, it must not read beyond the table.
        const int most = in_.vocabulary - 1, id = ids_[tile];
        const long from = id < 0 ? 0 : id < most ? id : most;
        projected_[tile].read(in_.projected + (from * in_.units + unit_) * 4);
      });
      read_ids(step + 1);
    }
    if constexpr (P::kMasked) {
      each_inside([&](int tile) { mask_[tile].read(in_.mask + at(tile, step)); });
    }
  }
  CELLERATE_DEVICE void read_ids(int step) {
    if (in_.ids == nullptr || step >= in_.steps) return;
    each_inside([&](int tile) { ids_[tile] = in_.ids[at(tile, step)]; });
  }
  // Calls `work` for each tile in which this thread's row is in the batch and its unit in the layer.
  template <class Work>
  CELLERATE_DEVICE void each_inside(const Work& work) const {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      if (inside_[tile]) work(tile);
    }
  }

  // weights · h.
  CELLERATE_DEVICE void multiply(int now, float (&sums)[P::kTiles][4]) {
    if constexpr (P::kWide) {
      begin_wide_products(sums);
      CELLERATE_UNROLL
      for (int product = 0; product < kProducts; ++product) {
        // Panels are contiguous, too.
        const int unit = product * L::kProduct, panel = unit / kPanelUnits;
        multiply_add_wide(sums, weights_.in_registers(product, 0).of, shared_.h[now].of(0),
                          panel * P::kRows * kPanelUnits + unit % kPanelUnits);
      }
      finish_wide_products(sums);
    } else {
      multiply_by_warps(now, sums);
    }
  }
  CELLERATE_DEVICE void multiply_by_warps(int now, float (&sums)[P::kTiles][4]) {
    // Even and odd products have separate sums, so that none waits for the one before. Split numbers do not need
    // that. With many tiles and warps, other warps hide the wait, and the registers are worth more.
    constexpr bool kAlternates = L::kSplit == 1 && P::kTiles * P::kWarps < 32;
    float other[P::kTiles][4] = {};
    // With few tiles, and no weights being loaded, there are enough registers to load the next pair's h meanwhile.
    constexpr int kPairs = kProducts / 2;
    constexpr int kAhead = ForwardShared<P>::Weights::kAllInRegisters && P::kTiles <= 2;
    unsigned parts[2][L::kSplit][P::kTiles][4];
    if constexpr (kAhead > 0) load_h(now, 0, parts[0]);
    CELLERATE_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      const int later = pair + kAhead;
      if (later < kPairs) load_h(now, later, parts[later % 2]);
      weights_.multiply(2 * pair, 0, parts[pair % 2], sums);
      weights_.multiply(2 * pair + 1, 0, parts[pair % 2], kAlternates ? other : sums);
    }
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) sums[tile][part] += other[tile][part];
    }
  }

  // Loads the h of two products, under the mask of the warp's gate if there is one.
  CELLERATE_DEVICE void load_h(int now, int pair, unsigned (&parts)[L::kSplit][P::kTiles][4]) {
    constexpr int kPairUnits = 2 * L::kProduct;
    const int panel = pair * kPairUnits / kPanelUnits, first = pair * kPairUnits % kPanelUnits;
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      const int from = in_panel<Number>(tile * 8 + here_.lane % 8, first + here_.lane / 8 * L::kChunk);
      CELLERATE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        load_matrices(parts[part][tile], shared_.h[now].of(panel, part) + from);
      }
      if constexpr (P::kDropped) {
        unsigned scales[4];
        load_matrices(scales, dropout(here_.warp % 4, panel) + from);
        CELLERATE_UNROLL
        for (int n = 0; n < 4; ++n) parts[0][tile][n] = multiply_each(Number{}, parts[0][tile][n], scales[n]);
        if constexpr (L::kSplit == 2) {
          CELLERATE_UNROLL
          for (int n = 0; n < 4; ++n) split(parts[0][tile][n], parts[1][tile][n]);
        }
      }
    }
  }

  // With a mask for each gate, four warps have the gates of a unit; this passes their sums through shared memory.
  CELLERATE_DEVICE void stage(const float (&sums)[P::kTiles][4]) {
    const int gate = here_.warp % 4;
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        const int unit = here_.warp / 4 * 16 + here_.lane / 4 + (part >> 1) * 8;
        const int r = tile * 8 + 2 * (here_.lane % 4) + (part & 1);
        shared_.sums[(gate * P::kBlockUnits + unit) * P::kRows + r] = sums[tile][part];
      }
    }
    sync_block();
  }

  CELLERATE_DEVICE UnitGates gates_of(const float (&mine)[4], int tile) {
    if constexpr (P::kDropped) {
      const float* staged = shared_.sums + block_unit_ * P::kRows + row(tile);
      constexpr int kGate = P::kBlockUnits * P::kRows;
      return {{staged[0], staged[kGate], staged[2 * kGate], staged[3 * kGate]}};
    }
    return gates_of_unit(mine, here_.lane);
  }

  // Computes a step of this thread's unit in one row, and stores the results where they are sent and written from.
  //   tile: the row's tile.
  CELLERATE_DEVICE void advance(int next, int tile, UnitGates z) {
    constexpr Activation kGate = P::kRecurrentActivation, kValue = P::kActivation;
    Number projected[4];
    projected_[tile].take(projected);
    CELLERATE_UNROLL
    for (int gate = 0; gate < 4; ++gate) z.of[gate] += widen(projected[gate]);
    Gate i, f, g, o;
    all_gates<kGate, kValue, Number>(z, i, f, g, o);
    const float c = f.value * c_[tile] + i.value * g.value;
    const float h = o.value * activate<kValue, Number>(c);
    bool live = true;
    if constexpr (P::kMasked) {
      unsigned char mask[1];
      mask_[tile].take(mask);
      live = mask[0] != 0;
    }
    if (live) {
      c_[tile] = c;
      // Units beyond H stay zero, whatever the activation of zero is: weights of zero would not hide an infinity.
      h_[tile] = inside_[tile] ? h : 0.0f;
    }
    const int panel = block_unit_ / kPanelUnits;
    const int place = in_panel<Number>(row(tile), block_unit_ % kPanelUnits);
    store_h(h_[tile], shared_.sent[next].of(panel) + place);
    if constexpr (kOwnState) narrow(h_[tile], shared_.state[next].of(panel)[place]);
    if constexpr (P::kMasked) {
      if (live || in_.masked_output == MaskedOutput::kPreviousState) {
        output_[tile] = h_[tile];
      } else if (in_.masked_output == MaskedOutput::kZero) {
        output_[tile] = 0.0f;
      }
      narrow(output_[tile], shared_.output[next].of(panel)[place]);
    }
    narrow(i.kept, gates_[tile].of[0]);
    narrow(f.kept, gates_[tile].of[1]);
    narrow(g.kept, gates_[tile].of[2]);
    narrow(o.kept, gates_[tile].of[3]);
  }

  // Writes the numbers of a step that backward needs.
  CELLERATE_DEVICE void keep(int step) {
    if (in_.gates == nullptr) return;
    each_inside([&](int tile) {
      const long n = cell(tile, step);
      *reinterpret_cast<Gates<Number>*>(in_.gates + 4 * n) = gates_[tile];
      in_.cells[n] = c_[tile];
    });
  }

  // Writes the outputs and states of a step, 16 bytes at once.
  CELLERATE_DEVICE void write(int step, int next) {
    CELLERATE_UNROLL
    for (int panel = 0; panel < P::kBlockPanels; ++panel) {
      const Number* state = kOwnState ? shared_.state[next].of(panel) : shared_.sent[next].of(panel);
      const Number* output = kOwnOutput ? shared_.output[next].of(panel) : state;
      const int first = here_.first_unit + panel * kPanelUnits;
      if (in_.outputs != nullptr) write_panel(in_.outputs, step, first, output);
      if (in_.states != nullptr) write_panel(in_.states, step, first, state);
    }
  }
  CELLERATE_DEVICE void write_panel(Number* to, int step, int first_unit, const Number* panel) const {
    for (int n = here_.thread; n < P::kRows * L::kRowChunks; n += P::kThreads) {
      const int r = n / L::kRowChunks, unit = n % L::kRowChunks * L::kChunk;
      const int b = here_.first_row + r;
      if (b >= in_.batch || first_unit + unit >= in_.units) continue;
      Number* there = to + (static_cast<long>(b) * in_.steps + step) * in_.units + first_unit + unit;
      const Number* from = panel + in_panel<Number>(r, unit);
      if (in_.units % L::kChunk == 0) {
        struct alignas(16) Chunk {
          Number of[L::kChunk];
        };
        *reinterpret_cast<Chunk*>(there) = *reinterpret_cast<const Chunk*>(from);
      } else {
        for (int u = 0; u < L::kChunk && first_unit + unit + u < in_.units; ++u) there[u] = from[u];
      }
    }
  }

  CELLERATE_DEVICE void finish() {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      if (!inside_[tile]) continue;
      const long n = static_cast<long>(here_.first_row + row(tile)) * in_.units + unit_;
      narrow(h_[tile], in_.h_T[n]);
      in_.c_T[n] = c_[tile];
      if (in_.last_output != nullptr) narrow(P::kMasked ? output_[tile] : h_[tile], in_.last_output[n]);
    }
  }

  const ForwardArguments<Number>& in_;
  ForwardShared<P>& shared_;
  const Place<P> here_;
  const int block_unit_, unit_;  // the unit that this thread computes, in its block and in the layer
  const bool there_;             // whether the layer has that unit
  // Its place in (B, T, H) at the first step of its row in the first tile, and the distance from tile to tile.
  const long first_cell_, tile_cells_;

  typename ForwardShared<P>::Weights weights_;
  Awaited<Number, 4> projected_[P::kTiles];
  Awaited<unsigned char, 1> mask_[P::kTiles];
  int ids_[P::kTiles];  // of the step after the one loaded ahead
  Gates<Number> gates_[P::kTiles];
  float c_[P::kTiles], h_[P::kTiles], output_[P::kTiles];
  bool inside_[P::kTiles];
};

template <class P>
CELLERATE_DEVICE void lstm_forward(const ForwardArguments<typename P::Number>& in) {
  ForwardBlock<P>(in).run();
}

}  // namespace cellerate::gpu
