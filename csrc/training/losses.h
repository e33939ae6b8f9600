// Losses and measures of Keras at each position of an output, and the gradients of losses.
#pragma once

#include "training/elementwise.h"

namespace cellerate::CELLERATE_TARGET {

struct Term {
  float value, slope;
};

// The loss of one number of a regression, and its derivative by the prediction y.
inline Term regression_term(const Loss& loss, float y, float target) {
  const float off = y - target;
  const float size = std::fabs(off);
  const float sign = off > 0 ? 1.0f : off < 0 ? -1.0f : off;  // a NaN stays one
  switch (loss.kind) {
    case LossKind::kAbsolute:
      return {size, off == 0 ? loss.slope_at_zero : sign};
    case LossKind::kHuber:
      return size <= loss.delta ? Term{0.5f * off * off, off}
                                : Term{loss.delta * size - 0.5f * loss.delta * loss.delta, loss.delta * sign};
    case LossKind::kLogCosh:
      return {off + softplus(-2 * off) - 0.69314718055994531f, tanhf(off)};
    default:
      return {off * off, 2 * off};
  }
}

inline Term binary_term(const Loss& loss, float y, float target) {
  target = target * (1 - loss.label_smoothing) + 0.5f * loss.label_smoothing;
  if (loss.from_logits) {
    const float size = std::fabs(y);
    return {(y > 0 ? y : 0.0f) - y * target + log1pf(expf(-size)), sigmoid_of(y) - target};
  }
  const float high = 1 - loss.least;
  const float p = y < loss.least ? loss.least : y > high ? high : y;
  const bool inside = y >= loss.least && y <= high;
  return {-(target * logf(p) + (1 - target) * logf(1 - p)), inside ? (p - target) / (p * (1 - p)) : 0.0f};
}

// Losses that are a mean over the features of a position.
template <class TermOf>
double mean_loss(const LossRows& rows, const TermOf& term) {
  double total = 0;
  const auto share = 1.0f / static_cast<float>(rows.features);
  for (Index row = 0; row < rows.positions; ++row) {
    const float* y = rows.outputs + row * rows.features;
    const float* target = rows.targets + row * rows.features;
    const float weight = rows.weights == nullptr ? 1.0f : rows.weights[row];
    double sum = 0;
    for (Index i = 0; i < rows.features; ++i) {
      const Term one = term(y[i], target[i]);
      sum += static_cast<double>(one.value);
      if (rows.d_outputs != nullptr) rows.d_outputs[row * rows.features + i] = one.slope * (weight * share);
    }
    total += static_cast<double>(weight * static_cast<float>(sum) * share);
  }
  return total;
}

// The pinball loss: predictions for all levels of a target follow each other.
inline double quantile_loss(const Loss& loss, const LossRows& rows) {
  double total = 0;
  const Index levels = loss.level_count;
  const auto share = 1.0f / static_cast<float>(rows.features);
  for (Index row = 0; row < rows.positions; ++row) {
    const float* y = rows.outputs + row * rows.features;
    const float* target = rows.targets + row * (rows.features / levels);
    const float weight = rows.weights == nullptr ? 1.0f : rows.weights[row];
    double sum = 0;
    for (Index i = 0; i < rows.features; ++i) {
      const float level = loss.levels[i % levels], off = target[i / levels] - y[i];
      const float above = level * off, below = (level - 1) * off;
      sum += static_cast<double>(above > below || above != above ? above : below);
      // Where both are equal the gradient is shared, as of any maximum.
      const float slope = above > below ? -level : above < below ? 1 - level : 0.5f - level + (above - above);
      if (rows.d_outputs != nullptr) rows.d_outputs[row * rows.features + i] = slope * (weight * share);
    }
    total += static_cast<double>(weight * static_cast<float>(sum) * share);
  }
  return total;
}

// The largest number of a row and the sum of e^(y - largest); writes these powers to `powers`.
struct Exponents {
  float largest;
  double sum;
};
inline Exponents exponents(const float* y, Index n, float* powers) {
  float largest = y[0];
  for (Index i = 1; i < n; ++i) largest = y[i] > largest ? y[i] : largest;
  F sums = set(0.0f);
  for_vectors(n, [&](Index first, Index end) {
    const int lanes = lanes_before(first, end);
    F power = exponential(Simd::sub(load_at(y, first, end), set(largest)), 0.0f);
    if (lanes < kLanes) power = first_lanes(power, lanes);
    sums = Simd::add(sums, power);
    store_at(powers, power, first, end);
  });
  float lanes[kLanes];
  Simd::store(lanes, sums);
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return {largest, sum};
}

// The cross-entropy of a distribution or an id with logits, at one position; `d` gets the gradient.
inline float entropy_of_logits(const Loss& loss, const float* y, const float* target, int32_t id, Index n,
                               float weight, float* d) {
  const Exponents found = exponents(y, n, d);
  const float logarithm = found.largest + static_cast<float>(__builtin_log(found.sum));
  const auto inverse = static_cast<float>(1 / found.sum);
  if (target == nullptr) {
    for (Index i = 0; i < n; ++i) d[i] *= inverse * weight;
    d[id] -= weight;
    return logarithm - y[id];
  }
  const float keep = 1 - loss.label_smoothing, spread = loss.label_smoothing / static_cast<float>(n);
  double value = 0, whole = 0;
  for (Index i = 0; i < n; ++i) {
    const float smoothed = target[i] * keep + spread;
    value += static_cast<double>(smoothed) * static_cast<double>(logarithm - y[i]);
    whole += static_cast<double>(smoothed);
  }
  for (Index i = 0; i < n; ++i) {
    const float smoothed = target[i] * keep + spread;
    d[i] = (d[i] * inverse * static_cast<float>(whole) - smoothed) * weight;
  }
  return static_cast<float>(value);
}

// The same with probabilities, which Keras divides by their sum and keeps from 0 and 1.
inline float entropy_of_probabilities(const Loss& loss, const float* y, const float* target, int32_t id,
                                      Index n, float weight, float* d) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += static_cast<double>(y[i]);
  const float whole = static_cast<float>(sum), high = 1 - loss.least;
  const float keep = 1 - loss.label_smoothing, spread = loss.label_smoothing / static_cast<float>(n);
  double value = 0, along = 0;
  const auto one = [&](Index i) {
    const float wanted = target == nullptr ? (i == id ? 1.0f : 0.0f) : target[i] * keep + spread;
    const float q = y[i] / whole;
    const float p = q < loss.least ? loss.least : q > high ? high : q;
    const bool inside = q >= loss.least && q <= high;
    d[i] = inside && wanted != 0 ? -wanted / p : 0.0f;
    if (wanted != 0) value -= static_cast<double>(wanted) * static_cast<double>(logf(p));
    along += static_cast<double>(d[i]) * static_cast<double>(q);
  };
  for (Index i = 0; i < n; ++i) one(i);
  const float scale = weight / whole, mean = static_cast<float>(along);
  for (Index i = 0; i < n; ++i) d[i] = (d[i] - mean) * scale;
  return static_cast<float>(value);
}

inline double cross_entropy(const Loss& loss, const LossRows& rows, float* spare) {
  double total = 0;
  const Index n = rows.features;
  for (Index row = 0; row < rows.positions; ++row) {
    const float* y = rows.outputs + row * n;
    const float* target = rows.ids != nullptr ? nullptr : rows.targets + row * n;
    const int32_t id = rows.ids != nullptr ? rows.ids[row] : 0;
    const float weight = rows.weights == nullptr ? 1.0f : rows.weights[row];
    float* d = rows.d_outputs != nullptr ? rows.d_outputs + row * n : spare;
    const float value = loss.from_logits ? entropy_of_logits(loss, y, target, id, n, weight, d)
                                         : entropy_of_probabilities(loss, y, target, id, n, weight, d);
    total += static_cast<double>(weight * value);
  }
  return total;
}

inline double loss_of(const Loss& loss, const LossRows& rows) {
  switch (loss.kind) {
    case LossKind::kBinary:
      return mean_loss(rows, [&](float y, float target) { return binary_term(loss, y, target); });
    case LossKind::kCategorical:
    case LossKind::kSparse: {
      float* spare = nullptr;
      const Workspace workspace(
          [&](Layout& layout) { spare = layout.take<float>(static_cast<size_t>(rows.features)); });
      return cross_entropy(loss, rows, spare);
    }
    case LossKind::kQuantile:
      return quantile_loss(loss, rows);
    default:
      return mean_loss(rows, [&](float y, float target) { return regression_term(loss, y, target); });
  }
}

// The place of the largest number, the first of equal ones; NaN counts as the largest, as in argmax.
inline Index largest_of(const float* row, Index n) {
  Index place = 0;
  for (Index i = 1; i < n && row[place] == row[place]; ++i) {
    if (row[i] > row[place] || row[i] != row[i]) place = i;
  }
  return place;
}

// A measure at one position.
inline double measure_at(const Measure& measure, const float* y, const float* target, int32_t id, Index n) {
  if (measure.kind == MeasureKind::kSparseAccuracy) return largest_of(y, n) == id;
  if (measure.kind == MeasureKind::kCategoricalAccuracy) return largest_of(y, n) == largest_of(target, n);
  double sum = 0;
  for (Index i = 0; i < n; ++i) {
    const double off = static_cast<double>(y[i]) - static_cast<double>(target[i]);
    if (measure.kind == MeasureKind::kBinaryAccuracy) {
      sum += (y[i] > measure.threshold ? 1.0f : 0.0f) == target[i];
    } else {
      sum += measure.kind == MeasureKind::kAbsolute ? std::fabs(off) : off * off;
    }
  }
  return sum / static_cast<double>(n);
}

inline MeasureSums measure_of(const Measure& measure, const LossRows& rows) {
  MeasureSums sums;
  const Index n = rows.features;
  for (Index row = 0; row < rows.positions; ++row) {
    const double weight = rows.weights == nullptr ? 1 : static_cast<double>(rows.weights[row]);
    // What a mask leaves out does not count, whatever it holds.
    if (weight == 0 && !measure.weighted) continue;
    const double factor = measure.weighted ? weight : 1;
    sums.total += factor * measure_at(measure, rows.outputs + row * n,
                                      rows.targets == nullptr ? nullptr : rows.targets + row * n,
                                      rows.ids == nullptr ? 0 : rows.ids[row], n);
    sums.count += factor;
  }
  return sums;
}

}  // namespace cellerate::CELLERATE_TARGET
