// What a training step minimises, measures and changes: losses, measures and updates by name.
//
// The formulas are those of Keras 3; losses.h and updates.h compute them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

enum class LossKind : int32_t {
  kSquared,
  kAbsolute,
  kHuber,
  kLogCosh,
  kBinary,       // cross-entropies
  kCategorical,  // targets are distributions
  kSparse,       // targets are ids
  kQuantile,     // several predictions for each target, one for each level
  kCount,
};
inline constexpr const char* kLossNames[] = {
    "mean_squared_error",
    "mean_absolute_error",
    "huber",
    "log_cosh",
    "binary_crossentropy",
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
    "quantile",
};
static_assert(sizeof kLossNames / sizeof *kLossNames == static_cast<size_t>(LossKind::kCount));

struct Loss {
  LossKind kind = LossKind::kSquared;
  bool from_logits = false;
  float delta = 1;                // of Huber
  float slope_at_zero = 0;        // of an absolute value
  float label_smoothing = 0;      // of the cross-entropies but the sparse one
  float least = 1e-7f;            // how far probabilities are kept from 0 and 1
  const float* levels = nullptr;  // of the quantiles
  int32_t level_count = 0;
};

// What is averaged over the outputs beside the loss.
enum class MeasureKind : int32_t {
  kSparseAccuracy,
  kCategoricalAccuracy,
  kBinaryAccuracy,
  kAbsolute,
  kSquared,
  kCount,
};
inline constexpr const char* kMeasureNames[] = {
    "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy", "absolute", "squared",
};
static_assert(sizeof kMeasureNames / sizeof *kMeasureNames == static_cast<size_t>(MeasureKind::kCount));

struct Measure {
  MeasureKind kind = MeasureKind::kSquared;
  float threshold = 0.5f;  // of the binary accuracy
  bool masked = false;     // whether only positions count that the output's mask leaves
  bool weighted = false;   // whether positions count as the weights of the samples say
};

// How an optimizer changes a weight w by its gradient g, with up to three slots of its own: a, b, c. The numbers of a
// step are those named here, in this order.
enum class UpdateKind : int32_t {
  kSgd,       // rate
  kMomentum,  // rate, momentum; a: momentum
  kNesterov,  // the same
  kAdam,      // rate with both corrections, 1 - beta_1, 1 - beta_2, epsilon; a, b: moments
  kAmsgrad,   // the same; c: the largest second moment
  kRmsprop,   // rate, rho, epsilon, momentum; a: mean square, b: momentum or null, c: mean gradient or null
  kAdagrad,   // rate, epsilon; a: sum of squares
  kNadam,  // rates of a and of the gradient, 1 - beta_1, 1 - beta_2, 1 / (1 - beta_2^step), epsilon; a, b: moments
  kLion,  // rate, beta_1, beta_2; a: momentum
  kCount,
};
inline constexpr const char* kUpdateNames[] = {
    "sgd", "momentum", "nesterov", "adam", "amsgrad", "rmsprop", "adagrad", "nadam", "lion",
};
static_assert(sizeof kUpdateNames / sizeof *kUpdateNames == static_cast<size_t>(UpdateKind::kCount));
inline constexpr int kMostNumbers = 6, kMostSlots = 3;

// What happens to gradients before the update.
enum class ClipKind : int32_t { kNone, kValue, kNorm, kGlobalNorm, kCount };
inline constexpr const char* kClipNames[] = {"", "value", "norm", "global_norm"};

}  // namespace cellerate
