// The backward recurrence of one LSTM layer for many rows, in 16-bit numbers; see `lstm_tiles.cuh`.
//
// A chunk has the gradients of one gate of a block's units. In every step a block receives the chunks of all units, and
// computes the gradient of the previous h of its own units as one sum; `lstm_backward.cuh` sends parts of sums instead.
#pragma once

#include "lstm_tiles.cuh"

namespace cellerate::gpu {

template <class P>
struct TiledBackwardShared {
  Chunks<P> chunks;
  // Four warps sum up the even chunks, and four the odd ones; they exchange half of their sums. Here lie, for each tile
  // of 8 rows, the exchanged sums of four warps, with a thread's four sums together.
  alignas(16) float sums[(P::kTiles + 1) / 2 * 2][4][32][4];
  Barrier sums_given;
  Barrier gates_computed;  // the gradients of this block's gates are in memory
};

// The recurrence in one block: its units, for the rows of its cluster.
template <class P>
class TiledBackwardBlock {
  using Number = typename P::Number;
  static constexpr int kTiles = P::kTiles;
  static constexpr int kOwnTiles = (kTiles + 1) / 2;  // of four warps; the other four may have one less
  // The tiles loaded from memory at once: as many as registers allow.
  static constexpr int kReadTiles = 3;
  static_assert(P::kBlockChunks == 4);

 public:
  CELLERATE_DEVICE explicit TiledBackwardBlock(const BackwardArguments<Number>& in)
      : in_(in),
        shared_(*reinterpret_cast<TiledBackwardShared<P>*>(shared_memory())),
        traffic_(shared_.chunks, in.steps) {}

  CELLERATE_DEVICE void run() {
    if (here_.thread == 0) {
      traffic_.make_barriers();
      init_barrier(shared_.sums_given, P::kWorkers);
      init_barrier(shared_.gates_computed, P::kWorkers + P::kHelpers);
      publish_barriers();
    }
    divide<P>(
        here_, [&] { compute(); }, [&](int part) { prefetch(part); }, [&] { send(); },
        [&] { traffic_.bring_weights(in_.weights); });
  }

 private:
  // The place of the gradients of a block's gates before they are sent. Steps alternate between two places, because a
  // late block may still receive the gradients of the step before.
  CELLERATE_DEVICE Number* exchanged(int done) const {
    const long place = (here_.cluster * 2l + done % 2) * P::kBlocks + here_.rank;
    return in_.exchanged + place * 4 * P::kChunk;
  }
  CELLERATE_DEVICE long at(int row, int step) const {
    return static_cast<long>(here_.first_row + row) * in_.steps + step;
  }

  // The warps that compute. A thread has two units, 8 apart, each in two rows of every tile of its four warps. Its
  // numbers are in the order of the sums of a product: unit by unit, and for each unit the two rows.
  struct Worker {
    const int unit, row_of_tile;  // the first of the two units, and of the two rows
    const int first_tile;
    float d_h[kOwnTiles][4], d_c[kOwnTiles][4];
    // The gradient that masked steps, or the last output, pass back to the output of the step before; only with a mask.
    float d_repeated[P::kMasked ? kOwnTiles : 1][4];
  };
  struct Cell {
    int tile, part, row;  // the tile of this thread, the index of its sum there, and the row of the cluster
    bool inside;          // whether the layer has the unit and the batch the row
    long at;              // the place of the row, of the step if there is one, and of the unit
  };

  // Calls `work` for each cell of some of this thread's tiles.
  //   steps: T, and the step; or 1 and 0 for arrays without steps.
  template <int first, int count, class Work>
  CELLERATE_DEVICE void each_cell(const Worker& mine, int steps, int step, const Work& work) const {
    // Keeps the compiler from computing values for every row before the steps, which would occupy registers.
    unsigned all_steps = steps, batch = in_.batch;
    keep_in_loop(all_steps);
    keep_in_loop(batch);
    const int first_row = 8 * mine.first_tile + mine.row_of_tile;
    const int rows_left = static_cast<int>(batch) - here_.first_row - first_row;
    const int of_cluster = P::kRows - first_row;
    const long first_at = static_cast<long>(here_.first_row + first_row) * all_steps + step;
    CELLERATE_UNROLL
    for (int tile = first; tile < first + count; ++tile) {
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        const int further = 8 * tile + part % 2, unit = mine.unit + part / 2 * 8;
        const bool inside = unit < in_.units && further < rows_left && further < of_cluster;
        const long row = first_at + static_cast<long>(further) * all_steps;
        work(Cell{tile, part, first_row + further, inside, row * in_.units + unit});
      }
    }
  }
  // Works on all tiles in groups: `work` gets constants for the first tile of a group and its number of tiles.
  template <int first = 0, class Work>
  CELLERATE_DEVICE static void each_tiles(const Work& work) {
    if constexpr (first < kOwnTiles) {
      work.template operator()<first, (kOwnTiles - first < kReadTiles ? kOwnTiles - first : kReadTiles)>();
      each_tiles<first + kReadTiles>(work);
    }
  }

  CELLERATE_DEVICE void compute() const {
    Worker mine{here_.first_unit + here_.warp % 4 * 16 + here_.lane / 4,
                2 * (here_.lane % 4),
                here_.warp / 4 * kOwnTiles,
                {},
                {},
                {}};
    begin(mine);
    traffic_.begin();
    for (int done = 0;; ++done) {
      if (done > 0) collect(mine, done - 1);
      if (done == in_.steps) break;
      each_tiles([&]<int first, int count>() { retreat<first, count>(mine, done); });
      order_before_copies_from_memory();
      sync_warp();
      if (here_.lane == 0) arrive(shared_.gates_computed);
    }
    each_cell<0, kOwnTiles>(mine, 1, 0, [&](Cell cell) {
      if (!cell.inside) return;
      narrow(mine.d_h[cell.tile][cell.part], in_.d_h0[cell.at]);
      in_.d_c0[cell.at] = mine.d_c[cell.tile][cell.part];
    });
  }

  CELLERATE_DEVICE void begin(Worker& mine) const {
    each_cell<0, kOwnTiles>(mine, 1, 0, [&](Cell cell) {
      const auto [tile, part, row, inside, at] = cell;
      float& d_h = mine.d_h[tile][part];
      d_h = inside && in_.d_h_T != nullptr ? widen(in_.d_h_T[at]) : 0.0f;
      const float d_last = inside && in_.d_last_output != nullptr ? widen(in_.d_last_output[at]) : 0.0f;
      if constexpr (P::kMasked) {
        mine.d_repeated[tile][part] = d_last;
      } else {
        d_h += d_last;
      }
      mine.d_c[tile][part] = inside && in_.d_c_T != nullptr ? in_.d_c_T[at] : 0.0f;
    });
  }

  // Adds weights · the gradients of all gates of a step to the gradient of h before it.
  CELLERATE_DEVICE void collect(Worker& mine, int done) const {
    const int half = here_.warp / 4;
    float sums[kTiles][4] = {};
    keep_in_order(sums);
    traffic_.template multiply<2>(done, half, [&](const Number* weights, const Number* d_gates) {
      CELLERATE_UNROLL
      for (int first = 0; first < kTileUnits; first += 16) {
        multiply_add_tile(sums, weights + in_tile(0, first), d_gates + in_tile(0, first));
      }
    });
    keep_in_order(sums);
    struct alignas(16) Four {
      float of[4];
    };
    // The sums that this thread passes to its counterpart in the other four warps, tile by tile, and those it receives.
    const auto four = [&](int tile) {
      return reinterpret_cast<Four*>(shared_.sums[tile][here_.warp % 4][here_.lane]);
    };
    constexpr int kNextTile = 4 * 32;
    Four *gives = four(half != 0 ? 0 : kOwnTiles), *is_given = four(half != 0 ? kOwnTiles : 0);
    // Choosing without a branch keeps the sums in registers.
    CELLERATE_UNROLL
    for (int tile = 0; tile < kOwnTiles; ++tile) {
      const int later = kOwnTiles + tile;
      Four given;
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        given.of[part] = half != 0 ? sums[tile][part] : later < kTiles ? sums[later][part] : 0.0f;
      }
      gives[tile * kNextTile] = given;
    }
    sync_warp();
    if (here_.lane == 0) arrive(shared_.sums_given);
    wait_for(shared_.sums_given, done & 1);
    CELLERATE_UNROLL
    for (int tile = 0; tile < kOwnTiles; ++tile) {
      const int later = kOwnTiles + tile;
      const Four others = is_given[tile * kNextTile];
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        const float own = half == 0 ? sums[tile][part] : later < kTiles ? sums[later][part] : 0.0f;
        float& d_h = mine.d_h[tile][part];
        // Only masked steps keep a part of d_h.
        d_h = (P::kMasked ? d_h : 0.0f) + own + others.of[part];
      }
    }
  }

  // Goes back through a step of some tiles: from the gradients of h and c after the step to the gradients of the gates
  // and of c before the step. If the step counts, the gradient of h before it starts at 0; `collect` adds all of it.
  template <int first, int count>
  CELLERATE_DEVICE void retreat(Worker& mine, int done) const {
    constexpr Activation kGate = P::kRecurrentActivation, kValue = P::kActivation;
    const int step = in_.steps - 1 - done;
    // Stored as loaded, because computing with each number at once would wait for it.
    Gates<Number> gates[count][4];
    float c[count][4], c_before[count][4];
    Number d_output[count][4];
    unsigned char live[count][4];
    each_cell<first, count>(mine, in_.steps, step, [&](Cell cell) {
      const int tile = cell.tile - first, part = cell.part;
      gates[tile][part] = {};
      c[tile][part] = c_before[tile][part] = 0.0f;
      d_output[tile][part] = {};
      live[tile][part] = cell.inside;
      if (!cell.inside) return;
      gates[tile][part] = reinterpret_cast<const Gates<Number>*>(in_.gates)[cell.at];
      c[tile][part] = in_.cells[cell.at];
      if (step > 0) c_before[tile][part] = in_.cells[cell.at - in_.units];
      if (in_.d_outputs != nullptr) d_output[tile][part] = in_.d_outputs[cell.at];
      if constexpr (P::kMasked) live[tile][part] = in_.mask[at(cell.row, step)];
    });
    if (step == 0 && in_.c0 != nullptr) {
      each_cell<first, count>(mine, 1, 0, [&](Cell cell) {
        if (cell.inside) c_before[cell.tile - first][cell.part] = in_.c0[cell.at];
      });
    }
    float d_z[2][2][4];  // of two units in two rows
    each_cell<first, count>(mine, in_.steps, step, [&](Cell cell) {
      const int tile = cell.tile - first, part = cell.part;
      float& d_h = mine.d_h[cell.tile][part];
      float (&of_cell)[4] = d_z[part / 2][part % 2];
      for (float& one : of_cell) one = 0.0f;
      float d = widen(d_output[tile][part]);
      if constexpr (P::kMasked) {
        d += mine.d_repeated[cell.tile][part];
        mine.d_repeated[cell.tile][part] = 0.0f;
      }
      if (live[tile][part] != 0) {
        go_back<kGate, kValue>(gates[tile][part].of, c[tile][part], c_before[tile][part], d_h + d,
                               mine.d_c[cell.tile][part], of_cell);
        d_h = 0.0f;
      } else if (!cell.inside) {
        d_h = 0.0f;
      } else if constexpr (P::kMasked) {
        if (in_.masked_output == MaskedOutput::kPreviousState) d_h += d;
        if (in_.masked_output == MaskedOutput::kPreviousOutput) mine.d_repeated[cell.tile][part] = d;
      }
      Gates<Number> narrowed;
      CELLERATE_UNROLL
      for (int gate = 0; gate < 4; ++gate) narrow(of_cell[gate], narrowed.of[gate]);
      if (cell.inside) reinterpret_cast<Gates<Number>*>(in_.d_projected)[cell.at] = narrowed;
      if (part == 3) leave(mine, done, cell.tile, d_z);
    });
  }

  // Stores the gradients of the gates of two units in two rows of a tile where they are sent from. The two units, 8
  // apart in the layer, are neighbours there: the numbers of a chunk have the order of `weights`.
  CELLERATE_DEVICE void leave(const Worker& mine, int done, int tile, const float (&d_z)[2][2][4]) const {
    if (mine.first_tile + tile >= kTiles) return;
    struct alignas(4) Two {
      Number of[2];
    };
    const int number = here_.warp % 4 * 16 + here_.lane / 4 * 2;
    Number* first = exchanged(done) + in_tile(8 * mine.first_tile + mine.row_of_tile, number);
    CELLERATE_UNROLL
    for (int gate = 0; gate < 4; ++gate) {
      CELLERATE_UNROLL
      for (int which = 0; which < 2; ++which) {
        Two both;
        narrow(d_z[0][which][gate], both.of[0]);
        narrow(d_z[1][which][gate], both.of[1]);
        *reinterpret_cast<Two*>(first + gate * P::kChunk + in_tile(8 * tile + which, 0)) = both;
      }
    }
  }

  // Sends the gradients of the gates of this block's units to all blocks.
  CELLERATE_DEVICE void send() const {
    for (int done = 0; done < in_.steps; ++done) {
      wait_for(shared_.gates_computed, done & 1);
      order_before_copies_from_memory();
      for (int gate = 0; gate < 4; ++gate) traffic_.send(done, gate, exchanged(done) + gate * P::kChunk);
    }
  }

  // Prefetches the inputs of each step into the second-level cache.
  CELLERATE_DEVICE void prefetch(int part) const {
    for (int done = 0; done < in_.steps; ++done) {
      // Without this warp's arrival no phase ends, so it cannot miss one by being late.
      sync_warp();
      if (here_.lane == 0) arrive(shared_.gates_computed);
      wait_for(shared_.gates_computed, done & 1);
      const int step = in_.steps - 2 - done;
      if (step < 0) break;
      for (int row = part * 32 + here_.lane; row < P::kRows; row += P::kHelpers * 32) {
        if (here_.first_row + row >= in_.batch) continue;
        prefetch_row(in_.gates, 4, at(row, step), in_.units, here_.first_unit);
        if (step > 0) prefetch_row(in_.cells, 1, at(row, step - 1), in_.units, here_.first_unit);
        if (in_.d_outputs != nullptr)
          prefetch_row(in_.d_outputs, 1, at(row, step), in_.units, here_.first_unit);
      }
    }
  }

  const BackwardArguments<Number>& in_;
  TiledBackwardShared<P>& shared_;
  const Traffic<P, P::kWorkers / 2> traffic_;
  const TiledPlace<P> here_;
};

template <class P>
CELLERATE_DEVICE void lstm_tiled_backward(const BackwardArguments<typename P::Number>& in) {
  TiledBackwardBlock<P>(in).run();
}

}  // namespace cellerate::gpu
