// Matrix products on packed weights, one register tile at a time.
//
// A word of A is broadcast, and a tile is up to kRows rows of four accumulators. So float and bfloat16 differ in only
// one instruction. With AMX, its tiles multiply bfloat16, except in products with a separate left factor for each gate.
//
// Sums run over K in order, whatever the tile, so a result does not depend on how rows and panels are divided.
#pragma once

#include "products/amx.h"

namespace cellerate::CELLERATE_TARGET {

// S is always Simd; it is a parameter so that targets without dot products need not define `dot`.
template <bool kPairs, class S = Simd>
inline F multiply_add(F a, F b, F sum) {
  if constexpr (kPairs) {
    return S::dot(a, b, sum);
  } else {
    return S::fma(a, b, sum);
  }
}

// sums[r][j] = product(x(r), the weights' vector j, sums[r][j]). Loads each vector once for all rows; the compiler would
// load it again for each product.
template <int kCount, int kVectors, class X, class Sum, class Product>
CELLERATE_PART_OF_CALLER inline void add_outer_product(X x, const float* weights, Sum& sums,
                                                       Product product) {
  F left[kCount];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) left[r] = x(r);
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const F w = kCount > 1 ? Simd::load_shared(weights + j * kLanes) : Simd::load(weights + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) sums[r][j] = product(left[r], w, sums[r][j]);
  }
}

template <int kCount>
struct VectorCount {
  static constexpr int value = kCount;
};

// Whether products take only as many vectors as they need of a last panel. Small vectors waste little, and a target that
// multiplies bfloat16 leaves nearly all products of floats to another target.
template <bool kPairs>
constexpr bool kNarrows = !kPairs && !Simd::kBfloat16Products && kLanes >= 8;

// Calls body(VectorCount<n>{}) for n = `vectors`, from 1 to 4; always for 4 where products do not narrow.
template <bool kPairs, class Body>
CELLERATE_PART_OF_CALLER inline void with_vectors([[maybe_unused]] int vectors, const Body& body) {
  if constexpr (kNarrows<kPairs>) {
    if (vectors == 1) return body(VectorCount<1>{});
    if (vectors == 2) return body(VectorCount<2>{});
    if (vectors == 3) return body(VectorCount<3>{});
  }
  body(VectorCount<4>{});
}

// kCount rows of kVectors accumulators.
template <bool kPairs, int kCount, int kVectors = 4>
struct Tile {
  F sum[kCount][kVectors];

  CELLERATE_PART_OF_CALLER void clear() {
    for (auto& row : sum) {
      for (F& part : row) part = Simd::set(0);
    }
  }
  CELLERATE_PART_OF_CALLER void load(int row, const float* p) {
    for (int j = 0; j < kVectors; ++j) sum[row][j] = Simd::load(p + j * kLanes);
  }
  // Adds vectors in memory to a row.
  CELLERATE_PART_OF_CALLER void add_to(int row, const float* p) {
    for (int j = 0; j < kVectors; ++j) sum[row][j] = Simd::add(sum[row][j], Simd::load(p + j * kLanes));
  }
  CELLERATE_PART_OF_CALLER void store(int row, float* p) const {
    for (int j = 0; j < kVectors; ++j) Simd::store(p + j * kLanes, sum[row][j]);
  }

  // Adds A·B, where A's row r lies at a + r * a_row, word after word.
  CELLERATE_PART_OF_CALLER void add_rows(const float* a, Index a_row, const float* b, Index k) {
    for (Index i = 0; i < k; ++i, b += kWidth) add(b, [&](int r) { return Simd::set(a[r * a_row + i]); });
  }
  // Adds A·B, where A lies as [K][kRows].
  CELLERATE_PART_OF_CALLER void add_packed(const float* a, const float* b, Index k) {
    for (Index i = 0; i < k; ++i, a += kRows, b += kWidth) add(b, [&](int r) { return Simd::set(a[r]); });
  }
  // Like the two above, with a separate A for each of the four vectors of B.
  CELLERATE_PART_OF_CALLER void add_rows_by_gate(const float* const (&a)[4], Index a_row, const float* b,
                                                 Index k) {
    for (Index i = 0; i < k; ++i, b += kWidth) {
      add_by_gate(b, [&](int r, int j) { return Simd::set(a[j][r * a_row + i]); });
    }
  }
  CELLERATE_PART_OF_CALLER void add_packed_by_gate(const float* const (&a)[4], const float* b, Index k) {
    for (Index i = 0; i < k; ++i, b += kWidth) {
      add_by_gate(b, [&](int r, int j) { return Simd::set(a[j][i * kRows + r]); });
    }
  }

 private:
  template <class Broadcast>
  CELLERATE_PART_OF_CALLER void add(const float* b, Broadcast broadcast) {
    add_outer_product<kCount, kVectors>(broadcast, b, sum, multiply_add<kPairs>);
  }
  template <class Broadcast>
  CELLERATE_PART_OF_CALLER void add_by_gate(const float* b, Broadcast broadcast) {
    static_assert(kVectors == 4);
    const F weights[4] = {Simd::load(b), Simd::load(b + kLanes), Simd::load(b + 2 * kLanes),
                          Simd::load(b + 3 * kLanes)};
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      for (int j = 0; j < 4; ++j) {
        sum[r][j] = multiply_add<kPairs>(broadcast(r, j), weights[j], sum[r][j]);
      }
    }
  }
};

template <int kCount>
struct Rows {
  static constexpr int value = kCount;
};

// Calls body(Rows<n>{}, first row) for n = `rows`, at most kMost.
template <int kMost = kRows, class Body>
CELLERATE_PART_OF_CALLER inline void for_tile(Index rows, Index row, const Body& body) {
  if constexpr (kMost > 0) rows == kMost ? body(Rows<kMost>{}, row) : for_tile<kMost - 1>(rows, row, body);
}

// Calls body(Rows<n>{}, first row) for tiles that cover the range. The last two tiles share the rows that are left,
// because a tile of one or two rows loads as many weights for less arithmetic.
template <class Body>
inline void for_tiles(Range rows, const Body& body) {
  for (Index row = rows.begin, count; row < rows.end; row += count) {
    const Index left = rows.end - row;
    const bool shared = kRows < left && left < smaller(kRows + 4, 2 * kRows);
    count = shared ? left - left / 2 : smaller(left, kRows);
    for_tile(count, row, body);
  }
}

// The same for tiles of the first vectors of a panel, with fewer sizes of tiles: there is less to gain, and each would be
// one more copy of the code.
template <class Body>
inline void for_narrow_tiles(Range rows, const Body& body) {
  constexpr int kHalf = larger(1, kRows / 2);
  for (Index row = rows.begin, count; row < rows.end; row += count) {
    const Index left = rows.end - row;
    count = left >= kRows ? kRows : left >= kHalf ? kHalf : 1;
    count == kRows   ? body(Rows<kRows>{}, row)
    : count == kHalf ? body(Rows<kHalf>{}, row)
                     : body(Rows<1>{}, row);
  }
}

// sums[kRows][kWidth] = a tile of a packed left factor times the first `vectors` vectors of a panel. A function of its
// own keeps the sums in registers, because their address does not escape.
template <bool kPairs>
CELLERATE_ONE_COPY void multiply_tile(const float* left, const float* b, Index k, int vectors, float* sums) {
  with_vectors<kPairs>(vectors, [&](auto count) {
    Tile<kPairs, kRows, decltype(count)::value> tile;
    tile.clear();
    tile.add_packed(left, b, k);
    for (int r = 0; r < kRows; ++r) tile.store(r, sums + r * kWidth);
  });
}

// c[panel][row] = A·B + start for the given rows and panels, where start is the old value of c if `add`, else the
// bias.
//
// Args: b: [panel][K][kWidth]. bias: [panel][kWidth], or null for zeros.
template <bool kPairs>
CELLERATE_ONE_COPY void multiply(const Left& a, const float* b, const float* bias, const Panels& c,
                                 Range rows, Range panels, bool add = false) {
  // B passes through the first-level cache for every tile of rows; this many words of K stay in the second level.
  constexpr Index kDeep = 1024;
  const Index k = a.run * a.blocks;
  const Index blocks_at_once = larger(1, kDeep / a.run);
  if constexpr (kTiled<kPairs>) {
    for (Index first = 0; first < a.blocks; first += blocks_at_once) {
      const Index blocks = smaller(blocks_at_once, a.blocks - first);
      for (Index panel = panels.begin; panel < panels.end; ++panel) {
        const float* weights = b + (panel * k + first * a.run) * kWidth;
        for_blocks(rows, [&](Index row, Index count) {
          float* to = c.at(panel, row);
          const bool more = first > 0 || add;
          const float* start = more ? to : bias != nullptr ? bias + panel * kWidth : nullptr;
          multiply_block(a.data + first * a.block + row * a.row, a, blocks, weights, start, more ? kWidth : 0,
                         to, count);
        });
      }
    }
    return;
  }
  for (Index first = 0; first < a.blocks; first += blocks_at_once) {
    const Index last = smaller(a.blocks, first + blocks_at_once);
    for (Index panel = panels.begin; panel < panels.end; ++panel) {
      const float* weights = b + (panel * k + first * a.run) * kWidth;
      with_vectors<kPairs>(c.last.used(panel), [&](auto vectors) {
        const auto run = [&](auto count, Index row) {
          constexpr int kCount = decltype(count)::value;
          Tile<kPairs, kCount, decltype(vectors)::value> tile;
          tile.clear();
          if (first > 0 || add) {
            for (int r = 0; r < kCount; ++r) tile.load(r, c.at(panel, row + r));
          } else if (bias != nullptr) {
            for (int r = 0; r < kCount; ++r) tile.load(r, bias + panel * kWidth);
          }
          const float* part = weights;
          const float* left = a.data + first * a.block + row * a.row;
          int gate = 0;
          for (Index n = first; n < last;) {
            // A last block with a tail is multiplied gate by gate.
            const bool cut = a.tail > 0 && n + 1 == a.blocks;
            tile.add_rows(left, a.row, part, cut ? a.tail : a.run);
            left += cut ? a.tail_gate : a.block;
            part += (cut ? a.run / 4 : a.run) * kWidth;
            n += !cut || ++gate == 4;
          }
          for (int r = 0; r < kCount; ++r) tile.store(r, c.at(panel, row + r));
        };
        if constexpr (decltype(vectors)::value == 4) {
          for_tiles(rows, run);
        } else {
          for_narrow_tiles(rows, run);
        }
      });
    }
  }
}

// Like multiply(), with a separate left factor for each gate, where b's panels are unit panels: a.data belongs to the
// first gate, and the other gates follow, `gate` words apart. There are no blocks.
template <bool kPairs>
void multiply_by_gate(const Left& a, Index gate, const float* b, const float* bias, const Panels& c,
                      Range rows, Range panels) {
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    for_tiles(rows, [&](auto count, Index row) {
      constexpr int kCount = decltype(count)::value;
      Tile<kPairs, kCount> tile;
      for (int r = 0; r < kCount; ++r) tile.load(r, bias + panel * kWidth);
      const float* by_gate[4];
      for (int j = 0; j < 4; ++j) by_gate[j] = a.data + j * gate + row * a.row;
      tile.add_rows_by_gate(by_gate, a.row, b + panel * a.run * kWidth, a.run);
      for (int r = 0; r < kCount; ++r) tile.store(r, c.at(panel, row + r));
    });
  }
}

// c[panel][row] = the sum over gates of factors(gate, row) · (A of the gate · B of the gate), added to c if `add`.
//
// Args: a: block n and gate j of row r lie at data + n * block + r * row + j * run. b: [panel][gate][K][kWidth].
// factors: gives a row of `columns` floats.
template <bool kPairs, class Factors>
void multiply_gates_apart(const Left& a, const float* b, Index columns, Factors factors, const Panels& c,
                          Range rows, Range panels, bool add) {
  const Index depth = a.run * a.blocks;
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    for_tiles(rows, [&](auto count, Index row) {
      constexpr int kCount = decltype(count)::value;
      for (int gate = 0; gate < 4; ++gate) {
        Tile<kPairs, kCount> tile;
        tile.clear();
        const float* weights = b + (panel * 4 + gate) * depth * kWidth;
        for (Index n = 0; n < a.blocks; ++n, weights += a.run * kWidth) {
          const Index words = a.tail > 0 && n + 1 == a.blocks ? a.tail : a.run;
          tile.add_rows(a.data + n * a.block + row * a.row + gate * a.run, a.row, weights, words);
        }
        for (int r = 0; r < kCount; ++r) {
          const float* factor = factors(gate, row + r);
          float* to = c.at(panel, row + r);
          for (int j = 0; j < 4; ++j, to += kLanes) {
            const Index column = panel * kWidth + j * kLanes;
            const Index left = larger(0, smaller(kLanes, columns - column));
            const F scale = Simd::load_n(factor + smaller(column, columns), static_cast<int>(left));
            Simd::store(to,
                        Simd::fma(tile.sum[r][j], scale, add || gate > 0 ? Simd::load(to) : Simd::set(0)));
          }
        }
      }
    });
  }
}

}  // namespace cellerate::CELLERATE_TARGET
