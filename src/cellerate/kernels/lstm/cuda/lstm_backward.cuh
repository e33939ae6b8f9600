// The backward recurrence of one LSTM layer: from the gradients of the outputs to the gradients of the pre-activations.
//
// From these, the framework computes the gradients of weights and inputs, as products over all steps.
//
// As in the forward recurrence, a cluster owns some rows of the batch, and each of its blocks some units. In every
// step, a block turns the gradients of h of its units into the gradients of their gates. Multiplied by its weights,
// these are its part of the gradient of the previous h of all units; each block gets the parts for its own units.
#pragma once

#include "arguments.cuh"
#include "lstm.cuh"

namespace cellerate::gpu {

template <class P>
struct BackwardShared {
  using Number = typename P::Number;
  static constexpr int kBlockTiles = P::kUnits / 16;                            // tiles of 16 units
  static constexpr int kUnitTiles = (kBlockTiles + P::kWarps - 1) / P::kWarps;  // tiles per warp
  static constexpr int kOwnTiles = P::kBlockUnits / 16;                         // tiles of the block's units
  // A tile has the sums of 16 units and 8 rows, ordered by `in_sums`, as narrow as the gradients of the gates that
  // they become.
  struct alignas(4 * sizeof(Number)) Sums {
    Number of[4];
  };
  using Tile = Sums[32];
  // Tiles of all rows, those of each turn together, because they are sent together.
  template <int unit_tiles>
  struct Tiles {
    Tile tiles[unit_tiles * P::kTiles];

    // The tiles of the rows of a turn.
    template <class Turn>
    CELLERATE_DEVICE Tile* of(Turn, int unit_tile) {
      return tiles + Turn::kFirstTile * unit_tiles + unit_tile * Turn::kTiles;
    }
  };

  // The parts of the gradient of h that the blocks of the cluster have sent, for this step and for the next.
  alignas(128) Tiles<P::kBlocks * kOwnTiles> come[2];
  // The gradients of the gates of this block's units in the form that the matrix units take, (rows, 4, kBlockUnits),
  // ordered by `in_gates`: of this step and of the next, as some warps may still multiply when others go on.
  alignas(128) Number d_gates[2][Layout<Number>::kSplit][P::kRows * 4 * P::kBlockUnits];
  // With a mask for each gate: the masks of all units, (4, kUnits, rows). For many units there is no room for floats.
  static constexpr bool kMasksShared = P::kDropped && (sizeof(Number) < 4 || P::kBlockUnits == 32);
  Number dropout[kMasksShared ? 4 * P::kUnits * P::kRows : 1];
  // Barriers that complete when the parts have arrived: for each turn, one for even steps and one for odd steps.
  Barrier arrived[2 * P::kTurns];
  // The weights that do not fit into registers.
  static constexpr int kProducts = 4 * P::kBlockUnits / Layout<Number>::kProduct;  // over a block's gates
  using Weights = gpu::Weights<Number, typename P::Tiers, P::kThreads, kProducts, kUnitTiles, kBlockTiles>;
  Words weights[Weights::kSharedWords > 0 ? Weights::kSharedWords : 1];
};

template <class P>
class BackwardBlock {
  using Number = typename P::Number;
  using L = Layout<Number>;
  static constexpr int kBlockTiles = BackwardShared<P>::kBlockTiles;
  static constexpr int kUnitTiles = BackwardShared<P>::kUnitTiles;
  static constexpr int kOwnTiles = BackwardShared<P>::kOwnTiles;
  static constexpr int kProducts = BackwardShared<P>::kProducts;
  static constexpr bool kMasksShared = BackwardShared<P>::kMasksShared;
  static constexpr int kGateNumbers = P::kRows * 4 * P::kBlockUnits;
  static_assert(P::kTurns == 1 || BackwardShared<P>::Weights::kReusable);
  static_assert(!P::kWide);

 public:
  CELLERATE_DEVICE explicit BackwardBlock(const BackwardArguments<Number>& in)
      : in_(in),
        shared_(*reinterpret_cast<BackwardShared<P>*>(shared_memory())),
        block_unit_(here_.warp / 4 * 16 + here_.lane % 16),
        unit_(here_.first_unit + block_unit_),
        there_(unit_ < in.units) {}

  CELLERATE_DEVICE void run() {
    load_weights();
    begin();
    each_turn<P>([&](auto turn) { read_ahead(turn, in_.steps - 1); });
    weights_.read_ahead();
    for (int done = 0; done < in_.steps; ++done) {
      each_turn<P>([&](auto turn) { take(turn, done); });
    }
    each_turn<P>([&](auto turn) { collect(turn, in_.steps); });
    finish();
    // No block may end before its copies have arrived.
    sync_cluster();
  }

 private:
  // Goes back through a step of the rows of a turn; `done` steps were done before.
  template <class Turn>
  CELLERATE_DEVICE void take(Turn turn, int done) {
    const int step = in_.steps - 1 - done, next = ~done & 1;
    Barrier& arrives = shared_.arrived[2 * Turn::kIndex + next];
    constexpr int kSent =
        kOwnTiles * Turn::kTiles * static_cast<int>(sizeof(typename BackwardShared<P>::Tile));
    if (done > 0) collect(turn, done);
    if (here_.thread == 0) expect_bytes(arrives, P::kBlocks * kSent);
    CELLERATE_UNROLL
    for (int tile = Turn::kFirstTile; tile < Turn::kFirstTile + Turn::kTiles; ++tile) {
      retreat(step, next, tile);
    }
    if (step > 0) read_ahead(turn, step - 1);
    sync_block();
    multiply(turn, next, arrives);
    if (step > 0) weights_.read_ahead();
  }

  // A warp has 16 units in two rows of each tile.
  CELLERATE_DEVICE int row_in_tile() const { return here_.warp % 4 * 2 + here_.lane / 16; }
  CELLERATE_DEVICE int row(int tile) const { return tile * 8 + row_in_tile(); }
  // The index of a lane's four sums of a product: for each of the units `group` and `group` + 8, the rows 2 * quarter
  // and 2 * quarter + 1. In this order both writing and reading use all banks.
  CELLERATE_DEVICE static int in_sums(int group, int quarter) { return quarter * 8 + (group ^ 2 * quarter); }
  // The chunks of a row are swizzled by the row.
  CELLERATE_DEVICE static int in_gates(int row, int gate_unit) {
    return row * 4 * P::kBlockUnits + (gate_unit / L::kChunk ^ (row & 7)) * L::kChunk + gate_unit % L::kChunk;
  }
  CELLERATE_DEVICE long at(int tile) const {
    return static_cast<long>(here_.first_row + row(tile)) * in_.units + unit_;
  }
  CELLERATE_DEVICE long at(int tile, int step) const {
    return (static_cast<long>(here_.first_row + row(tile)) * in_.steps + step) * in_.units + unit_;
  }

  CELLERATE_DEVICE void load_weights() {
    const Words* of_block = in_.weights + here_.rank * kProducts * kBlockTiles * 32;
    weights_.load(of_block, unit_tile(0), shared_.weights);
  }
  // If the tiles cannot be divided evenly, two warps compute some of the tiles, and one of the two sends them.
  CELLERATE_DEVICE int unit_tile(int tile) const {
    const int first = here_.warp * kUnitTiles, last = kBlockTiles - kUnitTiles;
    return (first < last ? first : last) + tile;
  }
  CELLERATE_DEVICE bool sends(int block_tile) const { return block_tile / kUnitTiles == here_.warp; }

  CELLERATE_DEVICE void begin() {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      inside_[tile] = there_ && here_.first_row + row(tile) < in_.batch;
      const bool inside = inside_[tile];
      d_h_[tile] = inside && in_.d_h_T != nullptr ? widen(in_.d_h_T[at(tile)]) : 0.0f;
      d_c_[tile] = inside && in_.d_c_T != nullptr ? in_.d_c_T[at(tile)] : 0.0f;
      d_repeated_[tile] = inside && in_.d_last_output != nullptr ? widen(in_.d_last_output[at(tile)]) : 0.0f;
      c_[tile] = inside ? in_.cells[at(tile, in_.steps - 1)] : 0.0f;
      c_before_[tile] = 0.0f;
    }
    if constexpr (kMasksShared) {
      for (int n = here_.thread; n < 4 * P::kUnits * P::kRows; n += P::kThreads) {
        const int gate = n / (P::kUnits * P::kRows), unit = n / P::kRows % P::kUnits;
        narrow(dropout(gate, unit, n % P::kRows), shared_.dropout[n]);
      }
    }
    make_barriers(shared_.arrived);
  }
  CELLERATE_DEVICE float dropout(int gate, int unit, int r) const {
    const int b = here_.first_row + r;
    if (b >= in_.batch || unit >= in_.units) return 0.0f;
    return in_.recurrent_dropout[(static_cast<long>(gate) * in_.batch + b) * in_.units + unit];
  }

  // Starts to load the inputs of a step from memory, one step ahead.
  template <class Turn>
  CELLERATE_DEVICE void read_ahead(Turn, int step) {
    CELLERATE_UNROLL
    for (int tile = Turn::kFirstTile; tile < Turn::kFirstTile + Turn::kTiles; ++tile) {
      if (!inside_[tile]) continue;
      gates_[tile].read(in_.gates + 4 * at(tile, step));
      c_before_[tile] = step > 0            ? in_.cells[at(tile, step - 1)]
                        : in_.c0 != nullptr ? in_.c0[at(tile)]
                                            : 0.0f;
      if (in_.d_outputs != nullptr) d_output_[tile].read(in_.d_outputs + at(tile, step));
      if constexpr (P::kMasked) {
        mask_[tile].read(in_.mask + static_cast<long>(here_.first_row + row(tile)) * in_.steps + step);
      }
    }
  }

  // Adds up the parts that the blocks have sent for this block's units.
  template <class Turn>
  CELLERATE_DEVICE void collect(Turn turn, int done) {
    const int now = done & 1;
    wait_for(shared_.arrived[2 * Turn::kIndex + now], ((done - 1) >> 1) & 1);
    CELLERATE_UNROLL
    for (int tile = 0; tile < Turn::kTiles; ++tile) {
      float sum = 0.0f;
      CELLERATE_UNROLL
      for (int block = 0; block < P::kBlocks; ++block) {
        const auto& from = shared_.come[now].of(turn, block * kOwnTiles + block_unit_ / 16)[tile];
        sum += widen(
            from[in_sums(block_unit_ % 8, here_.warp % 4)].of[block_unit_ / 8 % 2 * 2 + here_.lane / 16]);
      }
      d_h_[Turn::kFirstTile + tile] += sum;
    }
  }

  // Goes back through a step of this thread's unit in one row: from the gradients of h and c after the step to the
  // gradients of its gates and of c before the step. If the step counts, the gradient of h before it starts at 0,
  // because the blocks send all of it.
  CELLERATE_DEVICE void retreat(int step, int next, int tile) {
    constexpr Activation kGate = P::kRecurrentActivation, kValue = P::kActivation;
    float d_z[4] = {};
    Number given[1];
    d_output_[tile].take(given);
    const float d_output = inside_[tile] ? widen(given[0]) + d_repeated_[tile] : 0.0f;
    d_repeated_[tile] = 0.0f;
    bool live = true;
    if constexpr (P::kMasked) {
      unsigned char mask[1];
      mask_[tile].take(mask);
      live = mask[0] != 0;
    }
    if (!inside_[tile]) {
      d_h_[tile] = 0.0f;
    } else if (live) {
      Number of_forward[4];
      gates_[tile].take(of_forward);
      go_back<kGate, kValue>(of_forward, c_[tile], c_before_[tile], d_h_[tile] + d_output, d_c_[tile], d_z);
      d_h_[tile] = 0.0f;
    } else if (in_.masked_output == MaskedOutput::kPreviousState) {
      d_h_[tile] += d_output;
    } else if (in_.masked_output == MaskedOutput::kPreviousOutput) {
      d_repeated_[tile] = d_output;
    }
    c_[tile] = c_before_[tile];
    Gates<Number> gates;
    CELLERATE_UNROLL
    for (int gate = 0; gate < 4; ++gate) {
      narrow(d_z[gate], gates.of[gate]);
      const int place = in_gates(row(tile), gate * P::kBlockUnits + block_unit_);
      store_split(d_z[gate], &shared_.d_gates[next][0][place], kGateNumbers);
    }
    if (inside_[tile]) *reinterpret_cast<Gates<Number>*>(in_.d_projected + 4 * at(tile, step)) = gates;
  }

  // This block's part of the gradient of the previous h of all units: weights · d_gates. It sends each block the part
  // for its units as soon as it has it.
  template <class Turn>
  CELLERATE_DEVICE void multiply(Turn turn, int next, Barrier& arrives) {
    const int group = here_.lane / 4, quarter = here_.lane % 4;
    float sums[kUnitTiles][Turn::kTiles][4] = {};
    CELLERATE_UNROLL
    for (int gate = 0; gate < 4; ++gate) {
      if constexpr (P::kDropped) {
        float of_gate[kUnitTiles][Turn::kTiles][4] = {};
        multiply_gate(turn, next, gate, of_gate);
        each_tile(turn, [&](int unit_tile, int tile) {
          CELLERATE_UNROLL
          for (int part = 0; part < 4; ++part) {
            const int unit = this->unit_tile(unit_tile) * 16 + (part >> 1) * 8 + group;
            const int r = Turn::kFirstRow + tile * 8 + quarter * 2 + (part & 1);
            const float scale = kMasksShared
                                    ? widen(shared_.dropout[(gate * P::kUnits + unit) * P::kRows + r])
                                    : dropout(gate, unit, r);
            sums[unit_tile][tile][part] += of_gate[unit_tile][tile][part] * scale;
          }
        });
      } else {
        multiply_gate(turn, next, gate, sums);
      }
    }
    each_tile(turn, [&](int unit_tile, int tile) {
      typename BackwardShared<P>::Sums narrowed;
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) narrow(sums[unit_tile][tile][part], narrowed.of[part]);
      unsigned words[sizeof(Number)];
      memcpy(words, &narrowed, sizeof words);
      const int block_tile = this->unit_tile(unit_tile), own_tile = block_tile % kOwnTiles;
      if (!sends(block_tile)) return;
      auto& to =
          shared_.come[next].of(turn, here_.rank * kOwnTiles + own_tile)[tile][in_sums(group, quarter)];
      store_to_block(block_tile / kOwnTiles, &to, words, arrives);
    });
  }
  template <class Turn, class Work>
  CELLERATE_DEVICE static void each_tile(Turn, const Work& work) {
    CELLERATE_UNROLL
    for (int unit_tile = 0; unit_tile < kUnitTiles; ++unit_tile) {
      CELLERATE_UNROLL
      for (int tile = 0; tile < Turn::kTiles; ++tile) work(unit_tile, tile);
    }
  }
  // The part that comes from one gate.
  template <class Turn>
  CELLERATE_DEVICE void multiply_gate(Turn, int next, int gate, float (&sums)[kUnitTiles][Turn::kTiles][4]) {
    constexpr int kPairs = kProducts / 4 / 2;
    CELLERATE_UNROLL
    for (int pair = gate * kPairs; pair < (gate + 1) * kPairs; ++pair) {
      unsigned parts[L::kSplit][Turn::kTiles][4];
      CELLERATE_UNROLL
      for (int split = 0; split < L::kSplit; ++split) {
        CELLERATE_UNROLL
        for (int tile = 0; tile < Turn::kTiles; ++tile) {
          const int from = in_gates(Turn::kFirstRow + tile * 8 + here_.lane % 8,
                                    pair * 2 * L::kProduct + here_.lane / 8 * L::kChunk);
          load_matrices(parts[split][tile], shared_.d_gates[next][split] + from);
        }
      }
      CELLERATE_UNROLL
      for (int product = 2 * pair; product < 2 * pair + 2; ++product) {
        CELLERATE_UNROLL
        for (int unit_tile = 0; unit_tile < kUnitTiles; ++unit_tile) {
          weights_.multiply(product, unit_tile, parts, sums[unit_tile]);
        }
      }
    }
  }
  CELLERATE_DEVICE void finish() {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      if (!inside_[tile]) continue;
      narrow(d_h_[tile], in_.d_h0[at(tile)]);
      in_.d_c0[at(tile)] = d_c_[tile];
    }
  }

  const BackwardArguments<Number>& in_;
  BackwardShared<P>& shared_;
  const Place<P> here_;
  const int block_unit_, unit_;  // the unit that this thread computes, in its block and in the layer
  const bool there_;             // whether the layer has that unit

  typename BackwardShared<P>::Weights weights_;
  Awaited<Number, 4> gates_[P::kTiles];
  Awaited<Number, 1> d_output_[P::kTiles];
  Awaited<unsigned char, 1> mask_[P::kTiles];
  float c_[P::kTiles], c_before_[P::kTiles];
  float d_h_[P::kTiles], d_c_[P::kTiles];
  float d_repeated_
      [P::kTiles];  // the gradient that masked steps, or the last output, pass back to the previous step's output
  bool inside_[P::kTiles];
};

template <class P>
CELLERATE_DEVICE void lstm_backward(const BackwardArguments<typename P::Number>& in) {
  BackwardBlock<P>(in).run();
}

}  // namespace cellerate::gpu
