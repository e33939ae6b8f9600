// The forward recurrence of one LSTM layer for many rows, in 16-bit numbers; see `lstm_tiles.cuh`.
//
// A chunk has the h of a block's units.
#pragma once

#include "lstm_tiles.cuh"

namespace cellerate::gpu {

template <class P>
struct TiledForwardShared {
  using Number = typename P::Number;
  Chunks<P> chunks;
  // The h of this block's units, and their outputs if these differ.
  alignas(16) Number state[P::kChunk];
  Number output[P::kMasked ? P::kChunk : 8];
  Barrier state_computed;  // phase 0: the state before the first step
  Barrier state_read;      // by all threads that send or write it
};

// The recurrence in one block: its units, for the rows of its cluster.
template <class P>
class TiledForwardBlock {
  using Number = typename P::Number;
  static constexpr int kTiles = P::kTiles;

 public:
  CELLERATE_DEVICE explicit TiledForwardBlock(const ForwardArguments<Number>& in)
      : in_(in),
        shared_(*reinterpret_cast<TiledForwardShared<P>*>(shared_memory())),
        traffic_(shared_.chunks, in.steps) {}

  CELLERATE_DEVICE void run() {
    if (here_.thread == 0) {
      traffic_.make_barriers();
      init_barrier(shared_.state_computed, P::kWorkers);
      init_barrier(shared_.state_read, 1 + P::kHelpers);
      publish_barriers();
    }
    divide<P>(
        here_, [&] { compute(); }, [&](int part) { write(part); }, [&] { send(); },
        [&] { traffic_.bring_weights(in_.weights); });
  }

 private:
  CELLERATE_DEVICE long at(int row, int step) const {
    return static_cast<long>(here_.first_row + row) * in_.steps + step;
  }

  // The eight warps that compute. Every four of them have 32 units, and a thread has one unit in two of every eight
  // rows. One of their two products of 64 rows of weights has the gates i and f, the other c and o.
  struct Worker {
    const int unit_of_block, row_of_tile;  // the first of the two rows
    const bool there;                      // whether the layer has the unit
    float c[kTiles][2];
    unsigned live[(2 * kTiles + 31) / 32];  // a bit for each row
  };

  CELLERATE_DEVICE void compute() {
    const int unit_of_block = here_.warp * 8 + here_.lane / 4;
    Worker mine{unit_of_block, 2 * (here_.lane % 4), here_.first_unit + unit_of_block < in_.units, {}, {}};
    begin(mine);
    traffic_.begin();
    for (int step = 0; step < in_.steps; ++step) {
      float sums[2][kTiles][4];
      take_projected(mine, step, sums);
      multiply(step, sums);
      advance(mine, step, sums);
    }
    finish(mine);
  }

  // Stores the initial states where a step expects the previous states.
  CELLERATE_DEVICE void begin(Worker& mine) {
    each_cell(mine, 0, [&](Cell cell) {
      const long n =
          static_cast<long>(here_.first_row + cell.row) * in_.units + here_.first_unit + mine.unit_of_block;
      mine.c[cell.tile][cell.which] = cell.inside && in_.c0 != nullptr ? in_.c0[n] : 0.0f;
      const int place = in_tile(cell.row, mine.unit_of_block);
      narrow(cell.inside && in_.h0 != nullptr ? widen(in_.h0[n]) : 0.0f, shared_.state[place]);
      if constexpr (P::kMasked) narrow(0.0f, shared_.output[place]);
    });
    tell_state();
  }
  CELLERATE_DEVICE void tell_state() {
    order_before_copies();
    sync_warp();
    if (here_.lane == 0) arrive(shared_.state_computed);
  }

  // A row of a thread's unit.
  struct Cell {
    int tile, which, row;  // the tile of 8 rows, the index of the thread's row there, the row of the cluster
    bool inside;           // whether the layer has the unit and the batch the row
    long at;               // the place of the row's step in (B, T)
  };

  // Calls `work` for each row of this thread's unit.
  template <class Work>
  CELLERATE_DEVICE void each_cell(const Worker& mine, int step, const Work& work) const {
    // Keeps the compiler from computing values for every row before the steps, which would occupy registers.
    unsigned steps = in_.steps, batch = in_.batch;
    keep_in_loop(steps);
    keep_in_loop(batch);
    const int rows_left = static_cast<int>(batch) - here_.first_row - mine.row_of_tile;
    const long first = static_cast<long>(here_.first_row + mine.row_of_tile) * steps + step;
    CELLERATE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CELLERATE_UNROLL
      for (int which = 0; which < 2; ++which) {
        const int further = 8 * tile + which;
        const bool inside = mine.there && further < rows_left;
        work(Cell{tile, which, mine.row_of_tile + further, inside,
                  first + static_cast<long>(further) * steps});
      }
    }
  }

  // Begins the sums of a step with its projected inputs, while h is on its way.
  CELLERATE_DEVICE void take_projected(Worker& mine, int step, float (&sums)[2][kTiles][4]) const {
    const int unit = here_.first_unit + mine.unit_of_block;
    // Reads all ids before the first is needed.
    int id[kTiles][2];
    each_cell(mine, step, [&](Cell cell) {
      id[cell.tile][cell.which] = in_.ids != nullptr && cell.inside ? in_.ids[cell.at] : 0;
    });
    Gates<Number> projected[kTiles][2];
    each_cell(mine, step, [&](Cell cell) {
      long from = cell.at;
      // The caller checks ids; if one is wrong all the same, it must not read beyond the table.
      const int most = in_.vocabulary - 1, given = id[cell.tile][cell.which];
      if (in_.ids != nullptr) from = given < 0 ? 0 : given < most ? given : most;
      Gates<Number>& gates = projected[cell.tile][cell.which];
      gates = {};
      if (cell.inside) gates = reinterpret_cast<const Gates<Number>*>(in_.projected)[from * in_.units + unit];
    });
    if constexpr (P::kMasked) {
      unsigned char mask[kTiles][2];
      each_cell(mine, step,
                [&](Cell cell) { mask[cell.tile][cell.which] = cell.inside ? in_.mask[cell.at] : 0; });
      for (unsigned& bits : mine.live) bits = 0;
      each_cell(mine, step, [&](Cell cell) {
        const int bit = 2 * cell.tile + cell.which;
        mine.live[bit / 32] |= static_cast<unsigned>(mask[cell.tile][cell.which] != 0) << bit % 32;
      });
    }
    CELLERATE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CELLERATE_UNROLL
      for (int which = 0; which < 2; ++which) {
        const Gates<Number>& gates = projected[tile][which];
        sums[0][tile][which] = widen(gates.of[0]);
        sums[0][tile][2 + which] = widen(gates.of[1]);
        sums[1][tile][which] = widen(gates.of[2]);
        sums[1][tile][2 + which] = widen(gates.of[3]);
      }
    }
  }

  // Adds weights · h.
  CELLERATE_DEVICE void multiply(int step, float (&sums)[2][kTiles][4]) const {
    for (auto& half : sums) keep_in_order(half);
    traffic_.template multiply<1>(step, 0, [&](const Number* weights, const Number* h) {
      weights += here_.warp / 4 * P::kWeights / 2;
      CELLERATE_UNROLL
      for (int first = 0; first < kTileUnits; first += 16) {
        CELLERATE_UNROLL
        for (int half = 0; half < 2; ++half) {
          multiply_add_tile(sums[half], weights + in_tile(64 * half, first), h + in_tile(0, first));
        }
      }
    });
    for (auto& half : sums) keep_in_order(half);
  }

  // Computes a step of this thread's unit in all its rows from the sums.
  CELLERATE_DEVICE void advance(Worker& mine, int step, const float (&sums)[2][kTiles][4]) {
    constexpr Activation kGate = P::kRecurrentActivation, kValue = P::kActivation;
    wait_for(shared_.state_read, step & 1);
    each_cell(mine, step, [&](Cell cell) {
      const float *first = sums[0][cell.tile] + cell.which, *second = sums[1][cell.tile] + cell.which;
      Gate i, f, g, o;
      all_gates<kGate, kValue, Number>({{first[0], first[2], second[0], second[2]}}, i, f, g, o);
      float& c = mine.c[cell.tile][cell.which];
      const float new_c = f.value * c + i.value * g.value;
      const float h = o.value * activate<kValue, Number>(new_c);
      const int place = in_tile(cell.row, mine.unit_of_block);
      Number& state = shared_.state[place];
      bool live = true;
      if constexpr (P::kMasked) {
        const int bit = 2 * cell.tile + cell.which;
        live = mine.live[bit / 32] >> bit % 32 & 1;
      }
      if (live) {
        c = new_c;
        // Units beyond H stay zero, whatever the activation of zero is: weights of zero would not hide an infinity.
        narrow(cell.inside ? h : 0.0f, state);
      }
      if constexpr (P::kMasked) {
        if (live || in_.masked_output == MaskedOutput::kPreviousState) {
          shared_.output[place] = state;
        } else if (in_.masked_output == MaskedOutput::kZero) {
          narrow(0.0f, shared_.output[place]);
        }
      }
      if (in_.gates != nullptr && cell.inside) {
        const long n = cell.at * in_.units + here_.first_unit + mine.unit_of_block;
        Gates<Number> kept;
        narrow(i.kept, kept.of[0]);
        narrow(f.kept, kept.of[1]);
        narrow(g.kept, kept.of[2]);
        narrow(o.kept, kept.of[3]);
        reinterpret_cast<Gates<Number>*>(in_.gates)[n] = kept;
        in_.cells[n] = c;
      }
    });
    tell_state();
  }

  CELLERATE_DEVICE void finish(const Worker& mine) const {
    each_cell(mine, 0, [&](Cell cell) {
      if (!cell.inside) return;
      const long n =
          static_cast<long>(here_.first_row + cell.row) * in_.units + here_.first_unit + mine.unit_of_block;
      const int place = in_tile(cell.row, mine.unit_of_block);
      in_.h_T[n] = shared_.state[place];
      in_.c_T[n] = mine.c[cell.tile][cell.which];
      if (in_.last_output != nullptr) in_.last_output[n] = outputs()[place];
    });
  }
  CELLERATE_DEVICE const Number* outputs() const { return P::kMasked ? shared_.output : shared_.state; }

  // Sends the h of this block's units to all blocks.
  CELLERATE_DEVICE void send() const {
    for (int step = 0; step < in_.steps; ++step) {
      // Steps alternate between two places, because a late block may still receive the h of the step before.
      const long place = (here_.cluster * 2l + step % 2) * P::kBlocks + here_.rank;
      Number* exchanged = in_.exchanged + place * P::kChunk;
      wait_for(shared_.state_computed, step & 1);
      copy_to_memory(exchanged, shared_.state, P::kChunkBytes);
      arrive(shared_.state_read);
      traffic_.send(step, 0, exchanged);
    }
  }

  // Writes the outputs and states of every step, 16 bytes at once.
  CELLERATE_DEVICE void write(int part) const {
    prefetch(part, 1);
    // The initial states are not outputs.
    wait_for(shared_.state_computed, 0);
    if (here_.lane == 0) arrive(shared_.state_read);
    for (int step = 0; step < in_.steps; ++step) {
      wait_for(shared_.state_computed, (step + 1) & 1);
      if (in_.outputs != nullptr) write_chunk(part, in_.outputs, step, outputs());
      if (in_.states != nullptr) write_chunk(part, in_.states, step, shared_.state);
      sync_warp();
      if (here_.lane == 0) arrive(shared_.state_read);
      prefetch(part, step + 2);
    }
  }
  // Prefetches the workers' inputs into the second-level cache.
  CELLERATE_DEVICE void prefetch(int part, int step) const {
    if (in_.ids != nullptr || step >= in_.steps) return;
    for (int row = part * 32 + here_.lane; row < P::kRows; row += P::kHelpers * 32) {
      if (here_.first_row + row < in_.batch)
        prefetch_row(in_.projected, 4, at(row, step), in_.units, here_.first_unit);
    }
  }
  CELLERATE_DEVICE void write_chunk(int part, Number* to, int step, const Number* chunk) const {
    struct alignas(16) Eight {
      Number of[8];
    };
    for (int n = part * 32 + here_.lane; n < P::kChunk / 8; n += P::kHelpers * 32) {
      const int row = n / 64 * 8 + n % 8, unit = here_.first_unit + n / 8 % 8 * 8;
      if (here_.first_row + row >= in_.batch || unit >= in_.units) continue;
      Number* there = to + at(row, step) * in_.units + unit;
      const Number* from = chunk + 8 * n;
      if (in_.units % 8 == 0) {
        *reinterpret_cast<Eight*>(there) = *reinterpret_cast<const Eight*>(from);
      } else {
        for (int u = 0; u < 8 && unit + u < in_.units; ++u) there[u] = from[u];
      }
    }
  }

  const ForwardArguments<Number>& in_;
  TiledForwardShared<P>& shared_;
  const Traffic<P, P::kWorkers> traffic_;
  const TiledPlace<P> here_;
};

template <class P>
CELLERATE_DEVICE void lstm_tiled_forward(const ForwardArguments<typename P::Number>& in) {
  TiledForwardBlock<P>(in).run();
}

}  // namespace cellerate::gpu
