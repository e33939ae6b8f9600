// Packs weights and rows for gemm.h: panels in gate order, transposes, pairs of bfloat16.
//
// A unit panel holds kLanes units and their four gates: columns [i | f | c | o] of kLanes each. Units beyond H
// are zero everywhere.
#pragma once

#include <cstring>

#include "gemm.h"

namespace cellerate::CELLERATE_TARGET {

// The type of an element in storage, and whether its products are of pairs or of single floats.
template <Storage kStorage>
struct Element;
template <>
struct Element<Storage::kFloat32> {
  using Type = float;
  static constexpr bool kPairs = false;
  static F load(const float* p) { return Simd::load(p); }
  static F load_n(const float* p, int n) { return Simd::load_n(p, n); }
  static void store(float* p, F x) { Simd::store(p, x); }
  static void store_n(float* p, F x, int n) { Simd::store_n(p, x, n); }
};
template <>
struct Element<Storage::kBfloat16> {
  using Type = uint16_t;
  static constexpr bool kPairs = Simd::kBfloat16Products;
  static F load(const uint16_t* p) { return Simd::load_bf16(p); }
  static F load_n(const uint16_t* p, int n) { return Simd::load_bf16_n(p, n); }
  static void store(uint16_t* p, F x) { Simd::store_bf16(p, x); }
  static void store_n(uint16_t* p, F x, int n) { Simd::store_bf16_n(p, x, n); }
};

template <Storage kStorage>
constexpr bool kPairsOf = Element<kStorage>::kPairs;

// Gives function.operator()<kStorage>() for a storage known only now.
template <int32_t kFirst = 0, class Function>
auto by_storage(Storage storage, const Function& function) {
  constexpr int32_t kNext = kFirst + 1;
  if constexpr (kNext < static_cast<int32_t>(Storage::kCount)) {
    if (storage != static_cast<Storage>(kFirst)) return by_storage<kNext>(storage, function);
  }
  return function.template operator()<static_cast<Storage>(kFirst)>();
}

// Lanes of a vector that lie before `end`.
inline int lanes_before(Index first, Index end) { return static_cast<int>(smaller(kLanes, end - first)); }

// The first n lanes of x, and zeros in the others.
inline F first_lanes(F x, int n) {
  float lanes[kLanes];
  Simd::store(lanes, x);
  return Simd::load_n(lanes, n);
}

template <Storage kStorage>
F load_upto(const typename Element<kStorage>::Type* p, Index first, Index end) {
  const int n = lanes_before(first, end);
  return n == kLanes ? Element<kStorage>::load(p + first) : Element<kStorage>::load_n(p + first, n);
}
template <Storage kStorage>
void store_upto(typename Element<kStorage>::Type* p, F x, Index first, Index end) {
  const int n = lanes_before(first, end);
  if (n == kLanes) {
    Element<kStorage>::store(p + first, x);
  } else {
    Element<kStorage>::store_n(p + first, x, n);
  }
}

// Words along K that n elements take.
template <bool kPairs>
constexpr Index words(Index n) {
  return kPairs ? ceil_div(n, 2) : n;
}

// The distance in words between rows of n words: an odd number of cache lines, so that neighbouring rows do not fall
// into the same set of the cache.
constexpr Index spread(Index n) { return (ceil_div(n, 16) | 1) * 16; }

// The word of two vectors: the pair, or only the first where words are floats.
template <bool kPairs, class S = Simd>
F word(F low, [[maybe_unused]] F high) {
  if constexpr (kPairs) {
    return S::pair(low, high);
  } else {
    return low;
  }
}

// Packs weights (K, 4H) as [unit panel][words of K][kWidth], the given panels.
template <bool kPairs>
void pack_gates(const float* weights, Index k, Index units, float* out, Range panels) {
  constexpr Index kEach = kPairs ? 2 : 1;
  const Index depth = words<kPairs>(k);
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    const Index first = panel * kLanes;
    float* to = out + panel * depth * kWidth;
    for (Index row = 0; row < k; row += kEach) {
      for (int gate = 0; gate < 4; ++gate, to += kLanes) {
        const float* from = weights + (row * 4 + gate) * units;
        const F low = load_upto<Storage::kFloat32>(from, first, units);
        const F high = kPairs && row + 1 < k ? load_upto<Storage::kFloat32>(from + 4 * units, first, units)
                                             : Simd::set(0);
        Simd::store(to, word<kPairs>(low, high));
      }
    }
  }
}

// The bias (4H) as [unit panel][kWidth]; zeros if there is none.
inline void pack_bias(const float* bias, Index units, float* out, Index panels) {
  for (Index panel = 0; panel < panels; ++panel) {
    for (int gate = 0; gate < 4; ++gate, out += kLanes) {
      Simd::store(out, bias == nullptr
                           ? Simd::set(0)
                           : load_upto<Storage::kFloat32>(bias + gate * units, panel * kLanes, units));
    }
  }
}

// Packs weights (N, 4H), transposed, as [column panel of N][words of 4H in order][kWidth].
//
// K is in the order of unit panels, like the gradients of the gates: (panel, gate, lane); or `by_gate`, if each gate
// is summed separately: (gate, panel, lane).
template <bool kPairs>
void pack_transposed(const float* weights, Index n, Index units, bool by_gate, float* out, Range panels) {
  constexpr int kEach = kPairs ? 2 : 1;
  constexpr int kWords = kLanes / kEach;
  const Index unit_panels = ceil_div(units, kLanes);
  const Index depth = words<kPairs>(unit_panels * kWidth);
  float block[kLanes][kLanes];  // [unit][column]
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      const Index column = panel * kWidth + quarter * kLanes;
      for (Index unit_panel = 0; unit_panel < unit_panels; ++unit_panel) {
        const Index unit = unit_panel * kLanes;
        for (int gate = 0; gate < 4; ++gate) {
          for (int c = 0; c < kLanes; ++c) {
            float row[kLanes];
            Simd::store(row, column + c < n ? load_upto<Storage::kFloat32>(
                                                  weights + ((column + c) * 4 + gate) * units, unit, units)
                                            : Simd::set(0));
            for (int lane = 0; lane < kLanes; ++lane) block[lane][c] = row[lane];
          }
          const Index position = by_gate ? gate * unit_panels + unit_panel : unit_panel * 4 + gate;
          float* to = out + (panel * depth + position * kWords) * kWidth + quarter * kLanes;
          for (int lane = 0; lane < kLanes; lane += kEach, to += kWidth) {
            Simd::store(to, word<kPairs>(Simd::load(block[lane]), Simd::load(block[lane + kEach - 1])));
          }
        }
      }
    }
  }
}

// Copies a row of n elements to the words of A's row; the rest of the last word becomes zero.
template <Storage kStorage, bool kPairs>
void copy_row(const typename Element<kStorage>::Type* from, Index n, float* to) {
  if constexpr (kPairs) {
    static_assert(kStorage == Storage::kBfloat16);
    if (n % 2 != 0) to[n / 2] = 0;
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
  } else if constexpr (kStorage == Storage::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
  } else {
    for (Index first = 0; first < n; first += kLanes) {
      store_upto<Storage::kFloat32>(to, load_upto<kStorage>(from, first, n), first, n);
    }
  }
}

// The same, each element times its factor.
template <Storage kStorage, bool kPairs>
void scale_row(const typename Element<kStorage>::Type* from, const float* factors, Index n, float* to) {
  constexpr Storage kComputed = kPairs ? Storage::kBfloat16 : Storage::kFloat32;
  auto* elements = reinterpret_cast<typename Element<kComputed>::Type*>(to);
  if (kPairs && n % 2 != 0) elements[n] = 0;
  for (Index first = 0; first < n; first += kLanes) {
    const F scaled =
        Simd::mul(load_upto<kStorage>(from, first, n), load_upto<Storage::kFloat32>(factors, first, n));
    store_upto<kComputed>(elements, scaled, first, n);
  }
}

// Where the word (k, row) of a packed left factor lies: [tile of rows][K][kRows].
inline float* packed_at(float* data, Index depth, Index row, Index k) {
  return data + ((row / kRows) * depth + k) * kRows + row % kRows;
}

// Writes n elements as column k of a packed left factor, from row `first_row` (a multiple of kRows) on. With pairs,
// `even` and `odd` are neighbours on the summed axis; `odd` may be null for zeros. `scale`, if not null, has a factor
// for each element; the factors for `odd` lie `scale_stride` further on.
template <Storage kStorage, bool kPairs>
void pack_column(const typename Element<kStorage>::Type* even, const typename Element<kStorage>::Type* odd,
                 Index n, float* data, Index depth, Index first_row, Index k, const float* scale = nullptr,
                 Index scale_stride = 0) {
  float* to = packed_at(data, depth, first_row, k);
  int in_tile = 0;
  float lanes[kLanes];
  for (Index first = 0; first < n; first += kLanes) {
    F low = load_upto<kStorage>(even, first, n);
    F high = Simd::set(0);
    if (kPairs && odd != nullptr) high = load_upto<kStorage>(odd, first, n);
    if (scale != nullptr) {
      low = Simd::mul(low, load_upto<Storage::kFloat32>(scale, first, n));
      if (kPairs && odd != nullptr) {
        high = Simd::mul(high, load_upto<Storage::kFloat32>(scale + scale_stride, first, n));
      }
    }
    Simd::store(lanes, word<kPairs>(low, high));
    const int count = lanes_before(first, n);
    for (int lane = 0; lane < count; ++lane) {
      to[in_tile] = lanes[lane];
      if (++in_tile == kRows) {
        in_tile = 0;
        to += depth * kRows;
      }
    }
  }
}

}  // namespace cellerate::CELLERATE_TARGET
