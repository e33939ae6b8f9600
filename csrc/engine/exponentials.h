// Softmax in double precision, for drawing and scoring: the same bits on every target.
//
// The loops are plain C++, which the compiler turns into the target's vectors. Every multiply-add is written out, so
// that none is fused on one target and not on another.
#pragma once

#include "cells/lstm.h"
#include "engine/sampler.h"

namespace cellerate::CELLERATE_TARGET {

// e^x within 1 ulp for x of at most 0; zero below -708, where it is close to the smallest normal number.
// Source: Cody and Waite's reduction, x = n ln 2 + r; the Taylor polynomial of degree 13, with an error of 2e-19 for
// |r| < 0.35.
inline double exponential_below_zero(double x) {
  constexpr double kLeast = -708;
  // A number of this size has no bits for fractions, so the sum is rounded to a whole number; n is in its lowest
  // bits.
  constexpr double kWhole = 0x1.8p52;
  constexpr double kHigh = 0x1.62e42fefa39efp-1, kLow = 0x1.abc9e3b39803fp-56;  // ln 2
  const double bounded = x < kLeast ? kLeast : x;
  const double shifted = __builtin_fma(bounded, 0x1.71547652b82fep0, kWhole);
  const double n = shifted - kWhole;
  const double r = __builtin_fma(n, -kLow, __builtin_fma(n, -kHigh, bounded));
  double p = 1.0 / 6227020800;
  p = __builtin_fma(p, r, 1.0 / 479001600);
  p = __builtin_fma(p, r, 1.0 / 39916800);
  p = __builtin_fma(p, r, 1.0 / 3628800);
  p = __builtin_fma(p, r, 1.0 / 362880);
  p = __builtin_fma(p, r, 1.0 / 40320);
  p = __builtin_fma(p, r, 1.0 / 5040);
  p = __builtin_fma(p, r, 1.0 / 720);
  p = __builtin_fma(p, r, 1.0 / 120);
  p = __builtin_fma(p, r, 1.0 / 24);
  p = __builtin_fma(p, r, 1.0 / 6);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  // 2^n: its exponent field is n + 1023, where n is above -1023.
  const double power =
      __builtin_bit_cast(double, (__builtin_bit_cast(uint64_t, shifted) + uint64_t{1023}) << 52);
  return x < kLeast ? 0 : p * power;
}

inline void exponential_weights(const double* scores, int64_t count, double largest, double temperature,
                                double* weights) {
  // Because the largest score is subtracted first, a tiny temperature cannot cause an overflow.
  if (temperature == 1) {
    for (int64_t n = 0; n < count; ++n) weights[n] = exponential_below_zero(scores[n] - largest);
  } else {
    for (int64_t n = 0; n < count; ++n)
      weights[n] = exponential_below_zero((scores[n] - largest) / temperature);
  }
}

// Adds up 16 sums, and then these in order, because the order of additions is part of the result.
inline double exponential_sum(const float* logits, int64_t count, double largest) {
  constexpr int kSums = 16;
  double sums[kSums] = {};
  int64_t first = 0;
  for (; first + kSums <= count; first += kSums) {
    for (int n = 0; n < kSums; ++n) sums[n] += exponential_below_zero(logits[first + n] - largest);
  }
  for (int n = 0; first + n < count; ++n) sums[n] += exponential_below_zero(logits[first + n] - largest);
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

constexpr Exponentials kExponentials{exponential_weights, exponential_sum};

}  // namespace cellerate::CELLERATE_TARGET
