// A GPU on one thread of the CPU, for the tests of the CUDA kernels: the functions of kernels/cuda/device.cuh and
// wide_products.cuh in C++, on the fibers of cuda_cluster.h.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "cuda_cluster.h"

#define CELLERATE_DEVICE inline
#define CELLERATE_UNROLL
#define __global__
#define __grid_constant__
#define __cluster_dims__(blocks)
#define __launch_bounds__(threads, blocks)

namespace cellerate::gpu {

inline float widen(Bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline void narrow(float x, Bfloat16& to) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  to.bits = static_cast<unsigned short>((nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Read the bits as a float with another exponent and scale it, which is right for subnormal numbers, too.
  const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}
inline void narrow(float x, Float16& to) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  uint32_t found;
  if (rest > 0x7f800000) {
    found = 0x7fff;
  } else if (rest >= 0x47800000) {
    found = 0x7c00;
  } else {
    const float magnitude = std::bit_cast<float>(rest);
    const int exponent = std::max(std::ilogb(magnitude == 0 ? 1e-30f : magnitude), -14);
    const float unit = std::ldexp(1.0f, exponent - 10);
    const float rounded = std::nearbyint(magnitude / unit) * unit;
    found = rounded >= 65536.0f ? 0x7c00 : std::bit_cast<uint32_t>(rounded * 0x1p-112f) >> 13;
  }
  to.bits = static_cast<unsigned short>(sign | found);
}

inline float widen(float x) { return x; }
inline float widen(Tf32 x) { return x.value; }
inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, Tf32& to) { to.value = x; }
inline unsigned bits_of(float x) { return std::bit_cast<unsigned>(x); }
inline float from_bits(unsigned bits) { return std::bit_cast<float>(bits); }

inline float upper_part(float x) { return std::isnan(x) ? x : from_bits((bits_of(x) + 0x1000) & 0xffffe000); }
inline void keep_in_loop(unsigned&) {}

inline unsigned multiply_each(float, unsigned a, unsigned b) { return bits_of(from_bits(a) * from_bits(b)); }
inline unsigned multiply_each(Tf32, unsigned a, unsigned b) {
  return bits_of(upper_part(from_bits(a) * from_bits(b)));
}
template <class Number>
unsigned multiply_each(Number, unsigned a, unsigned b) {
  const auto half = [](unsigned word, int which) {
    return widen(Number{static_cast<unsigned short>(word >> 16 * which)});
  };
  Number products[2];
  for (int which = 0; which < 2; ++which) narrow(half(a, which) * half(b, which), products[which]);
  return products[0].bits | static_cast<unsigned>(products[1].bits) << 16;
}

// The GPU's tanh has 11 bits and may be wrong by this much, in the same direction everywhere.
inline float tanh_11_bits(float x) { return std::tanh(x) * (1.0f - 0x1p-11f); }
inline float exp2_22_bits(float x) { return std::exp2(x); }
inline float reciprocal_22_bits(float x) { return 1.0f / x; }
inline int thread_index() { return emulated::here().thread(); }
inline int block_index() { return emulated::here().block().index; }
inline int cluster_rank() { return emulated::here().block().rank; }
inline unsigned char* shared_memory() { return emulated::here().block().shared; }
inline void sync_block() { emulated::here().meet_block(); }
inline void sync_cluster() { emulated::here().meet_cluster(); }

inline float from_lane_xor(float x, int distance) {
  emulated::Lane& mine = emulated::here().lane();
  mine.in = x;
  emulated::here().meet_warp([&](emulated::Lane* lanes) {
    for (int n = 0; n < 32; ++n) lanes[n].out = lanes[n ^ distance].in;
  });
  return mine.out;
}

// Each lane provides a number; the last lane to come computes the result of each.
template <class T, class Work>
T exchange_in_warp(T x, const Work& work) {
  emulated::Lane& mine = emulated::here().lane();
  std::memcpy(&mine.word, &x, sizeof x);
  emulated::here().meet_warp([&](emulated::Lane* lanes) {
    T all[32];
    for (int n = 0; n < 32; ++n) std::memcpy(&all[n], &lanes[n].word, sizeof(T));
    work(all);
    for (int n = 0; n < 32; ++n) std::memcpy(&lanes[n].word, &all[n], sizeof(T));
  });
  std::memcpy(&x, &mine.word, sizeof x);
  return x;
}
inline unsigned largest_in_warp(unsigned x) {
  return exchange_in_warp(x, [](auto& all) { std::fill_n(all, 32, *std::max_element(all, all + 32)); });
}
inline unsigned smallest_in_warp(unsigned x) {
  return exchange_in_warp(x, [](auto& all) { std::fill_n(all, 32, *std::min_element(all, all + 32)); });
}
inline unsigned sum_in_warp(unsigned x) {
  return exchange_in_warp(x, [](auto& all) { std::fill_n(all, 32, std::accumulate(all, all + 32, 0u)); });
}
inline double sum_in_warp(double x) {
  // In the order of the GPU.
  return exchange_in_warp(x, [](auto& all) {
    for (int distance = 16; distance > 0; distance /= 2) {
      for (int n = 0; n < distance; ++n) all[n] += all[n + distance];
    }
    std::fill_n(all, 32, all[0]);
  });
}
inline double running_sum_in_warp(double x) {
  return exchange_in_warp(x, [](auto& all) {
    for (int distance = 1; distance < 32; distance *= 2) {
      for (int n = 31; n >= distance; --n) all[n] += all[n - distance];
    }
  });
}
inline double from_lane(double x, int lane) {
  return exchange_in_warp(x, [&](auto& all) { std::fill_n(all, 32, all[lane]); });
}
inline unsigned from_lane(unsigned x, int lane) {
  return exchange_in_warp(x, [&](auto& all) { std::fill_n(all, 32, all[lane]); });
}
inline unsigned long long from_lane_xor(unsigned long long x, int distance) {
  return exchange_in_warp(x, [&](auto& all) {
    for (int n = 0; n < 32; ++n) {
      if (n < (n ^ distance)) std::swap(all[n], all[n ^ distance]);
    }
  });
}
inline unsigned lanes_where(bool yes) {
  return exchange_in_warp(unsigned{yes}, [](auto& all) {
    unsigned bits = 0;
    for (int n = 0; n < 32; ++n) bits |= all[n] << n;
    std::fill_n(all, 32, bits);
  });
}
inline void sync_warp() {
  emulated::here().meet_warp([](emulated::Lane*) {});
}
inline int count_bits(unsigned x) { return std::popcount(x); }
inline int lowest_bit(unsigned x) { return std::countr_zero(x); }
inline int highest_bit(unsigned x) { return 31 - std::countl_zero(x); }

inline void init_barrier(Barrier& barrier, int arrivals = 1) { emulated::here().make(&barrier, arrivals); }
inline void publish_barriers() {}
// The address in another block's shared memory that corresponds to `p` in this block's.
template <class T>
T* address_in(int block, T* p) {
  unsigned char *here = emulated::here().block().shared, *there = emulated::here().blocks.at(block)->shared;
  return reinterpret_cast<T*>(there + (reinterpret_cast<unsigned char*>(p) - here));
}
inline void expect_bytes(Barrier& barrier, int bytes) { emulated::here().arrive(&barrier, bytes); }
inline void arrive(Barrier& barrier) { emulated::here().arrive(&barrier, 0); }
inline void arrive_in(int block, Barrier& barrier) {
  emulated::here().arrive(address_in(block, &barrier), 0);
}
inline void wait_for(Barrier& barrier, int parity) {
  emulated::BarrierState& state = emulated::here().state(&barrier);
  // As on the GPU: the phase of this parity is over while the barrier is in a phase of the other parity.
  emulated::here().wait([&] { return (state.phase & 1) != parity; });
}
inline void wait_forever_for(Barrier& barrier, int parity) { wait_for(barrier, parity); }
inline void order_before_copies() {}
namespace emulated {
inline void start_copy(void* to, const void* from, int bytes, Barrier* barrier, bool* done = nullptr) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    throw std::runtime_error("a copy is not of multiples of 16 bytes");
  }
  here().start(
      {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, barrier, done});
}
}  // namespace emulated
inline void copy_to_block(int block, void* to, const void* from, int bytes, Barrier& barrier) {
  emulated::start_copy(address_in(block, static_cast<unsigned char*>(to)), from, bytes,
                       address_in(block, &barrier));
}
template <int count>
void store_to_block(int block, void* to, const unsigned (&words)[count], Barrier& barrier) {
  static_assert(count == 2 || count == 4);
  if (reinterpret_cast<uintptr_t>(to) % sizeof words != 0) throw std::runtime_error("a store is not aligned");
  emulated::Copy store{address_in(block, static_cast<unsigned char*>(to)), nullptr, sizeof words,
                       address_in(block, &barrier)};
  std::copy_n(words, count, store.held.begin());
  emulated::here().start(store);
}
inline void copy_from_memory(void* to, const void* from, int bytes, Barrier& barrier) {
  emulated::start_copy(to, from, bytes, &barrier);
}
// The copy reaches each block at a different time.
inline void copy_from_memory_to_blocks(int blocks, void* to, const void* from, int bytes, Barrier& barrier) {
  for (int block = 0; block < blocks; ++block) copy_to_block(block, to, from, bytes, barrier);
}
inline void copy_to_memory(void* to, const void* from, int bytes) {
  bool done = false;
  emulated::start_copy(to, from, bytes, nullptr, &done);
  emulated::here().wait([&] { return done; });
}
inline void order_before_copies_from_memory() {}
inline void order_before_copies_of_warp() {}
inline void prefetch_bytes(const void* from, int bytes) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    throw std::runtime_error("what is read ahead is not of multiples of 16 bytes");
  }
}
template <int count>
void give_registers_until() {}
template <int count>
void take_registers_until() {}

inline void load_words(unsigned (&words)[4], const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) throw std::runtime_error("words are not of 16 bytes");
  std::memcpy(words, from, sizeof words);
}

inline void load_matrices(unsigned (&parts)[4], const void* row) {
  emulated::Lane& mine = emulated::here().lane();
  mine.row = row;
  emulated::here().meet_warp([](emulated::Lane* lanes) {
    for (int n = 0; n < 32; ++n) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto* from = static_cast<const unsigned char*>(lanes[matrix * 8 + n / 4].row);
        std::memcpy(&lanes[n].parts[matrix], from + n % 4 * 4, 4);
      }
    }
  });
  std::memcpy(parts, mine.parts, sizeof parts);
}

// A float rounded towards zero: the matrix units truncate their sums.
inline float cut_off(double x) {
  const float near = static_cast<float>(x);
  return std::isfinite(near) && std::abs(near) > std::abs(x) ? std::nextafter(near, 0.0f) : near;
}

// The product of a warp from the operands of its lanes.
template <class Number>
void multiply_add(emulated::Lane* lanes) {
  // A word holds one number or two.
  constexpr int kWord = 4 / sizeof(Number), kSums = 8 * kWord;
  const auto number = [](unsigned word, int which) {
    if constexpr (kWord == 1) {
      return from_bits(word & 0xffffe000);
    } else {
      return widen(Number{static_cast<unsigned short>(which ? word >> 16 : word & 0xffff)});
    }
  };
  float a[16][kSums], b[kSums][8];
  for (int n = 0; n < 32; ++n) {
    const int group = n / 4, first = n % 4 * kWord;
    for (int which = 0; which < kWord; ++which) {
      for (int half = 0; half < 2; ++half) {
        const int k = first + which + half * 4 * kWord;
        a[group][k] = number(lanes[n].a[2 * half], which);
        a[group + 8][k] = number(lanes[n].a[2 * half + 1], which);
        b[k][group] = number(lanes[n].b[half], which);
      }
    }
  }
  for (int n = 0; n < 32; ++n) {
    for (int part = 0; part < 4; ++part) {
      const int row = n / 4 + (part >> 1) * 8, column = n % 4 * 2 + (part & 1);
      double total = lanes[n].sum[part];
      for (int k = 0; k < kSums; ++k) total += static_cast<double>(a[row][k]) * b[k][column];
      lanes[n].sum[part] = cut_off(total);
    }
  }
}

template <class Number>
void multiply_add(Number, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulated::Lane& mine = emulated::here().lane();
  std::memcpy(mine.a, a, sizeof a);
  std::memcpy(mine.sum, sum, sizeof sum);
  mine.b[0] = b0;
  mine.b[1] = b1;
  emulated::here().meet_warp([](emulated::Lane* lanes) { multiply_add<Number>(lanes); });
  std::memcpy(sum, mine.sum, sizeof sum);
}

// A warp's part of a wide product; `word` finds the address of b's words from the rows, a row and a half.
template <class Number, int tiles, class Word>
void multiply_words(emulated::Warp& warp, size_t product, const Word& word) {
  for (int tile = 0; tile < tiles; ++tile) {
    for (int n = 0; n < 32; ++n) {
      const emulated::WideProduct& mine = warp.products[n].at(product);
      std::memcpy(warp.lanes[n].sum, mine.sums[tile], sizeof warp.lanes[n].sum);
      for (int half = 0; half < 2; ++half) {
        const uintptr_t at = word(reinterpret_cast<uintptr_t>(mine.rows), tile * 8 + n / 4, half) + n % 4 * 4;
        std::memcpy(&warp.lanes[n].b[half], reinterpret_cast<const void*>(at), 4);
      }
    }
    multiply_add<Number>(warp.lanes);
    for (int n = 0; n < 32; ++n) {
      std::memcpy(warp.products[n][product].sums[tile], warp.lanes[n].sum, sizeof warp.lanes[n].sum);
    }
  }
}
// As on the GPU: words are swizzled by the bits of their address in shared memory, which begins at a multiple of 1024.
template <class Number, int tiles>
void make_wide_product(emulated::Warp& warp, size_t product) {
  for (int n = 0; n < 32; ++n)
    std::memcpy(warp.lanes[n].a, warp.products[n].at(product).a, sizeof warp.lanes[n].a);
  multiply_words<Number, tiles>(warp, product, [](uintptr_t rows, int row, int half) {
    constexpr uintptr_t kRowBytes = 32 * sizeof(Number), kMoved = kRowBytes == 128 ? 7 : 3;
    const uintptr_t at = rows + row * kRowBytes + half * 16;
    return at ^ (at >> 7 & kMoved) << 4;
  });
}
template <class Number, int tiles>
void make_tile_product(emulated::Warp& warp, size_t product) {
  // The stride is 128 bytes from 8 numbers of 8 rows to the next 8 numbers, and 1024 bytes to the next 8 rows.
  const auto word = [](uintptr_t rows, int row, int half) {
    return rows + row / 8 * 1024 + half * 128 + row % 8 * 16;
  };
  const int first_row = static_cast<int>(&warp - emulated::here().block().warps.data()) % 4 * 16;
  for (int n = 0; n < 32; ++n) {
    const auto weights = reinterpret_cast<uintptr_t>(warp.products[n].at(product).weights);
    for (int part = 0; part < 4; ++part) {
      const uintptr_t at = word(weights, first_row + n / 4 + part % 2 * 8, part / 2) + n % 4 * 4;
      std::memcpy(&warp.lanes[n].a[part], reinterpret_cast<const void*>(at), 4);
    }
  }
  multiply_words<Number, tiles>(warp, product, word);
}
template <int tiles>
void keep_in_order(float (&)[tiles][4]) {}
inline void begin_wide_group() {
  emulated::Warp& warp = emulated::here().warp();
  emulated::here().meet_warp([&](emulated::Lane*) { warp.begun = true; });
}
template <int tiles>
void begin_wide_products(float (&)[tiles][4]) {
  begin_wide_group();
}
namespace emulated {
inline void begin_product(const WideProduct& product) {
  Warp& warp = here().warp();
  if (!warp.begun) throw std::runtime_error("a wide product without a beginning");
  warp.products[here().thread() % 32].push_back(product);
}
}  // namespace emulated
template <class Number, int tiles>
void multiply_add_wide(float (&sums)[tiles][4], const unsigned (&a)[4], const Number* rows, int first) {
  emulated::begin_product({sums, a, nullptr, rows + first, &make_wide_product<Number, tiles>});
}
template <class Number, int tiles>
void multiply_add_tile(float (&sums)[tiles][4], const Number* weights, const Number* h) {
  emulated::begin_product({sums, nullptr, weights, h, &make_tile_product<Number, tiles>});
}
inline void end_wide_group() {
  emulated::Warp& warp = emulated::here().warp();
  emulated::here().meet_warp([&](emulated::Lane*) {
    const size_t before = std::accumulate(warp.groups.begin(), warp.groups.end(), size_t{0});
    warp.groups.push_back(warp.products[0].size() - before);
    warp.begun = false;
  });
}
// Wide products are computed as late as possible: where a thread waits for them.
template <int running>
void wait_for_wide_groups() {
  emulated::Warp& warp = emulated::here().warp();
  emulated::here().meet_warp([&](emulated::Lane*) {
    for (; warp.groups.size() > running; warp.groups.pop_front()) {
      const auto count = static_cast<long>(warp.groups.front());
      for (size_t product = 0; product < warp.groups.front(); ++product) {
        warp.products[0][product].make(warp, product);
      }
      for (auto& products : warp.products) products.erase(products.begin(), products.begin() + count);
    }
  });
}
template <int tiles>
void finish_wide_products(float (&)[tiles][4]) {
  end_wide_group();
  wait_for_wide_groups<0>();
}

}  // namespace cellerate::gpu
