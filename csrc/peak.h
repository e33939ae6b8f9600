// How fast this target multiplies when nothing else limits it. A kernel's speed is given as a share of this.
#pragma once

#include "gemm.h"
#include "lstm_layout.h"

namespace cellerate::CELLERATE_TARGET {

// Multiply-adds on registers only, with enough independent sums to hide their latency.
template <bool kPairs>
class PeakJob {
 public:
  explicit PeakJob(int64_t rounds) : rounds_(rounds) {}

  void run(int) {
    F sum[kSums];
    for (F& each : sum) each = Simd::set(0);
    // With these numbers the sums stay finite and normal. A pair of bfloat16 has the bits of some float.
    const F a = Simd::set(1e-3f), b = Simd::set(0.999f);
    for (int64_t round = 0; round < rounds_; ++round) {
#pragma GCC unroll 16
      for (F& each : sum) each = kPairs ? multiply_add<kPairs>(a, b, each) : multiply_add<kPairs>(each, b, a);
    }
    float lanes[kLanes];
    for (int n = 1; n < kSums; ++n) sum[0] = Simd::add(sum[0], sum[n]);
    Simd::store(lanes, sum[0]);
    static volatile float sink;
    sink = lanes[0];
    (void)sink;
  }

  // Floating-point operations of one thread: a multiplication and an addition each.
  double operations() const { return static_cast<double>(rounds_) * kSums * kLanes * 2 * (kPairs ? 2 : 1); }

 private:
  static constexpr int kSums = 12;
  const int64_t rounds_;
};

template <bool kPairs>
double peak_operations(int threads, int64_t rounds) {
  PeakJob<kPairs> job(rounds);
  run_on(threads, job);
  return job.operations() * threads;
}

inline double peak(bool bfloat16, int threads, int64_t rounds) {
  if (bfloat16) return peak_operations<Simd::kBfloat16Products>(threads, rounds);
  return peak_operations<false>(threads, rounds);
}

}  // namespace cellerate::CELLERATE_TARGET
