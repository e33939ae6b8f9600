// What the forward and the backward recurrence of one LSTM layer have in common: their sizes and how they lay things out.
//
// Only the recurrence is here; the products over all steps (x·kernel, and the gradients of weights and inputs) are
// matrix products of the framework's. Dimensions: B batch, T steps, H units. The four gates of a unit, in Keras's order
// i, f, c, o, stand side by side, so that a thread reads them at once: (…, H, 4).
//
// A cluster of thread blocks owns `kRows` rows of the batch for all steps, and each of its blocks 32 units. A block keeps
// the recurrent weights of its units in registers; in every step it multiplies them with the h of all units, and sends
// the h of its own to all blocks of the cluster. No step waits for another cluster.
#pragma once

#include "activations.cuh"

namespace cellerate::gpu {

constexpr int kBlockUnits = 32;
constexpr int kThreads = 256;  // a warp for each 4 units, or for each 16 units of one gate

// What stands in the output of a masked step; the order is that of cellerate.kernels.spec.MASKED_OUTPUTS.
enum class MaskedOutput : int { kPreviousOutput, kPreviousState, kZero };

// What a kernel is compiled for.
//   Number: Bfloat16, Float16 or float, of weights, inputs, outputs and h; c and all sums are float.
//   units: H, rounded up to a multiple of 32.
//   rows: rows of the batch that a cluster has, a multiple of 8.
//   masked: whether there is a mask. dropped: whether h is multiplied by another mask for each gate.
template <class Number_, int units, int rows, Activation activation, Activation recurrent_activation,
          bool masked, bool dropped>
struct Plan {
  using Number = Number_;
  static constexpr int kUnits = units;
  static constexpr int kRows = rows;
  static constexpr Activation kActivation = activation;
  static constexpr Activation kRecurrentActivation = recurrent_activation;
  static constexpr bool kMasked = masked;
  static constexpr bool kDropped = dropped;

  static constexpr int kBlocks = units / kBlockUnits;  // of a cluster
  static constexpr int kTiles = rows / 8;              // of 8 rows: a product of a warp
  static constexpr int kGateCopies = dropped ? 4 : 1;  // of h, one for each gate
  static_assert(units % kBlockUnits == 0 && rows % 8 == 0);
};

// How numbers reach the matrix units: a float as the sum of two numbers of 19 bits, whose three larger products are
// added up ("3xTF32": Ootomo & Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
template <class Number>
struct Layout {
  static constexpr int kSplit = sizeof(Number) == 4 ? 2 : 1;
  static constexpr int kWord = 4 / sizeof(Number);      // numbers of a lane's part of a product
  static constexpr int kChunk = 16 / sizeof(Number);    // of a row of a matrix
  static constexpr int kProduct = 32 / sizeof(Number);  // of the sums of a product
  static constexpr int kRowChunks = kBlockUnits / kChunk;
};

// Stores a number as the matrix units take it, the second part of a split one `distance` further: what is left of that,
// the units cut off.
template <class Number>
CELLERATE_DEVICE void store_split(float x, Number* to, int distance) {
  if constexpr (Layout<Number>::kSplit == 2) {
    *to = upper_part(x);
    to[distance] = x - *to;
  } else {
    narrow(x, *to);
  }
}

// Where unit `unit` of row `row` stands in a block of 32 units: the chunks of a row change places from row to row, so
// that reading a matrix takes all banks once.
template <class Number>
CELLERATE_DEVICE constexpr int in_block(int row, int unit) {
  using L = Layout<Number>;
  const int chunk = unit / L::kChunk ^ (row / (8 / L::kRowChunks) & (L::kRowChunks - 1));
  return row * kBlockUnits + chunk * L::kChunk + unit % L::kChunk;
}

// The weights of a warp in products, as many as a thread has registers for, and the rest in shared memory.
template <class Number, int products>
class Weights {
  static constexpr int kMostInRegisters = 32;
  static constexpr int kInRegisters = products < kMostInRegisters ? products : kMostInRegisters;

 public:
  static constexpr int kShared = products - kInRegisters;
  struct alignas(16) Words {
    unsigned of[4];
  };

  // `shared` has room for kShared times as many as there are threads.
  CELLERATE_DEVICE void set_shared(Words* shared) { shared_ = shared + thread_index(); }
  CELLERATE_DEVICE void set(int product, int part, unsigned word) {
    (product < kInRegisters ? own_[product] : shared_[(product - kInRegisters) * kThreads]).of[part] = word;
  }
  // Adds the weights of a product times the parts b0 and b1 of h to `sum`; for split numbers, what is smaller by some
  // digits to `rest`. The second parts are not looked at for others.
  template <int count>
  CELLERATE_DEVICE void multiply(int product, const unsigned (&b)[Layout<Number>::kSplit][count][4], int half,
                                 float (&sum)[count][4], float (&rest)[count][4]) const {
    const Words words = product < kInRegisters ? own_[product] : shared_[(product - kInRegisters) * kThreads];
    if constexpr (Layout<Number>::kSplit == 2) {
      unsigned upper[4], lower[4];
      CELLERATE_UNROLL
      for (int part = 0; part < 4; ++part) {
        unsigned word = words.of[part];
        keep_in_loop(word);
        const float whole = from_bits(word), first = upper_part(whole);
        upper[part] = bits_of(first);
        lower[part] = bits_of(whole - first);
      }
      CELLERATE_UNROLL
      for (int n = 0; n < count; ++n) {
        multiply_add(Number{}, sum[n], upper, b[0][n][2 * half], b[0][n][2 * half + 1]);
        multiply_add(Number{}, rest[n], lower, b[0][n][2 * half], b[0][n][2 * half + 1]);
        multiply_add(Number{}, rest[n], upper, b[1][n][2 * half], b[1][n][2 * half + 1]);
      }
    } else {
      CELLERATE_UNROLL
      for (int n = 0; n < count; ++n) {
        multiply_add(Number{}, sum[n], words.of, b[0][n][2 * half], b[0][n][2 * half + 1]);
      }
    }
  }

 private:
  Words own_[kInRegisters];
  Words* shared_;
};

// Where a thread stands: in its block, and with what its block and its cluster own.
template <class P>
struct Place {
  const int thread = thread_index();
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int rank = cluster_rank();  // of the block in its cluster
  const int first_row = block_index() / P::kBlocks * P::kRows;
  const int first_unit = rank * kBlockUnits;
};

// Makes the barriers of the even steps and of the odd ones; on return those of all blocks of the cluster are there.
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

// What backward needs of a gate: its value, or what it was computed from where the derivative cannot be told from that.
template <Activation kKind>
CELLERATE_DEVICE float kept(float z, float value) {
  return derivative_from_value(kKind) ? value : z;
}

}  // namespace cellerate::gpu
