// The normalisation of a batch: its rows are one piece.
#include <cmath>

#include "training/piece.h"

namespace cellerate {
namespace {

// Calls each(number, feature) for all numbers of so many positions.
template <class Each>
void for_each(int64_t count, int64_t features, const Each& each) {
  for (int64_t place = 0; place < count; ++place) {
    for (int64_t feature = 0; feature < features; ++feature) each(place * features + feature, feature);
  }
}

using Sums = std::vector<double>;

}  // namespace

// The mean and the inverse deviation of each feature, of this batch in training, else of those before.
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
  for_each(count, features, [&](int64_t i, int64_t feature) { sum[feature] += static_cast<double>(x[i]); });
  for (double& each : sums) each /= static_cast<double>(count);
  for_each(count, features, [&](int64_t i, int64_t feature) {
    const double off = static_cast<double>(x[i]) - sum[feature];
    square[feature] += off * off;
  });
  for (int64_t i = 0; i < features; ++i) {
    const auto variance = static_cast<float>(square[i] / static_cast<double>(count));
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
  // Of each feature the sum of the gradients, and of their products with the normalised numbers.
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
  for (int64_t i = 0; i < features; ++i) {
    if (d_gamma != nullptr) d_gamma[i] = static_cast<float>(along[i]);
    if (d_beta != nullptr) d_beta[i] = static_cast<float>(sum[i]);
    means[static_cast<size_t>(2 * i)] = static_cast<float>(sum[i] / static_cast<double>(count));
    means[static_cast<size_t>(2 * i + 1)] = static_cast<float>(along[i] / static_cast<double>(count));
  }
  const float* of_feature = means.data();
  give(source(n), [&](float* to) {
    for_each(count, features, [&](int64_t i, int64_t feature) {
      const float factor = inverse[feature] * (of.kernel == nullptr ? 1 : of.kernel[feature]);
      to[i] = factor * (d[i] - of_feature[2 * feature] - normal(i, feature) * of_feature[2 * feature + 1]);
    });
  });
}

}  // namespace cellerate
