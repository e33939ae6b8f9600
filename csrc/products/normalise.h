// Layer normalisation of a row, with the same bits on every target.
#pragma once

#include "products/gemm.h"

namespace cellerate::CELLERATE_TARGET {

// Sums a row in the same order on every target: 16 sums, each over every 16th feature, and then these in order.
template <class Term>
double sum_in_order(Index n, Term term) {
  double sums[16] = {};
  for (Index i = 0; i < n; ++i) sums[i % 16] = term(i, sums[i % 16]);
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

// Layer normalisation of n numbers; gamma and beta may be null.
inline void normalise_row(const float* gamma, const float* beta, float epsilon, Index n, float* row) {
  const auto count = static_cast<double>(n);
  const double mean = sum_in_order(n, [&](Index i, double sum) { return sum + row[i]; }) / count;
  const double square = sum_in_order(n, [&](Index i, double sum) {
    const double off = row[i] - mean;
    return __builtin_fma(off, off, sum);
  });
  const double inverse = 1 / __builtin_sqrt(square / count + static_cast<double>(epsilon));
  for (Index i = 0; i < n; ++i) {
    const auto x = static_cast<float>((row[i] - mean) * inverse);
    row[i] = __builtin_fmaf(x, gamma == nullptr ? 1.0f : gamma[i], beta == nullptr ? 0.0f : beta[i]);
  }
}

}  // namespace cellerate::CELLERATE_TARGET
