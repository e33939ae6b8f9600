// Batch normalisation. The whole batch is one piece, because the statistics need all rows.
#include <algorithm>
#include <cmath>

#include "training/piece.h"

namespace cellerate {
namespace {

// Calls each(index, feature) for all numbers of `count` positions.
template <class Each>
void for_each(int64_t count, int64_t features, const Each& each) {
  for (int64_t place = 0; place < count; ++place) {
    for (int64_t feature = 0; feature < features; ++feature) each(place * features + feature, feature);
  }
}

using Sums = std::vector<double>;

// Keras adds this to the number of positions that are not masked, which may be 0.
constexpr double kLeastPositions = 1e-7;

}  // namespace

// The number of positions in the statistics of a batch: without those that are masked.
double Piece::positions_counted(int32_t n) const {
  const uint8_t* counts = mask(source(n, 1));
  if (counts == nullptr) return static_cast<double>(positions(n));
  return static_cast<double>(
             std::count_if(counts, counts + positions(n), [](uint8_t one) { return one != 0; })) +
         kLeastPositions;
}

// Writes the mean and the inverse deviation of each feature: of this batch in training, else the moving statistics.
void Piece::take_moments(int32_t n) {
  const Moments& moments = *program_.moments_of(static_cast<size_t>(n));
  const int64_t features = shape(n).features, count = positions(n);
  const float* x = value(source(n));
  float *mean = layout_.nodes[n].kept, *inverse = mean + features;
  const auto invert = [&](float variance) { return 1 / std::sqrt(variance + node(n).number); };
  if (gradients_ == nullptr) {
    copy(moments.mean, mean, features);
    for (int64_t i = 0; i < features; ++i) inverse[i] = invert(moments.variance[i]);
    return;
  }
  Sums sums(static_cast<size_t>(features)), squares(sums.size());
  double* sum = sums.data();
  double* square = squares.data();
  const uint8_t* counts = mask(source(n, 1));
  const double counted = positions_counted(n);
  const auto skips = [&](int64_t i) { return counts != nullptr && counts[i / features] == 0; };
  for_each(count, features, [&](int64_t i, int64_t feature) {
    if (!skips(i)) sum[feature] += static_cast<double>(x[i]);
  });
  for (double& each : sums) each /= counted;
  for_each(count, features, [&](int64_t i, int64_t feature) {
    if (skips(i)) return;
    const double off = static_cast<double>(x[i]) - sum[feature];
    square[feature] += off * off;
  });
  for (int64_t i = 0; i < features; ++i) {
    const auto variance = static_cast<float>(square[i] / counted);
    mean[i] = static_cast<float>(sum[i]);
    inverse[i] = invert(variance);
    const float kept = moments.momentum;
    moments.mean[i] = moments.mean[i] * kept + mean[i] * (1 - kept);
    moments.variance[i] = moments.variance[i] * kept + variance * (1 - kept);
  }
}

void Piece::normalize_batch(int32_t n) {
  take_moments(n);
  const ProgramNode& of = node(n);
  const int64_t features = shape(n).features;
  const float *x = value(source(n)), *mean = layout_.nodes[n].kept, *inverse = mean + features;
  float* to = layout_.nodes[n].value;
  for_each(positions(n), features, [&](int64_t i, int64_t feature) {
    const float one =
        (x[i] - mean[feature]) * inverse[feature] * (of.kernel == nullptr ? 1 : of.kernel[feature]);
    to[i] = one + (of.bias == nullptr ? 0 : of.bias[feature]);
  });
}

void Piece::normalize_batch_back(int32_t n) {
  const ProgramNode& of = node(n);
  const int64_t features = shape(n).features, count = positions(n);
  const float *x = value(source(n)), *d = layout_.nodes[n].gradient, *mean = layout_.nodes[n].kept;
  const float* inverse = mean + features;
  // For each feature, the sum of the gradients, and the sum of their products with the normalised numbers.
  Sums sums(static_cast<size_t>(features)), products(sums.size());
  double* sum = sums.data();
  double* along = products.data();
  const auto normal = [&](int64_t i, int64_t feature) { return (x[i] - mean[feature]) * inverse[feature]; };
  for_each(count, features, [&](int64_t i, int64_t feature) {
    sum[feature] += static_cast<double>(d[i]);
    along[feature] += static_cast<double>(d[i] * normal(i, feature));
  });
  float *d_gamma = gradient_of(n, 0), *d_beta = gradient_of(n, 2);
  std::vector<float> means(static_cast<size_t>(2 * features));
  const uint8_t* counts = mask(source(n, 1));
  const double counted = positions_counted(n);
  for (int64_t i = 0; i < features; ++i) {
    if (d_gamma != nullptr) d_gamma[i] = static_cast<float>(along[i]);
    if (d_beta != nullptr) d_beta[i] = static_cast<float>(sum[i]);
    means[static_cast<size_t>(2 * i)] = static_cast<float>(sum[i] / counted);
    means[static_cast<size_t>(2 * i + 1)] = static_cast<float>(along[i] / counted);
  }
  const float* of_feature = means.data();
  give(source(n), [&](float* to) {
    for_each(count, features, [&](int64_t i, int64_t feature) {
      const float factor = inverse[feature] * (of.kernel == nullptr ? 1 : of.kernel[feature]);
      // The statistics do not depend on masked positions.
      const bool outside = counts != nullptr && counts[i / features] == 0;
      to[i] = factor *
              (outside ? d[i]
                       : d[i] - of_feature[2 * feature] - normal(i, feature) * of_feature[2 * feature + 1]);
    });
  });
}

}  // namespace cellerate
