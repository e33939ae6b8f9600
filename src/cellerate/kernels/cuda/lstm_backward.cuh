// The backward recurrence of one LSTM layer: from the gradients of the outputs to those of the pre-activations.
//
// The gradients of weights and inputs are products over all steps of what comes out here, and the framework's.
//
// As in the forward recurrence a cluster owns some rows of the batch, and each of its blocks some units. A block turns the
// gradient of the h of its units into that of their gates, multiplies that with its weights, which gives its part of the
// gradient of the h before of all units, and sends every block the part of that block's units.
#pragma once

#include "lstm.cuh"

namespace cellerate::gpu {

template <class Number>
struct BackwardArguments {
  int batch, steps, units;     // B, T and H itself
  MaskedOutput masked_output;  // only with a mask
  const Number* gates;         // (B, T, H, 4) as forward wrote them
  const float* cells;          // (B, T, H), too
  const Words* weights;        // (kBlocks, kProducts, kBlockTiles, 32): the recurrent kernel, zeros beyond H
  const float* c0;             // (B, H), or null: zeros
  const unsigned char* mask;   // (B, T), zero where masked; only with a mask
  const float* recurrent_dropout;  // (4, B, H); only with one
  const Number* d_outputs;         // (B, T, H), or null: zeros, as for the next three
  const Number* d_last_output;     // (B, H)
  const Number* d_h_T;             // (B, H)
  const float* d_c_T;              // (B, H)
  Number* d_projected;             // (B, T, H, 4)
  Number* d_h0;                    // (B, H)
  float* d_c0;                     // (B, H)
};

template <class P>
struct BackwardShared {
  using Number = typename P::Number;
  using Part = float[P::kRows * P::kBlockUnits];  // by `in_part`

  // What the blocks of the cluster have sent of the gradient of h, of this step and of the next.
  alignas(128) Part come[2][P::kBlocks];
  Part sent[2][P::kBlocks];
  // Of the gates of this block's units as the matrix units take them, (rows, 4, kBlockUnits), by `in_gates`.
  alignas(128) Number d_gates[Layout<Number>::kSplit][P::kRows * 4 * P::kBlockUnits];
  // With a mask for each gate: those of all units, (4, kUnits, rows).
  Number dropout[P::kDropped ? 4 * P::kUnits * P::kRows : 1];
  Barrier arrived[2];
  // What there are no registers for.
  static constexpr int kBlockTiles = P::kUnits / 16;                            // of 16 units
  static constexpr int kUnitTiles = (kBlockTiles + P::kWarps - 1) / P::kWarps;  // of a warp
  static constexpr int kProducts =
      4 * P::kBlockUnits / Layout<Number>::kProduct;  // over the gates of a block
  using Weights = gpu::Weights<Number, typename P::Tiers, P::kThreads, kProducts, kUnitTiles, kBlockTiles>;
  Words weights[Weights::kSharedWords > 0 ? Weights::kSharedWords : 1];
};

template <class P>
class BackwardBlock {
  using Number = typename P::Number;
  using L = Layout<Number>;
  static constexpr int kBlockTiles = BackwardShared<P>::kBlockTiles;
  static constexpr int kUnitTiles = BackwardShared<P>::kUnitTiles;
  static constexpr int kProducts = BackwardShared<P>::kProducts;
  static constexpr int kGateNumbers = P::kRows * 4 * P::kBlockUnits;

 public:
  CELLERATE_DEVICE explicit BackwardBlock(const BackwardArguments<Number>& in)
      : in_(in),
        shared_(*reinterpret_cast<BackwardShared<P>*>(shared_memory())),
        block_unit_(here_.warp / 8 * kPanelUnits + here_.lane),
        unit_(here_.first_unit + block_unit_),
        there_(unit_ < in.units) {}

  CELLERATE_DEVICE void run() {
    load_weights();
    begin();
    read_ahead(in_.steps - 1);
    for (int done = 0; done < in_.steps; ++done) {
      const int step = in_.steps - 1 - done, now = done & 1, next = now ^ 1;
      if (done > 0) collect(done, now);
      if (here_.thread == 0) expect_bytes(shared_.arrived[next], P::kBlocks * static_cast<int>(sizeof(Part)));
      CELLERATE_UNROLL
      for (int tile = 0; tile < P::kTiles; ++tile) retreat(step, tile);
      if (step > 0) read_ahead(step - 1);
      sync_block();
      multiply(next);
      order_before_copies();
      sync_block();
      if (here_.thread < P::kBlocks) {
        copy_to_block(here_.thread, shared_.come[next][here_.rank], shared_.sent[next][here_.thread],
                      sizeof(Part), shared_.arrived[next]);
      }
    }
    collect(in_.steps, in_.steps & 1);
    finish();
    // No block ends while a copy from it is on its way.
    sync_cluster();
  }

 private:
  using Part = typename BackwardShared<P>::Part;

  CELLERATE_DEVICE int row(int tile) const { return tile * 8 + here_.warp % 8; }
  // Eight units further for each two rows, so that both those who write a part and those who read it take all banks.
  CELLERATE_DEVICE static int in_part(int row, int unit) {
    const int panel = unit / kPanelUnits;
    return (panel * P::kRows + row) * kPanelUnits + ((unit + 8 * (row >> 1)) & (kPanelUnits - 1));
  }
  // The chunks of a row change places from row to row.
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
  // Where the tiles cannot be divided evenly, warps compute some of the same, and write the same sums.
  CELLERATE_DEVICE int unit_tile(int tile) const {
    const int first = here_.warp * kUnitTiles, last = kBlockTiles - kUnitTiles;
    return (first < last ? first : last) + tile;
  }

  CELLERATE_DEVICE void begin() {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      inside_[tile] = there_ && here_.first_row + row(tile) < in_.batch;
      const bool inside = inside_[tile];
      d_h_[tile] = inside && in_.d_h_T != nullptr ? widen(in_.d_h_T[at(tile)]) : 0.0f;
      d_c_[tile] = inside && in_.d_c_T != nullptr ? in_.d_c_T[at(tile)] : 0.0f;
      d_repeated_[tile] = inside && in_.d_last_output != nullptr ? widen(in_.d_last_output[at(tile)]) : 0.0f;
      c_[tile] = inside ? in_.cells[at(tile, in_.steps - 1)] : 0.0f;
      c_before_[tile] = d_output_[tile] = 0.0f;
      live_[tile] = true;
    }
    if constexpr (P::kDropped) {
      for (int n = here_.thread; n < 4 * P::kUnits * P::kRows; n += P::kThreads) {
        const int gate = n / (P::kUnits * P::kRows), unit = n / P::kRows % P::kUnits;
        const int b = here_.first_row + n % P::kRows;
        const bool there = b < in_.batch && unit < in_.units;
        const long from = (static_cast<long>(gate) * in_.batch + b) * in_.units + unit;
        narrow(there ? in_.recurrent_dropout[from] : 0.0f, shared_.dropout[n]);
      }
    }
    make_barriers(shared_.arrived);
  }

  // Reads what a step needs from memory, a step before it is needed.
  CELLERATE_DEVICE void read_ahead(int step) {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      if (!inside_[tile]) continue;
      gates_[tile] = *reinterpret_cast<const Gates<Number>*>(in_.gates + 4 * at(tile, step));
      c_before_[tile] = step > 0            ? in_.cells[at(tile, step - 1)]
                        : in_.c0 != nullptr ? in_.c0[at(tile)]
                                            : 0.0f;
      d_output_[tile] = in_.d_outputs != nullptr ? widen(in_.d_outputs[at(tile, step)]) : 0.0f;
      if constexpr (P::kMasked) {
        live_[tile] = in_.mask[static_cast<long>(here_.first_row + row(tile)) * in_.steps + step] != 0;
      }
    }
  }

  // Adds up what the blocks have sent for this block's units.
  CELLERATE_DEVICE void collect(int done, int now) {
    wait_for(shared_.arrived[now], ((done - 1) >> 1) & 1);
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      const int from = in_part(row(tile), block_unit_);
      float sum = 0.0f;
      CELLERATE_UNROLL
      for (int block = 0; block < P::kBlocks; ++block) sum += shared_.come[now][block][from];
      d_h_[tile] += sum;
    }
  }

  // Goes back through a step of this thread's unit in one row: from the gradients of h and c after it to those of its
  // gates and of c before it. That of h before it is 0 where the step counts, but for what the blocks will send.
  CELLERATE_DEVICE void retreat(int step, int tile) {
    constexpr Activation kGate = P::kRecurrentActivation, kValue = P::kActivation;
    float d_z[4] = {};
    const float d_output = inside_[tile] ? d_output_[tile] + d_repeated_[tile] : 0.0f;
    d_repeated_[tile] = 0.0f;
    if (!inside_[tile]) {
      d_h_[tile] = 0.0f;
    } else if (!P::kMasked || live_[tile]) {
      float value[4], slope[4];
      value_and_slope<kGate>(0, tile, value, slope);
      value_and_slope<kGate>(1, tile, value, slope);
      value_and_slope<kValue>(2, tile, value, slope);
      value_and_slope<kGate>(3, tile, value, slope);
      const float c_value = activate<kValue, Number>(c_[tile]);
      const float d_h = d_h_[tile] + d_output;
      const float d_c = d_c_[tile] + d_h * value[3] * derivative<kValue>(c_[tile], c_value);
      d_z[0] = d_c * value[2] * slope[0];
      d_z[1] = d_c * c_before_[tile] * slope[1];
      d_z[2] = d_c * value[0] * slope[2];
      d_z[3] = d_h * c_value * slope[3];
      d_c_[tile] = d_c * value[1];
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
      store_split(d_z[gate], &shared_.d_gates[0][in_gates(row(tile), gate * P::kBlockUnits + block_unit_)],
                  kGateNumbers);
    }
    if (inside_[tile]) *reinterpret_cast<Gates<Number>*>(in_.d_projected + 4 * at(tile, step)) = gates;
  }
  template <Activation kKind>
  CELLERATE_DEVICE void value_and_slope(int gate, int tile, float (&value)[4], float (&slope)[4]) const {
    const float x = widen(gates_[tile].of[gate]);
    value[gate] = derivative_from_value(kKind) ? x : activate<kKind, Number>(x);
    slope[gate] = derivative<kKind>(x, value[gate]);
  }

  // This block's part of the gradient of the h before, of all units: weights · d_gates.
  CELLERATE_DEVICE void multiply(int next) {
    float sums[kUnitTiles][P::kTiles][4] = {};
    CELLERATE_UNROLL
    for (int gate = 0; gate < 4; ++gate) {
      float of_gate[kUnitTiles][P::kTiles][4] = {};
      multiply_gate(gate, P::kDropped ? of_gate : sums);
      if constexpr (P::kDropped) {
        each_sum([&](int unit_tile, int tile, int part, int unit, int r) {
          const float scale = widen(shared_.dropout[(gate * P::kUnits + unit) * P::kRows + r]);
          sums[unit_tile][tile][part] += of_gate[unit_tile][tile][part] * scale;
        });
      }
    }
    each_sum([&](int unit_tile, int tile, int part, int unit, int r) {
      shared_.sent[next][unit / P::kBlockUnits][in_part(r, unit % P::kBlockUnits)] =
          sums[unit_tile][tile][part];
    });
  }
  // The part of one gate.
  CELLERATE_DEVICE void multiply_gate(int gate, float (&sums)[kUnitTiles][P::kTiles][4]) {
    constexpr int kPairs = kProducts / 4 / 2;
    CELLERATE_UNROLL
    for (int pair = gate * kPairs; pair < (gate + 1) * kPairs; ++pair) {
      unsigned parts[L::kSplit][P::kTiles][4];
      CELLERATE_UNROLL
      for (int split = 0; split < L::kSplit; ++split) {
        CELLERATE_UNROLL
        for (int tile = 0; tile < P::kTiles; ++tile) {
          const int from =
              in_gates(tile * 8 + here_.lane % 8, pair * 2 * L::kProduct + here_.lane / 8 * L::kChunk);
          load_matrices(parts[split][tile], shared_.d_gates[split] + from);
        }
      }
      CELLERATE_UNROLL
      for (int product = 2 * pair; product < 2 * pair + 2; ++product) {
        CELLERATE_UNROLL
        for (int unit_tile = 0; unit_tile < kUnitTiles; ++unit_tile) {
          // What is small by some digits is added to the same sum: there are no registers for another.
          weights_.multiply(product, unit_tile, parts, sums[unit_tile], sums[unit_tile]);
        }
      }
    }
  }
  // Calls `work` for each number that this thread has of the sums: its unit and its row in the cluster.
  template <class Work>
  CELLERATE_DEVICE void each_sum(const Work& work) const {
    CELLERATE_UNROLL
    for (int unit_tile = 0; unit_tile < kUnitTiles; ++unit_tile) {
      const int first = this->unit_tile(unit_tile) * 16;
      CELLERATE_UNROLL
      for (int tile = 0; tile < P::kTiles; ++tile) {
        CELLERATE_UNROLL
        for (int part = 0; part < 4; ++part) {
          work(unit_tile, tile, part, first + here_.lane / 4 + (part >> 1) * 8,
               tile * 8 + 2 * (here_.lane % 4) + (part & 1));
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
  const bool there_;             // whether it is one

  typename BackwardShared<P>::Weights weights_;
  Gates<Number> gates_[P::kTiles];
  float c_[P::kTiles], c_before_[P::kTiles], d_output_[P::kTiles];
  float d_h_[P::kTiles], d_c_[P::kTiles];
  float d_repeated_
      [P::kTiles];  // what masked steps, or the last output, pass back to the output of the step before
  bool inside_[P::kTiles], live_[P::kTiles];
};

template <class P>
CELLERATE_DEVICE void lstm_backward(const BackwardArguments<typename P::Number>& in) {
  BackwardBlock<P>(in).run();
}

}  // namespace cellerate::gpu
