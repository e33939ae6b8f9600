// What the forward and the backward recurrence of one LSTM layer share: sizes, and the layout of their data.
//
// Only the recurrence is here; the framework computes the products over all steps (x·kernel, and the gradients of
// weights and inputs). Dimensions: B batch, T steps, H units. The four gates of a unit, in Keras's order i, f, c, o,
// lie side by side, so that a thread reads them at once: (…, H, 4).
//
// A cluster of thread blocks owns `kRows` rows of the batch for all steps, and each of its blocks owns `kBlockUnits`
// units. A block keeps the recurrent weights of its units as near as it can. In every step it multiplies them with
// the h of all units, and sends the h of its own units to all blocks of the cluster. No step waits for another
// cluster.
#pragma once

#include "activations.cuh"

namespace cellerate::gpu {

// The number of units in a panel. h lies in panels.
constexpr int kPanelUnits = 32;

// The output of a masked step; the order is that of cellerate.kernels.lstm.spec.MASKED_OUTPUTS.
enum class MaskedOutput : int { kPreviousOutput, kPreviousState, kZero };

// Where the weights of a thread lie: for how many products in registers and in shared memory. The others are in
// global memory, and each step reads them anew.
template <int registers, int shared>
struct Tiers {
  static constexpr int kRegisters = registers;
  static constexpr int kShared = shared;
};

// What a kernel is compiled for.
//   Number: Bfloat16, Float16, float or Tf32, of weights, inputs, outputs and h; c and all sums are float.
//   units: H, rounded up to a multiple of block_units.
//   block_units: units of a block, 32 or 64.
//   rows: rows of the batch per cluster, a multiple of 8.
//   masked: whether there is a mask. dropped: whether h is multiplied by a separate mask for each gate.
template <class Number_, int units, int block_units, int rows, Activation activation,
          Activation recurrent_activation, bool masked, bool dropped, class Tiers_>
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

  static constexpr int kThreads = 8 * block_units;  // a warp per 4 units, or per 16 units of one gate
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBlocks = units / block_units;  // per cluster
  static constexpr int kPanels = units / kPanelUnits;  // of all units
  static constexpr int kBlockPanels = block_units / kPanelUnits;
  static constexpr int kTiles = rows / 8;  // of 8 rows, as a product of a warp has
  static_assert(units % block_units == 0 && block_units % kPanelUnits == 0 && rows % 8 == 0);
};

// How numbers reach the matrix units. A float is split into the sum of two numbers of 19 bits, and the three larger
// of their four products are added up ("3xTF32": Ootomo & Yokota, "Recovering single precision accuracy from Tensor
// Cores", 2022).
template <class Number>
struct Layout {
  static constexpr int kSplit = 1;
  // Whether numbers are rounded before the matrix units cut off their last bits, which would make all products smaller.
  static constexpr bool kRounds = false;
  static constexpr int kWord = 4 / sizeof(Number);      // numbers in a lane's part of a product
  static constexpr int kChunk = 16 / sizeof(Number);    // numbers in a row of a matrix
  static constexpr int kProduct = 32 / sizeof(Number);  // numbers in each sum of a product
  static constexpr int kRowChunks = kPanelUnits / kChunk;
};

template <>
struct Layout<Tf32> {
  static constexpr int kSplit = 1;
  static constexpr bool kRounds = true;
  static constexpr int kWord = 1, kChunk = 4, kProduct = 8, kRowChunks = kPanelUnits / kChunk;
};

template <>
struct Layout<float> : Layout<Tf32> {
  static constexpr int kSplit = 2;
  static constexpr bool kRounds = false;
};

// Splits the number in `bits`; the larger part stays there.
CELLERATE_DEVICE void split(unsigned& bits, unsigned& rest) {
  const float whole = from_bits(bits), large = upper_part(whole);
  bits = bits_of(large);
  rest = bits_of(whole - large);
}

// Stores a number in the form that the matrix units take. If it is split, the second part goes to `distance` further
// on; of that, the units cut off the last bits.
template <class Number>
CELLERATE_DEVICE void store_split(float x, Number* to, int distance) {
  if constexpr (Layout<Number>::kSplit == 2) {
    *to = upper_part(x);
    to[distance] = x - *to;
  } else {
    narrow(Layout<Number>::kRounds ? upper_part(x) : x, *to);
  }
}

// Where unit `unit` of row `row` lies in a panel. The chunks of a row change places from row to row, so that reading
// a matrix uses each bank once.
template <class Number>
CELLERATE_DEVICE constexpr int in_panel(int row, int unit) {
  using L = Layout<Number>;
  const int chunk = unit / L::kChunk ^ (row / (8 / L::kRowChunks) & (L::kRowChunks - 1));
  return row * kPanelUnits + chunk * L::kChunk + unit % L::kChunk;
}

// A thread's four words of the weights of one product.
struct alignas(16) Words {
  unsigned of[4];
};

// The weights of a warp: `tiles` of the `block_tiles` tiles of 16 rows into which the matrix of its block is cut,
// with all their products. They are used product after product, and within a product tile after tile. Those in global
// memory are spread evenly over that order and read a few uses ahead, so that memory is always busy. `read_ahead`
// starts to read the first of them for a step; call it where nothing has to wait for that.
template <class Number, class Tiers, int threads, int products, int tiles, int block_tiles>
class Weights {
  static constexpr int kCount = products * tiles;
  static constexpr int kRegisters = Tiers::kRegisters;
  static constexpr int kStreamed = kCount - kRegisters - Tiers::kShared;  // in global memory
  static constexpr int kMostAhead = 3;
  static constexpr int kAhead = kStreamed < kMostAhead ? kStreamed : kMostAhead;
  static_assert(kRegisters > 0 && Tiers::kShared >= 0 && kStreamed >= 0);

 public:
  static constexpr int kSharedWords = Tiers::kShared * threads;  // per block

  // Puts the weights into registers and shared memory.
  //   packed: this block's, (products, block_tiles, 32), in the order of cellerate.kernels.lstm.cuda.plan.Packing.
  //   shared: room for kSharedWords.
  CELLERATE_DEVICE void load(const Words* packed, int first_tile, Words* shared) {
    packed_ = packed + first_tile * 32 + thread_index() % 32;
    shared_ = shared + thread_index();
    CELLERATE_UNROLL
    for (int use = 0; use < kCount; ++use) {
      const int streamed = chosen(use, kCount, kStreamed), near = use - streamed;
      if (is_streamed(use)) continue;
      const int in_shared = chosen(near, kCount - kStreamed, Tiers::kShared);
      Words& place = is_shared(near) ? shared_[in_shared * threads] : own_[near - in_shared];
      load_words(place.of, at(use));
      if constexpr (Layout<Number>::kRounds) round(place);
    }
  }

  // Starts to read the first weights that come from global memory.
  CELLERATE_DEVICE void read_ahead() {
    CELLERATE_UNROLL
    for (int n = 0; n < kAhead; ++n) load_words(ahead_[n].of, at(streamed_use(n)));
  }

  // Adds the weights of a product times h to `sum`. Each step must use all weights, in their order.
  //   b: this thread's words of h, for this product and the other one of its pair; only split numbers have a second
  //   part.
  template <int count>
  CELLERATE_DEVICE void multiply(int product, int tile, const unsigned (&b)[Layout<Number>::kSplit][count][4],
                                 float (&sum)[count][4]) {
    const Words words = take(product * tiles + tile);
    const int first = product % 2 * 2;
    if constexpr (Layout<Number>::kSplit == 2) {
      unsigned upper[4], lower[4];
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        upper[part] = words.of[part];
        keep_in_loop(upper[part]);
        split(upper[part], lower[part]);
      }
      CELLERATE_UNROLL
      for (int n = 0; n < count; ++n) {
        // The matrix units cut off the last bits of each sum, always towards zero. So they only add up a single
        // product, small parts first.
        float few[4] = {};
        multiply_add(Number{}, few, lower, b[0][n][first], b[0][n][first + 1]);
        multiply_add(Number{}, few, upper, b[1][n][first], b[1][n][first + 1]);
        multiply_add(Number{}, few, upper, b[0][n][first], b[0][n][first + 1]);
        CELLERATE_UNROLL
        for (int part = 0; part < 4; ++part) sum[n][part] += few[part];
      }
    } else {
      CELLERATE_UNROLL
      for (int n = 0; n < count; ++n) {
        multiply_add(Number{}, sum[n], words.of, b[0][n][first], b[0][n][first + 1]);
      }
    }
  }

 private:
  // If `some` of `all` are chosen, evenly spread: how many of the first n are.
  CELLERATE_DEVICE static constexpr int chosen(int n, int all, int some) { return n * some / all; }
  CELLERATE_DEVICE static constexpr bool is_streamed(int use) {
    return chosen(use + 1, kCount, kStreamed) > chosen(use, kCount, kStreamed);
  }
  // `near` counts the uses that are not streamed.
  CELLERATE_DEVICE static constexpr bool is_shared(int near) {
    constexpr int kNear = kCount - kStreamed;
    return chosen(near + 1, kNear, Tiers::kShared) > chosen(near, kNear, Tiers::kShared);
  }
  // The use that takes the n-th weights from global memory.
  CELLERATE_DEVICE static constexpr int streamed_use(int n) {
    return kStreamed == 0 ? 0 : ((n + 1) * kCount + kStreamed - 1) / kStreamed - 1;
  }
  CELLERATE_DEVICE static void round(Words& words) {
    CELLERATE_UNROLL
    for (int part = 0; part < 4; ++part) words.of[part] = bits_of(upper_part(from_bits(words.of[part])));
  }
  CELLERATE_DEVICE const Words* at(int use) const {
    return packed_ + (use / tiles * block_tiles + use % tiles) * 32;
  }
  CELLERATE_DEVICE Words take(int use) {
    const int streamed = chosen(use, kCount, kStreamed), near = use - streamed;
    if (is_streamed(use)) {
      if constexpr (kAhead > 0) {
        Words& place = ahead_[streamed % kAhead];
        Words words = place;
        if constexpr (Layout<Number>::kRounds) round(words);
        const int later = streamed + kAhead;
        if (later < kStreamed) load_words(place.of, at(streamed_use(later)));
        return words;
      }
    }
    const int in_shared = chosen(near, kCount - kStreamed, Tiers::kShared);
    return is_shared(near) ? shared_[in_shared * threads] : own_[near - in_shared];
  }

  const Words* packed_;
  Words* shared_;
  Words own_[kRegisters];
  Words ahead_[kAhead > 0 ? kAhead : 1];
};

// A thread's place in its block, and the first row and unit that its block and cluster own.
template <class P>
struct Place {
  const int thread = thread_index();
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int rank = cluster_rank();  // of the block in its cluster
  const int first_row = block_index() / P::kBlocks * P::kRows;
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

// Makes the barriers of the even and the odd steps; on return, the barriers of all blocks of the cluster exist.
CELLERATE_DEVICE void make_barriers(Barrier (&arrived)[2]) {
  if (thread_index() == 0) {
    init_barrier(arrived[0]);
    init_barrier(arrived[1]);
    publish_barriers();
  }
  sync_cluster();
}

// Four numbers at once: the gates of a unit.
template <class Number>
struct alignas(4 * sizeof(Number)) Gates {
  Number of[4];
};

// Numbers that are read some time before they are needed, and not touched until then: using them earlier would wait
// for the memory, and the other blocks would wait too.
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

// A gate's value, and what is kept of it for backward.
struct Gate {
  float value, kept;
};

// What is kept of a gate is its value, or its pre-activation if the derivative cannot be computed from the value. For
// a sigmoid s it is the smaller of s and 1 - s, negative where s is the larger: with few bits, an s near 1 would not
// tell 1 - s, which is a factor of the derivative. Likewise, in 16 bits, for a tanh beyond 1/2 it is the distance
// from 1 or -1, with the sign of the tanh, and multiplied by `kFar`, which distinguishes it from a value.
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
// Those of the activation of c.
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
// Those of a gate, from what was kept of it.
template <Activation kKind, class Number>
CELLERATE_DEVICE ValueAndSlope value_and_slope(float kept) {
  if constexpr (kKind == Activation::kSigmoid) {
    const float smaller = fabsf(kept), larger = 1.0f - smaller;
    // By the sign bit, because zero can have either sign.
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

}  // namespace cellerate::gpu
