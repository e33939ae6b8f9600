// Measures how fast this target multiplies, and reads memory: the limits to which reports compare the kernels.
#pragma once

#include "cells/lstm_layout.h"
#include "products/gemm.h"
#include "simd/alike.h"

namespace cellerate::CELLERATE_TARGET {

// Keeps the compiler from removing x, which nothing reads.
inline void keep(F x) {
  float lanes[kLanes];
  Simd::store(lanes, x);
  static volatile float sink;
  sink = lanes[0];
  (void)sink;
}

// Makes the compiler assume that x changes here.
inline void forget(F& x) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(x));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(x));
#else
  asm volatile("" : "+m"(x));
#endif
}

// Multiply-adds on registers only, with enough independent sums to hide their latency.
template <Precision kPrecision>
class PeakJob {
  static constexpr bool kBytes = kPrecision == Precision::kInt8, kPairs = kPrecision == Precision::kBfloat16;
  static constexpr bool kInTiles = Simd::kTiles && (kBytes || kPairs);
  static constexpr int kProducts = kBytes ? 4 : kPairs ? 2 : 1;  // in a lane

 public:
  explicit PeakJob(int64_t rounds) : rounds_(rounds) {}

  void run(int) {
    if constexpr (kInTiles) {
      multiply_in_tiles();
    } else if constexpr (kBytes) {
      constexpr int32_t kZeros[kLanes] = {};
      Simd::I sum[kSums];
      for (Simd::I& each : sum) each = Simd::load_int(kZeros);
      const F a = Simd::set(1e-3f);
      F b = Simd::set(0.999f);
      for (int64_t round = 0; round < rounds_; ++round) {
#pragma GCC unroll 16
        for (Simd::I& each : sum) {
          forget(b);  // else the compiler would compute products of several instructions only once
          each = Simd::dot_bytes(a, b, each);
        }
      }
      for (int n = 0; n < kSums; ++n) keep(Simd::to_float(sum[n]));
    } else {
      F sum[kSums];
      for (F& each : sum) each = Simd::set(0);
      // With these numbers the sums stay finite and normal. A pair of bfloat16 has the bits of some float.
      const F a = Simd::set(1e-3f), b = Simd::set(0.999f);
      for (int64_t round = 0; round < rounds_; ++round) {
#pragma GCC unroll 16
        for (F& each : sum)
          each = kPairs ? multiply_add<kPairs>(a, b, each) : multiply_add<kPairs>(each, b, a);
      }
      for (int n = 0; n < kSums; ++n) keep(sum[n]);
    }
  }

  // The operations of one thread; each multiply-add is two.
  double operations() const {
    if (kInTiles) return static_cast<double>(rounds_ * kTileRows * kTileWords) * 4 * kLanes * 2 * kProducts;
    return static_cast<double>(rounds_) * kSums * kLanes * 2 * kProducts;
  }

 private:
  static constexpr int kSums = 12;

  // Four sums, as in add_half_panel.
  void multiply_in_tiles() const {
    alignas(64) float words[kTileRows * kTileWords];
    for (float& word : words) word = 1e-3f;
    load_tile<4>(words, kTileWords);
    load_tile<5>(words, kTileWords);
    load_tile<6>(words, kTileWords);
    load_tile<7>(words, kTileWords);
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
    for (int64_t round = 0; round < rounds_; ++round) {
      multiply_tiles<kBytes, 0, 4, 6>();
      multiply_tiles<kBytes, 1, 4, 7>();
      multiply_tiles<kBytes, 2, 5, 6>();
      multiply_tiles<kBytes, 3, 5, 7>();
    }
  }

  const int64_t rounds_;
};

template <Precision kPrecision>
double peak_operations(int threads, int64_t rounds) {
  PeakJob<kPrecision> job(rounds);
  run_on(threads, job);
  return job.operations() * threads;
}

inline double peak(Precision precision, int threads, int64_t rounds) {
  // Floats run another target's code.
  if (Simd::kTiles && precision == Precision::kFloat32)
    return CELLERATE_ALIKE::kTarget.peak(precision, threads, rounds);
  if (precision >= Precision::kInt8) return peak_operations<Precision::kInt8>(threads, rounds);
  if constexpr (Simd::kBfloat16Products) {
    if (precision == Precision::kBfloat16) return peak_operations<Precision::kBfloat16>(threads, rounds);
  }
  return peak_operations<Precision::kFloat32>(threads, rounds);
}

// Reads memory again and again, each thread its own part, as steps read weights.
class ReadJob {
 public:
  ReadJob(const float* from, int64_t count, int threads, int64_t rounds)
      : from_(from), count_(count), threads_(threads), rounds_(rounds) {}

  void run(int index) {
    constexpr Index kSums = 8;  // enough to hide the latency of an addition
    F sum[kSums];
    for (F& each : sum) each = Simd::set(0);
    const Range mine = share(count_, index, threads_, kSums * kLanes);
    for (int64_t round = 0; round < rounds_; ++round) {
      for (Index at = mine.begin; at + kSums * kLanes <= mine.end; at += kSums * kLanes) {
#pragma GCC unroll 8
        for (Index n = 0; n < kSums; ++n) sum[n] = Simd::add(sum[n], Simd::load(from_ + at + n * kLanes));
      }
    }
    for (F each : sum) keep(each);
  }

 private:
  const float* const from_;
  const int64_t count_;
  const int threads_;
  const int64_t rounds_;
};

inline void read_memory(const float* from, int64_t count, int threads, int64_t rounds) {
  ReadJob job(from, count, threads, rounds);
  run_on(threads, job);
}

}  // namespace cellerate::CELLERATE_TARGET
