// The layout of numbers for the matrix units: h in panels of shared memory; weights in registers, shared memory and
// global memory.
#pragma once

#include "device.cuh"

namespace cellerate::gpu {

// The number of units in a panel. h lies in panels.
constexpr int kPanelUnits = 32;

// How numbers reach the matrix units. A float is split into the sum of two numbers of 19 bits, and the three larger
// of their four products are added up ("3xTF32": Ootomo & Yokota, "Recovering single precision accuracy from Tensor
// Cores", 2022).
template <class Number>
struct Layout {
  static constexpr int kSplit = 1;
  // Whether numbers are rounded first: the matrix units cut off their last bits, which would make all products smaller.
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

// Stores a number in the form for the matrix units. If it is split, the second part is stored `distance` further on;
// the units cut off that part's last bits.
template <class Number>
CELLERATE_DEVICE void store_split(float x, Number* to, int distance) {
  if constexpr (Layout<Number>::kSplit == 2) {
    *to = upper_part(x);
    to[distance] = x - *to;
  } else {
    narrow(Layout<Number>::kRounds ? upper_part(x) : x, *to);
  }
}

// The index of unit `unit` of row `row` in a panel. The chunks of a row are swizzled by the row, so that reading a
// matrix uses each bank once.
template <class Number>
CELLERATE_DEVICE constexpr int in_panel(int row, int unit) {
  using L = Layout<Number>;
  const int chunk = unit / L::kChunk ^ (row / (8 / L::kRowChunks) & (L::kRowChunks - 1));
  return row * kPanelUnits + chunk * L::kChunk + unit % L::kChunk;
}

// The memory of a thread's weights: the number of products with weights in registers and in shared memory. The other
// weights are in global memory, and each step reads them again.
template <int registers, int shared>
struct Tiers {
  static constexpr int kRegisters = registers;
  static constexpr int kShared = shared;
};

// A thread's four words of the weights of one product.
struct alignas(16) Words {
  unsigned of[4];
};

// The weights of a warp: `tiles` of the `block_tiles` tiles of 16 rows into which the matrix of its block is cut,
// with all their products. They are used product after product, and within a product tile after tile. The weights in
// global memory are spread evenly over that order and read a few uses ahead, so that memory is always busy.
// `read_ahead` starts to read the first of them for a step; call it where nothing has to wait for them.
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
  // Whether a step may use the weights more than once, and whether they all stay in registers.
  static constexpr bool kReusable = kStreamed == 0, kAllInRegisters = kRegisters == kCount;

  // Loads the weights into registers and shared memory.
  //   packed: this block's weights (products, block_tiles, 32), in the order of
  //     cellerate.kernels.lstm.cuda.plan.Packing.
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

  // This thread's weights of a product.
  CELLERATE_DEVICE const Words& in_registers(int product, int tile) const {
    static_assert(kAllInRegisters);
    return own_[product * tiles + tile];
  }

  // Adds the weights of a product times h to `sum`. Each turn must use all weights, in their order.
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
  // The number of chosen items among the first n, if `some` of `all` are chosen at even distances.
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

}  // namespace cellerate::gpu
