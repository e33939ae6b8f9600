// Layer normalisation of a row, with the same bits on every target.
#pragma once

#include "products/gemm.h"

namespace cellerate::CELLERATE_TARGET {

// Eight numbers, in as many registers as the target needs. They are passed by reference, because how such a vector is
// passed by value depends on the target.
typedef double Eight __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));

inline void load_eight(const float* from, Eight& to) {
  EightFloats x;
  std::memcpy(&x, from, sizeof x);
  to = __builtin_convertvector(x, Eight);
}

// Sums a row in the same order on every target: 16 sums, each over every 16th number, and then these in order.
// term(x, sum) adds the term of x to a sum, for eight numbers or for one.
template <class Term>
double sum_in_order(const float* row, Index n, Term term) {
  Eight x, sums[2] = {};
  Index first = 0;
  for (; first + 16 <= n; first += 16) {
    for (int half = 0; half < 2; ++half) {
      load_eight(row + first + 8 * half, x);
      term(x, sums[half]);
    }
  }
  double each[16], sum = 0;
  std::memcpy(each, sums, sizeof each);
  for (Index i = first; i < n; ++i) term(static_cast<double>(row[i]), each[i - first]);
  for (const double one : each) sum += one;
  return sum;
}

// Layer normalisation of n numbers; gamma and beta may be null.
inline void normalise_row(const float* from, const float* gamma, const float* beta, float epsilon, Index n,
                          float* to) {
  const auto count = static_cast<double>(n);
  const double mean = sum_in_order(from, n, [](const auto& x, auto& sum) { sum += x; }) / count;
  const double square = sum_in_order(from, n, [&](const auto& x, auto& sum) {
    const auto off = x - mean;
    sum += off * off;
  });
  const double inverse = 1 / __builtin_sqrt(square / count + static_cast<double>(epsilon));
  Index whole = 0;
  for (; whole + 8 <= n; whole += 8) {
    Eight x;
    load_eight(from + whole, x);
    const EightFloats y = __builtin_convertvector((x - mean) * inverse, EightFloats);
    std::memcpy(to + whole, &y, sizeof y);
  }
  for (; whole < n; ++whole) to[whole] = static_cast<float>((from[whole] - mean) * inverse);
  if constexpr (Simd::kFused) {
    for (Index first = 0; first < n; first += kLanes) {
      const F x = load_upto<Storage::kFloat32>(to, first, n);
      const F scale = gamma == nullptr ? Simd::set(1) : load_upto<Storage::kFloat32>(gamma, first, n);
      const F shift = beta == nullptr ? Simd::set(0) : load_upto<Storage::kFloat32>(beta, first, n);
      store_upto<Storage::kFloat32>(to, Simd::fma(x, scale, shift), first, n);
    }
  } else {
    for (Index i = 0; i < n; ++i)
      to[i] = __builtin_fmaf(to[i], gamma == nullptr ? 1.0f : gamma[i], beta == nullptr ? 0.0f : beta[i]);
  }
}

}  // namespace cellerate::CELLERATE_TARGET
