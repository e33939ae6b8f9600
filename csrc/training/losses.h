// Losses and measures of Keras at each position of an output, and the gradients of losses.
#pragma once

#include "training/elementwise.h"

namespace cellerate::CELLERATE_TARGET {

struct Term {
  float value, slope;
};

// The derivative of |x|.
inline float slope_of_size(const Kinks& kinks, float x) {
  return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? kinks.size_at_zero : kinks.size_at_nan;
}
inline float passed(const Kinks& kinks, float share, float d) {
  return share == 0 && kinks.selects ? 0.0f : share * d;
}
// The gradient of x in max(x, bound), where the result has the gradient d.
inline float through_maximum(const Kinks& kinks, float x, float bound, float d) {
  const float tie = x == bound ? kinks.maximum_at_tie : kinks.maximum_at_nan;
  return passed(kinks, x > bound ? 1.0f : x < bound ? 0.0f : tie, d);
}
// The gradient of x in clip(x, least, most), where the result has the gradient d.
inline float through_clip(const Kinks& kinks, float x, float least, float most, float d) {
  const float end = x == least || x == most ? kinks.clip_at_end : 0.0f;
  return passed(kinks, x > least && x < most ? 1.0f : end, d);
}
// Both keep NaN.
inline float at_least(float x, float least) { return x < least ? least : x; }
inline float clipped(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

// The losses of one number, and their derivatives with respect to the prediction y.
inline Term squared_term(const Loss&, float y, float target) {
  const float off = y - target;
  return {off * off, 2 * off};
}
inline Term absolute_term(const Loss& loss, float y, float target) {
  const float off = target - y;
  return {std::fabs(off), -slope_of_size(loss.kinks, off)};
}
inline Term percentage_term(const Loss& loss, float y, float target) {
  const float whole = at_least(std::fabs(target), loss.least), off = (target - y) / whole;
  return {100 * std::fabs(off), -100 * slope_of_size(loss.kinks, off) / whole};
}
inline Term logarithmic_term(const Loss& loss, float y, float target) {
  const float more = at_least(y, loss.least) + 1;
  const float off = logf(more) - logf(at_least(target, loss.least) + 1);
  return {off * off, through_maximum(loss.kinks, y, loss.least, 2 * off / more)};
}
inline Term huber_term(const Loss& loss, float y, float target) {
  const float off = y - target, size = std::fabs(off), delta = loss.numbers[0];
  if (size <= delta) return {0.5f * off * off, off};
  return {delta * size - 0.5f * delta * delta, off > 0 ? delta : off < 0 ? -delta : off};
}
inline Term log_cosh_term(const Loss&, float y, float target) {
  const float off = y - target;
  return {off + softplus(-2 * off) - 0.69314718055994531f, tanhf(off)};
}
inline Term poisson_term(const Loss& loss, float y, float target) {
  return {y - target * logf(y + loss.least), 1 - target / (y + loss.least)};
}
inline Term hinge_term(const Loss& loss, float y, float target) {
  const float off = 1 - target * y;
  return {at_least(off, 0), through_maximum(loss.kinks, off, 0, 1) * -target};
}
inline Term squared_hinge_term(const Loss& loss, float y, float target) {
  const float off = 1 - target * y, most = at_least(off, 0);
  return {most * most, through_maximum(loss.kinks, off, 0, 2 * most) * -target};
}

inline Term entropy_of_logit(float y, float target) {
  return {(y > 0 ? y : 0.0f) - y * target + log1pf(expf(-std::fabs(y))), sigmoid_of(y) - target};
}
inline Term entropy_of_probability(const Loss& loss, float y, float target) {
  const float high = 1 - loss.least, p = clipped(y, loss.least, high);
  return {-(target * logf(p) + (1 - target) * logf(1 - p)),
          through_clip(loss.kinks, y, loss.least, high, (p - target) / (p * (1 - p)))};
}
inline float smoothed(const Loss& loss, float target) {
  return target * (1 - loss.label_smoothing) + 0.5f * loss.label_smoothing;
}
inline Term binary_term(const Loss& loss, float y, float target) {
  target = smoothed(loss, target);
  return loss.from_logits ? entropy_of_logit(y, target) : entropy_of_probability(loss, y, target);
}
// Its two flags: whether alpha weighs the classes, and whether the cross-entropy takes logits, as on TensorFlow.
inline Term binary_focal_term(const Loss& loss, float y, float target) {
  const float alpha = loss.numbers[0], gamma = loss.numbers[1];
  target = smoothed(loss, target);
  const float p = loss.from_logits ? sigmoid_of(y) : y;
  const float by_logit = loss.from_logits ? p * (1 - p) : 1.0f;
  const float missed = 1 - (target * p + (1 - target) * (1 - p));
  const bool logits = loss.from_logits && loss.numbers[3] != 0;
  Term entropy = logits ? entropy_of_logit(y, target) : entropy_of_probability(loss, p, target);
  if (!logits) entropy.slope *= by_logit;
  const float factor = powf(missed, gamma);
  const float fall = gamma == 0 ? 0.0f : -gamma * powf(missed, gamma - 1) * entropy.value;
  // Two products, because an infinite product times a factor of 0 is NaN.
  const float slope = (target * fall - (1 - target) * fall) * by_logit + factor * entropy.slope;
  const float weight = loss.numbers[2] != 0 ? target * alpha + (1 - target) * (1 - alpha) : 1.0f;
  return {weight * factor * entropy.value, weight * slope};
}

// The losses that average a term over the features of a position.
template <Term (*term)(const Loss&, float, float)>
double mean_loss(const Loss& loss, const LossRows& rows) {
  double total = 0;
  const auto share = 1.0f / static_cast<float>(rows.features);
  for (Index row = 0; row < rows.positions; ++row) {
    const float* y = rows.outputs + row * rows.features;
    const float* target = rows.targets + row * rows.features;
    const float weight = rows.weights == nullptr ? 1.0f : rows.weights[row];
    double sum = 0;
    for (Index i = 0; i < rows.features; ++i) {
      const Term one = term(loss, y[i], target[i]);
      sum += static_cast<double>(one.value);
      if (rows.d_outputs != nullptr) rows.d_outputs[row * rows.features + i] = one.slope * (weight * share);
    }
    total += static_cast<double>(weight * static_cast<float>(sum) * share);
  }
  return total;
}

// The pinball loss. The predictions for all levels of a target are adjacent.
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
      // Where both are equal they share the gradient, as for any maximum.
      const float slope = above > below ? -level : above < below ? 1 - level : 0.5f - level + (above - above);
      if (rows.d_outputs != nullptr) rows.d_outputs[row * rows.features + i] = slope * (weight * share);
    }
    total += static_cast<double>(weight * static_cast<float>(sum) * share);
  }
  return total;
}

// The largest number of a row and the sum of e^(y - largest). exponents() also writes the terms of the sum to `powers`.
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

// The cross-entropy with probabilities, which Keras divides by their sum and clips away from 0 and 1.
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
    const float p = clipped(q, loss.least, high);
    d[i] = wanted != 0 ? through_clip(loss.kinks, q, loss.least, high, -wanted / p) : 0.0f;
    if (wanted != 0) value -= static_cast<double>(wanted) * static_cast<double>(logf(p));
    along += static_cast<double>(d[i]) * static_cast<double>(q);
  };
  for (Index i = 0; i < n; ++i) one(i);
  const float scale = weight / whole, mean = static_cast<float>(along);
  for (Index i = 0; i < n; ++i) d[i] = (d[i] - mean) * scale;
  return static_cast<float>(value);
}

inline float cross_entropy(const Loss& loss, const float* y, const float* target, int32_t id, Index n,
                           float weight, float* d) {
  return loss.from_logits ? entropy_of_logits(loss, y, target, id, n, weight, d)
                          : entropy_of_probabilities(loss, y, target, id, n, weight, d);
}

inline float categorical_focal(const Loss& loss, const float* y, const float* target, int32_t, Index n,
                               float weight, float* d) {
  const float alpha = loss.numbers[0], gamma = loss.numbers[1], high = 1 - loss.least;
  const float keep = 1 - loss.label_smoothing, spread = loss.label_smoothing / static_cast<float>(n);
  double sum = 0;
  if (loss.from_logits) {
    sum = exponents(y, n, d).sum;
  } else {
    for (Index i = 0; i < n; ++i) sum += static_cast<double>(y[i]);
  }
  const float* powers = loss.from_logits ? d : y;
  const float whole = static_cast<float>(sum);
  const auto one = [&](float wanted, float q) -> Term {
    const float p = clipped(q, loss.least, high), logarithm = logf(p), factor = alpha * powf(1 - p, gamma);
    const float fall = gamma == 0 ? 0.0f : alpha * gamma * powf(1 - p, gamma - 1);
    const float slope = wanted * (fall * logarithm - factor / p);
    return {-factor * wanted * logarithm, through_clip(loss.kinks, q, loss.least, high, slope)};
  };
  double value = 0, along = 0;
  for (Index i = 0; i < n; ++i) {
    const float q = powers[i] / whole;
    const Term term = one(target[i] * keep + spread, q);
    value += static_cast<double>(term.value);
    along += static_cast<double>(term.slope * q);
  }
  for (Index i = 0; i < n; ++i) {
    const float q = powers[i] / whole;
    const float left = one(target[i] * keep + spread, q).slope - static_cast<float>(along);
    d[i] = left * weight * (loss.from_logits ? q : 1 / whole);
  }
  return static_cast<float>(value);
}

inline float divergence(const Loss& loss, const float* y, const float* target, int32_t, Index n, float weight,
                        float* d) {
  double value = 0;
  for (Index i = 0; i < n; ++i) {
    const float wanted = clipped(target[i], loss.least, 1), p = clipped(y[i], loss.least, 1);
    value += static_cast<double>(wanted * logf(wanted / p));
    d[i] = through_clip(loss.kinks, y[i], loss.least, 1, -wanted / p) * weight;
  }
  return static_cast<float>(value);
}

inline float cosine_similarity(const Loss& loss, const float* y, const float* target, int32_t, Index n,
                               float weight, float* d) {
  const float most = 1 / loss.least;
  double of_y = 0, of_target = 0, both = 0;
  for (Index i = 0; i < n; ++i) {
    const auto one = static_cast<double>(y[i]), wanted = static_cast<double>(target[i]);
    of_y += one * one;
    of_target += wanted * wanted;
    both += one * wanted;
  }
  const float root = 1 / __builtin_sqrtf(static_cast<float>(of_y));
  const float scale = root > most ? most : root;
  const float target_root = 1 / __builtin_sqrtf(static_cast<float>(of_target));
  const float target_scale = target_root > most ? most : target_root;
  const float along = static_cast<float>(both) * target_scale;
  // The gradient through the norm of y: through min(1 / norm, most), then through the inverse square root.
  float by_norm = -through_maximum(loss.kinks, -root, -most, along);
  by_norm = by_norm == 0 && std::isinf(root) ? loss.kinks.inverse_root_at_zero : by_norm * root * root * root;
  for (Index i = 0; i < n; ++i) d[i] = -(target[i] * target_scale * scale + by_norm * y[i]) * weight;
  return -along * scale;
}

inline float categorical_hinge(const Loss& loss, const float* y, const float* target, int32_t, Index n,
                               float weight, float* d) {
  double sum = 0;
  float most = (1 - target[0]) * y[0];
  for (Index i = 0; i < n; ++i) {
    const float other = (1 - target[i]) * y[i];
    sum += static_cast<double>(target[i] * y[i]);
    if (other > most || other != other) most = other;
  }
  const float off = most - static_cast<float>(sum) + 1;
  const float passed_on = through_maximum(loss.kinks, off, 0, 1) * weight;
  float equal = 0;
  for (Index i = 0; i < n; ++i) equal += (1 - target[i]) * y[i] == most ? 1.0f : 0.0f;
  for (Index i = 0; i < n; ++i) {
    // Equal maxima share the gradient. If the maximum is NaN, nothing equals it, and 0 / 0 makes each part NaN.
    const float part = ((1 - target[i]) * y[i] == most ? 1.0f : 0.0f) / equal;
    d[i] = passed_on * (part * (1 - target[i]) - target[i]);
  }
  return at_least(off, 0);
}

// The losses that need all features of a position. `of` returns the loss and writes its gradient times the weight.
template <float (*of)(const Loss&, const float*, const float*, int32_t, Index, float, float*)>
double position_loss(const Loss& loss, const LossRows& rows) {
  double total = 0;
  const Index n = rows.features;
  float* spare = nullptr;
  const Workspace workspace([&](Layout& layout) { spare = layout.take<float>(static_cast<size_t>(n)); });
  for (Index row = 0; row < rows.positions; ++row) {
    const float* target = rows.ids != nullptr ? nullptr : rows.targets + row * n;
    const int32_t id = rows.ids != nullptr ? rows.ids[row] : 0;
    const float weight = rows.weights == nullptr ? 1.0f : rows.weights[row];
    float* d = rows.d_outputs != nullptr ? rows.d_outputs + row * n : spare;
    total += static_cast<double>(weight * of(loss, rows.outputs + row * n, target, id, n, weight, d));
  }
  return total;
}

inline double loss_of(const Loss& loss, const LossRows& rows) {
  using Run = double (*)(const Loss&, const LossRows&);
  static constexpr Run kRuns[] = {
#define CELLERATE_RUN(kind, name, run) run,
      CELLERATE_LOSSES(CELLERATE_RUN)
#undef CELLERATE_RUN
  };
  return kRuns[static_cast<size_t>(loss.kind)](loss, rows);
}

// The index of the largest number, the first of equal ones; NaN counts as the largest, as in argmax.
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
    // A masked position does not count, even if it holds NaN.
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
