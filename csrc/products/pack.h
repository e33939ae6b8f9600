// Packs weights and rows for gemm.h: panels, transposes, pairs of bfloat16.
#pragma once

#include <cstring>
#include <numeric>
#include <utility>

#include "products/gemm.h"

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

// Calls function.operator()<kStorage>() for a storage known only at run time.
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

// The words along K of n elements.
template <bool kPairs>
constexpr Index words(Index n) {
  const Index found = kPairs ? ceil_div(n, 2) : n;
  return kTiled<kPairs> ? round_up(found, kTileWords) : found;
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

// Packs weights (K, N) as [panel][words of K][kWidth], the given panels.
//
// `columns(panel, vector)` gives the columns of each of a panel's four vectors; columns beyond the end are zeros.
template <bool kPairs, class Columns>
void pack_panels(const float* weights, Index k, Index n, const Columns& columns, float* out, Range panels) {
  constexpr Index kEach = kPairs ? 2 : 1;
  const Index depth = words<kPairs>(k);
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    float* to = out + panel * depth * kWidth;
    for (Index row = 0; row < k; row += kEach) {
      for (Index vector = 0; vector < 4; ++vector, to += kLanes) {
        const Range from = columns(panel, vector);
        const auto part = [&](Index at) {
          return at < k && from.begin < from.end
                     ? load_upto<Storage::kFloat32>(weights + at * n, from.begin, from.end)
                     : Simd::set(0);
        };
        Simd::store(to, word<kPairs>(part(row), kPairs ? part(row + 1) : Simd::set(0)));
      }
    }
    // Pads to whole tiles.
    for (float* end = out + (panel + 1) * depth * kWidth; to < end; to += kLanes)
      Simd::store(to, Simd::set(0));
  }
}

// Packs a bias (N) as [panel][kWidth], with columns as above; zeros if `bias` is null.
template <class Columns>
void pack_bias(const float* bias, const Columns& columns, float* out, Index panels) {
  for (Index panel = 0; panel < panels; ++panel) {
    for (Index vector = 0; vector < 4; ++vector, out += kLanes) {
      const Range from = columns(panel, vector);
      const bool there = bias != nullptr && from.begin < from.end;
      Simd::store(out, there ? load_upto<Storage::kFloat32>(bias, from.begin, from.end) : Simd::set(0));
    }
  }
}

// From each pair of blocks of kStride lanes, the first blocks of a and b, or the second blocks.
template <int kStride, bool kSecond, int... kLane>
F exchange(F a, F b, std::integer_sequence<int, kLane...>) {
  constexpr int kOfA = kSecond ? kStride : 0, kOfB = kLanes + kOfA - kStride;
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, ((kLane & kStride) == 0 ? kLane + kOfA : kLane + kOfB)...);
#else  // GCC before 12
  typedef int Places __attribute__((vector_size(sizeof(F))));
  return __builtin_shuffle(a, b, Places{((kLane & kStride) == 0 ? kLane + kOfA : kLane + kOfB)...});
#endif
}
// Transposes kLanes vectors in place, by blocks that are half as large each time.
template <int kStride = kLanes / 2>
void transpose(F (&rows)[kLanes]) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  for (int r = 0; r < kLanes; ++r) {
    if ((r & kStride) != 0) continue;
    const F a = rows[r], b = rows[r + kStride];
    rows[r] = exchange<kStride, false>(a, b, kAll);
    rows[r + kStride] = exchange<kStride, true>(a, b, kAll);
  }
  if constexpr (kStride > 1) transpose<kStride / 2>(rows);
}

// Packs weights (K, N), transposed, as [panel of K's][words of all blocks][kWidth].
//
// A block is a vector of columns, given by `columns(block)`; columns beyond the end are zeros.
template <bool kPairs, class Columns>
void pack_transposed(const float* weights, Index k, Index n, Index blocks, const Columns& columns, float* out,
                     Range panels) {
  constexpr int kEach = kPairs ? 2 : 1;
  constexpr int kWords = kLanes / kEach;
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      const Index first = panel * kWidth + quarter * kLanes;
      for (Index block = 0; block < blocks; ++block) {
        const Range from = columns(block);
        F columns_of[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          columns_of[r] = first + r < k
                              ? load_upto<Storage::kFloat32>(weights + (first + r) * n, from.begin, from.end)
                              : Simd::set(0);
        }
        transpose(columns_of);
        float* to = out + (panel * blocks + block) * kWords * kWidth + quarter * kLanes;
        for (int lane = 0; lane < kLanes; lane += kEach, to += kWidth) {
          Simd::store(to, word<kPairs>(columns_of[lane], columns_of[lane + kEach - 1]));
        }
      }
    }
  }
}

// Clears the words of A's row beyond n pairs' elements.
template <bool kPairs>
void clear_beyond(Index n, float* to) {
  const auto whole = static_cast<size_t>(2 * words<kPairs>(n));
  std::memset(reinterpret_cast<uint16_t*>(to) + n, 0, (whole - static_cast<size_t>(n)) * sizeof(uint16_t));
}

// Copies a row of n elements to the words of A's row; the rest of the last word, or tile, becomes zero.
template <Storage kStorage, bool kPairs>
void copy_row(const typename Element<kStorage>::Type* from, Index n, float* to) {
  if constexpr (kPairs) {
    static_assert(kStorage == Storage::kBfloat16);
    clear_beyond<kPairs>(n, to);
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
  } else if constexpr (kStorage == Storage::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
  } else {
    for (Index first = 0; first < n; first += kLanes) {
      store_upto<Storage::kFloat32>(to, load_upto<kStorage>(from, first, n), first, n);
    }
  }
}

// Copies a row like the function above, with each element times its factor.
template <Storage kStorage, bool kPairs>
void scale_row(const typename Element<kStorage>::Type* from, const float* factors, Index n, float* to) {
  constexpr Storage kComputed = kPairs ? Storage::kBfloat16 : Storage::kFloat32;
  auto* elements = reinterpret_cast<typename Element<kComputed>::Type*>(to);
  if constexpr (kPairs) clear_beyond<kPairs>(n, to);
  for (Index first = 0; first < n; first += kLanes) {
    const F scaled =
        Simd::mul(load_upto<kStorage>(from, first, n), load_upto<Storage::kFloat32>(factors, first, n));
    store_upto<kComputed>(elements, scaled, first, n);
  }
}

// The index of word (k, row) in a packed left factor: [tile of rows][K][kRows], or [row][K] for the tiles of AMX.
template <bool kPairs>
float* packed_at(float* data, Index depth, Index row, Index k) {
  if constexpr (kTiled<kPairs>) return data + row * depth + k;
  return data + ((row / kRows) * depth + k) * kRows + row % kRows;
}
// The words of a packed left factor of n rows: room for the whole tiles of vectors and of AMX, both of which read it.
template <bool kPairs>
Index packed_words(Index n, Index depth) {
  const Index rows = round_up(n, kRows);
  return (kTiled<kPairs> ? larger(rows, round_up(n, kBlockRows)) : rows) * depth;
}
// The words from row to row of a packed left factor: from tile to tile, too, an odd number of cache lines.
template <bool kPairs>
Index packed_depth(Index k) {
  constexpr Index kWhole = 16 / std::gcd(16, kRows);
  return kTiled<kPairs> ? spread(k) : (ceil_div(k, kWhole) | 1) * kWhole;
}

// Writes n elements as column k of a packed left factor, from row `first_row` (a multiple of kRows) on. With pairs,
// `even` and `odd` are neighbours on the summed axis; `odd` may be null for zeros. `scale`, if not null, has a factor
// for each element; the factors for `odd` lie `scale_stride` further on.
template <Storage kStorage, bool kPairs>
void pack_column(const typename Element<kStorage>::Type* even, const typename Element<kStorage>::Type* odd,
                 Index n, float* data, Index depth, Index first_row, Index k, const float* scale = nullptr,
                 Index scale_stride = 0) {
  float* to = packed_at<kPairs>(data, depth, first_row, k);
  Index first = 0;
  if constexpr (kStorage == Storage::kFloat32 && !kPairs) {
    for (; scale == nullptr && first + kRows <= n; first += kRows, to += depth * kRows)
      std::memcpy(to, even + first, kRows * sizeof(float));
  }
  int in_tile = 0;
  float lanes[kLanes];
  for (; first < n; first += kLanes) {
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
    if constexpr (kTiled<kPairs>) {
      for (int lane = 0; lane < count; ++lane, to += depth) *to = lanes[lane];
      continue;
    }
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
