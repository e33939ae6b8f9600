// Sizes and data layout shared by the forward and the backward recurrence of one LSTM layer.
//
// Only the recurrence is here; the framework computes the products over all steps (x·kernel, and the gradients of
// weights and inputs). Dimensions: B batch, T steps, H units. The four gates of a unit, in Keras's order i, f, c, o,
// lie side by side, so that a thread reads them at once: (…, H, 4).
//
// A cluster of thread blocks owns `kRows` rows of the batch for all steps, and each of its blocks owns `kBlockUnits`
// units. A block keeps the recurrent weights of its units in the fastest memory with room for them. In every step it
// multiplies them with the h of all units, and sends the h of its own units to all blocks of the cluster. No step
// waits for another cluster.
#pragma once

#include "activations.cuh"
#include "operands.cuh"

namespace cellerate::gpu {

// The output of a masked step, by the names of cellerate.program.MASKED_OUTPUTS.
enum class MaskedOutput : int { kPreviousOutput, kPreviousState, kZero };

// The compile-time parameters of a kernel.
//   Number: Bfloat16, Float16, float or Tf32, of weights, inputs, outputs and h; c and all sums are float.
//   units: H, rounded up to a multiple of block_units.
//   block_units: units of a block, 32 or 64.
//   rows: rows of the batch per cluster, a multiple of 8.
//   masked: whether there is a mask. dropped: whether h is multiplied by a separate mask for each gate.
//   turns: 1, or 2 if the rows are cut into halves: one half is computed while the numbers of the other are on their
//     way; only backward.
//   wide: whether four warps make a product together, which then reads h from shared memory; only forward.
//   through_memory: whether blocks send h through global memory; only forward.
template <class Number_, int units, int block_units, int rows, Activation activation,
          Activation recurrent_activation, bool masked, bool dropped, int turns, bool wide,
          bool through_memory, class Tiers_>
struct Plan {
  using Number = Number_;
  using Tiers = Tiers_;
  static constexpr int kUnits = units;
  static constexpr int kBlockUnits = block_units;
  static constexpr int kRows = rows;
  static constexpr Activation kActivation = activation;
  static constexpr Activation kRecurrentActivation = recurrent_activation;
  static constexpr bool kMasked = masked;
  static constexpr bool kDropped = dropped;
  static constexpr int kTurns = turns;
  static constexpr bool kWide = wide;
  static constexpr bool kThroughMemory = through_memory;

  static constexpr int kThreads = 8 * block_units;  // a warp per 4 units, or per 16 units of one gate
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBlocks = units / block_units;  // per cluster
  static constexpr int kPanels = units / kPanelUnits;  // of all units
  static constexpr int kBlockPanels = block_units / kPanelUnits;
  static constexpr int kTiles = rows / 8;  // of 8 rows, as in a warp's product
  static_assert(units % block_units == 0 && block_units % kPanelUnits == 0 && rows % 8 == 0);
  static_assert(turns == 1 || (turns == 2 && kTiles > 1));
};

// The rows that are computed and sent together: all of a cluster, or half of them.
template <class P, int turn>
struct Turn {
  static constexpr int kIndex = turn;
  static constexpr int kFirstTile = turn * P::kTiles / P::kTurns;
  static constexpr int kTiles = (turn + 1) * P::kTiles / P::kTurns - kFirstTile;
  static constexpr int kFirstRow = 8 * kFirstTile, kRows = 8 * kTiles;
};

template <class P, class Work>
CELLERATE_DEVICE void each_turn(const Work& work) {
  work(Turn<P, 0>{});
  if constexpr (P::kTurns == 2) work(Turn<P, 1>{});
}

// Panels of all rows. A panel has `parts` parts.
template <class P, int panels, int parts>
struct Panels {
  using Number = typename P::Number;
  Number numbers[panels * parts * P::kRows * kPanelUnits];

  CELLERATE_DEVICE Number* of(int panel, int part = 0) {
    return numbers + P::kRows * (panel * parts + part) * kPanelUnits;
  }
};

// A thread's place in its block, and the first row and unit that its block and cluster own.
template <class P>
struct Place {
  const int thread = thread_index();
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int rank = cluster_rank();  // of the block in its cluster
  const int cluster = block_index() / P::kBlocks;
  const int first_row = cluster * P::kRows;
  const int first_unit = rank * P::kBlockUnits;
};

// Calls `work` once for each block of the cluster. A warp starts copies one after the other, so the warps share them.
template <class P, class Work>
CELLERATE_DEVICE void for_each_block(const Place<P>& here, const Work& work) {
  CELLERATE_UNROLL
  for (int first = 0; first < P::kBlocks; first += P::kWarps) {
    const int block = first + here.warp;
    if (here.lane == 0 && block < P::kBlocks) work(block);
  }
}

// Sends `bytes` of this block's shared memory to the same address in each block of the cluster. The threads of the
// block must meet after writing the bytes. A warp stores 512 bytes in a row into one block, and each block begins with
// a different one, so that all are busy. Source: st.async in the PTX manual.
template <class P, int bytes>
CELLERATE_DEVICE void send_to_blocks(const Place<P>& here, void* to, const void* from, Barrier& barrier) {
  constexpr int kChunks = bytes / 16;
  static_assert(bytes % 16 == 0);
  CELLERATE_UNROLL
  for (int first = 0; first < kChunks * P::kBlocks; first += P::kThreads) {
    const int n = first + here.thread, chunk = n % kChunks, later = here.rank + n / kChunks;
    if (n >= kChunks * P::kBlocks) break;
    const Words words = static_cast<const Words*>(from)[chunk];
    store_to_block(later < P::kBlocks ? later : later - P::kBlocks, static_cast<Words*>(to) + chunk, words.of,
                   barrier);
  }
}

// Sends through global memory, which is read once for all blocks. The latency is higher, but more rows hardly take
// longer: a multiprocessor receives about 30 bytes per nanosecond from other blocks, and far more from memory.
//   memory: `bytes` of this block alone, which no block of the cluster still reads.
template <class P, int bytes>
CELLERATE_DEVICE void send_through_memory(const Place<P>& here, void* to, const void* from, void* memory,
                                          Barrier& barrier) {
  constexpr int kWords = 32, kPieces = bytes / (16 * kWords), kOfWarp = (kPieces + P::kWarps - 1) / P::kWarps;
  static_assert(bytes % (16 * kWords) == 0);
  const int first = here.warp * kOfWarp, left = kPieces - first, count = left < kOfWarp ? left : kOfWarp;
  if (count <= 0) return;
  const Words* mine = static_cast<const Words*>(from) + first * kWords;
  Words* there = static_cast<Words*>(memory) + first * kWords;
  CELLERATE_UNROLL
  for (int n = 0; n < kOfWarp; ++n) {
    if (n < count) there[n * kWords + here.lane] = mine[n * kWords + here.lane];
  }
  order_before_copies_of_warp();
  sync_warp();
  if (here.lane == 0) {
    copy_from_memory_to_blocks(P::kBlocks, static_cast<Words*>(to) + first * kWords, there,
                               count * kWords * 16, barrier);
  }
}

// Two lanes, 4 apart, have the gates i and c, and f and o, of a unit in two rows. Each lane gets all gates of one
// row.
struct UnitGates {
  float of[4];
};
CELLERATE_DEVICE UnitGates gates_of_unit(const float (&mine)[4], int lane) {
  const bool odd = (lane >> 2) & 1;
  const float low = from_lane_xor(odd ? mine[0] : mine[1], 4);
  const float high = from_lane_xor(odd ? mine[2] : mine[3], 4);
  if (odd) return {{low, mine[1], high, mine[3]}};
  return {{mine[0], low, mine[2], high}};
}

// Makes barriers; on return, the barriers of all blocks of the cluster exist.
template <int count>
CELLERATE_DEVICE void make_barriers(Barrier (&barriers)[count]) {
  if (thread_index() == 0) {
    for (int n = 0; n < count; ++n) init_barrier(barriers[n]);
    publish_barriers();
  }
  sync_cluster();
}

// Four numbers at once: the gates of a unit.
template <class Number>
struct alignas(4 * sizeof(Number)) Gates {
  Number of[4];
};

// Numbers that are loaded ahead of their use. Touching them earlier would wait for the memory, and the other blocks
// would wait, too.
template <class Number, int count>
class Awaited {
  static constexpr int kBytes = count * sizeof(Number), kWords = (kBytes + 3) / 4;
  struct alignas(kBytes < 4 ? 4 : kBytes) Bits {
    unsigned of[kWords];
  };

 public:
  CELLERATE_DEVICE void read(const Number* from) {
    if constexpr (kBytes >= 4) {
      bits_ = *reinterpret_cast<const Bits*>(from);
    } else if constexpr (kBytes == 2) {
      bits_.of[0] = *reinterpret_cast<const unsigned short*>(from);
    } else {
      bits_.of[0] = *reinterpret_cast<const unsigned char*>(from);
    }
  }
  CELLERATE_DEVICE void take(Number (&numbers)[count]) const {
    Bits words = bits_;
    CELLERATE_UNROLL
    for (int n = 0; n < kWords; ++n) keep_in_loop(words.of[n]);
    CELLERATE_UNROLL
    for (int n = 0; n < count; ++n) {
      const unsigned word = words.of[n * sizeof(Number) / 4];
      if constexpr (sizeof(Number) == 4) {
        numbers[n] = {from_bits(word)};
      } else if constexpr (sizeof(Number) == 2) {
        numbers[n] = {static_cast<unsigned short>(word >> n % 2 * 16)};
      } else {
        numbers[n] = static_cast<Number>(word);
      }
    }
  }

 private:
  Bits bits_ = {};
};

// A gate's value, and the number that backward needs of it.
struct Gate {
  float value, kept;
};

// Backward gets a gate's value, or its pre-activation if the derivative cannot be computed from the value. For a
// sigmoid s it gets the smaller of s and 1 - s, negated if that is 1 - s: with few bits, an s near 1 would lose 1 - s,
// which is a factor of the derivative. Likewise, in 16 bits, for a tanh beyond 1/2 it gets the distance from 1 or -1,
// with the sign of the tanh, multiplied by `kFar`, which distinguishes it from a value.
template <class Number>
constexpr float kFar = 0x1p32f;
template <>
inline constexpr float kFar<Float16> = 0x1p16f;

CELLERATE_DEVICE Gate sigmoid_gate(float z, float smaller) {
  return z < 0 ? Gate{smaller, smaller} : Gate{1.0f - smaller, -smaller};
}
// tanh(z), from `smaller_of_sigmoid(2 z)`.
template <class Number>
CELLERATE_DEVICE Gate tanh_gate(float z, float smaller) {
  const float distance = 2.0f * smaller, size = 1.0f - distance;
  const float far = kFar<Number> * distance, kept = size <= 0.5f ? size : far < 1.0f ? 1.0f : far;
  return z < 0 ? Gate{-size, -kept} : Gate{size, kept};
}
template <Activation kKind, class Number>
CELLERATE_DEVICE Gate gate(float z) {
  if constexpr (kKind == Activation::kSigmoid) return sigmoid_gate(z, smaller_of_sigmoid(z));
  if constexpr (kKind == Activation::kTanh && sizeof(Number) == 2) {
    return tanh_gate<Number>(z, smaller_of_sigmoid(2.0f * z));
  }
  const float value = activate<kKind, Number>(z);
  return {value, derivative_from_value(kKind) ? value : z};
}

// The gates i, f, c and o of a unit.
template <Activation kGate, Activation kValue, class Number>
CELLERATE_DEVICE void all_gates(const UnitGates& z, Gate& i, Gate& f, Gate& g, Gate& o) {
  if constexpr (kGate == Activation::kSigmoid && kValue == Activation::kTanh && sizeof(Number) == 2) {
    float smaller[4] = {z.of[0], z.of[1], 2.0f * z.of[2], z.of[3]};
    short_smaller_of_sigmoids(smaller);
    i = sigmoid_gate(z.of[0], smaller[0]);
    f = sigmoid_gate(z.of[1], smaller[1]);
    g = tanh_gate<Number>(z.of[2], smaller[2]);
    o = sigmoid_gate(z.of[3], smaller[3]);
  } else {
    i = gate<kGate, Number>(z.of[0]);
    f = gate<kGate, Number>(z.of[1]);
    g = gate<kValue, Number>(z.of[2]);
    o = gate<kGate, Number>(z.of[3]);
  }
}

// An activation's value and derivative.
struct ValueAndSlope {
  float value, slope;
};
// The value and derivative of the activation of c.
template <Activation kKind, class Number>
CELLERATE_DEVICE ValueAndSlope value_and_slope_of_cell(float c) {
  if constexpr (kKind == Activation::kTanh && sizeof(Number) == 2) {
    // Computing 1 - tanh² from a tanh of few bits would be wrong wherever c is large.
    float smaller[1] = {2.0f * c};
    short_smaller_of_sigmoids(smaller);
    const float size = 1.0f - 2.0f * smaller[0];
    return {c < 0 ? -size : size, 4.0f * smaller[0] * (1.0f - smaller[0])};
  }
  const float value = activate<kKind, Number>(c);
  return {value, derivative<kKind>(c, value)};
}
// The value and derivative of a gate, from the number kept for backward.
template <Activation kKind, class Number>
CELLERATE_DEVICE ValueAndSlope value_and_slope(float kept) {
  if constexpr (kKind == Activation::kSigmoid) {
    const float smaller = fabsf(kept), larger = 1.0f - smaller;
    // Tests the sign bit, because zero can have either sign.
    return {bits_of(kept) >> 31 ? larger : smaller, smaller * larger};
  }
  if constexpr (kKind == Activation::kTanh && sizeof(Number) == 2) {
    const float size = fabsf(kept), distance = size * (1.0f / kFar<Number>);
    if (size > 0.75f) return {kept < 0 ? distance - 1.0f : 1.0f - distance, distance * (2.0f - distance)};
    return {kept, 1.0f - kept * kept};
  }
  const float value = derivative_from_value(kKind) ? kept : activate<kKind, Number>(kept);
  return {value, derivative<kKind>(kept, value)};
}

// Goes back through a step of a unit in a row: from the gradients of h and c after the step to the gradients of the
// four gates before their activations, and of c before the step.
//   of_forward: the gates as forward kept them.
template <Activation kGate, Activation kValue, class Number>
CELLERATE_DEVICE void go_back(const Number (&of_forward)[4], float c_after, float c_before, float d_h,
                              float& d_c, float (&d_z)[4]) {
  const ValueAndSlope i = value_and_slope<kGate, Number>(widen(of_forward[0]));
  const ValueAndSlope f = value_and_slope<kGate, Number>(widen(of_forward[1]));
  const ValueAndSlope g = value_and_slope<kValue, Number>(widen(of_forward[2]));
  const ValueAndSlope o = value_and_slope<kGate, Number>(widen(of_forward[3]));
  const ValueAndSlope c = value_and_slope_of_cell<kValue, Number>(c_after);
  const float d_c_after = d_c + d_h * o.value * c.slope;
  d_z[0] = d_c_after * g.value * i.slope;
  d_z[1] = d_c_after * c_before * f.slope;
  d_z[2] = d_c_after * i.value * g.slope;
  d_z[3] = d_h * c.value * o.slope;
  d_c = d_c_after * f.value;
}

}  // namespace cellerate::gpu
