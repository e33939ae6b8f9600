// The losses and measures of a training step, and the updates of its optimizers, by name.
//
// The formulas are those of Keras 3; losses.h and updates.h compute them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

// A row for each loss: its kind, Keras's name, and the function in losses.h. A comment lists Loss::numbers, in order.
// clang-format off
#define CELLERATE_LOSSES(row) \
  row(kSquared, "mean_squared_error", mean_loss<squared_term>) \
  row(kAbsolute, "mean_absolute_error", mean_loss<absolute_term>) \
  row(kPercentage, "mean_absolute_percentage_error", mean_loss<percentage_term>) \
  row(kLogarithmic, "mean_squared_logarithmic_error", mean_loss<logarithmic_term>) \
  row(kHuber, "huber", mean_loss<huber_term>) /* delta */ \
  row(kLogCosh, "log_cosh", mean_loss<log_cosh_term>) \
  row(kPoisson, "poisson", mean_loss<poisson_term>) \
  row(kHinge, "hinge", mean_loss<hinge_term>) \
  row(kSquaredHinge, "squared_hinge", mean_loss<squared_hinge_term>) \
  row(kCategoricalHinge, "categorical_hinge", position_loss<categorical_hinge>) \
  row(kDivergence, "kl_divergence", position_loss<divergence>) \
  row(kCosine, "cosine_similarity", position_loss<cosine_similarity>) \
  row(kBinary, "binary_crossentropy", mean_loss<binary_term>) \
  row(kBinaryFocal, "binary_focal_crossentropy", mean_loss<binary_focal_term>) /* alpha, gamma, two flags */ \
  row(kCategorical, "categorical_crossentropy", position_loss<cross_entropy>) \
  row(kCategoricalFocal, "categorical_focal_crossentropy", position_loss<categorical_focal>) /* alpha, gamma */ \
  row(kSparse, "sparse_categorical_crossentropy", position_loss<cross_entropy>) \
  row(kQuantile, "quantile", quantile_loss)
// clang-format on

enum class LossKind : int32_t {
#define CELLERATE_KIND(kind, name, run) kind,
  CELLERATE_LOSSES(CELLERATE_KIND)
#undef CELLERATE_KIND
      kCount,
};
inline constexpr const char* kLossNames[] = {
#define CELLERATE_NAME(kind, name, run) name,
    CELLERATE_LOSSES(CELLERATE_NAME)
#undef CELLERATE_NAME
};
inline constexpr int kMostLossNumbers = 4;

// The values that a Keras backend uses as derivatives where a function has none.
struct Kinks {
  float size_at_zero = 0, size_at_nan = 0;       // of |x|
  float maximum_at_tie = 0, maximum_at_nan = 0;  // of max(x, bound), at x == bound and at NaN
  float clip_at_end = 0;                         // of a clip, at either end
  float inverse_root_at_zero = 0;                // of 1 / sqrt(x) at 0, times 0
  bool selects = false;  // whether a blocked gradient becomes 0 even if it is NaN; else it is multiplied by 0
};

struct Loss {
  LossKind kind = LossKind::kSquared;
  bool from_logits = false;
  float numbers[kMostLossNumbers] = {};  // its parameters; see CELLERATE_LOSSES
  float label_smoothing = 0;             // for the cross-entropies except the sparse one
  float least = 1e-7f;                   // Keras's epsilon: probabilities are clipped to [least, 1 - least]
  Kinks kinks;
  const float* levels = nullptr;  // the quantile levels
  int32_t level_count = 0;
};

// The metrics that a step averages besides the loss.
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
  float threshold = 0.5f;  // for the binary accuracy
  bool masked = false;     // whether masked positions are left out
  bool weighted = false;   // whether positions are multiplied by the sample weights
};

// How an optimizer updates a weight w from its gradient g, with slots a, b, c. Comments list the numbers, in order.
enum class UpdateKind : int32_t {
  kSgd,       // rate
  kMomentum,  // rate, momentum; a: momentum
  kNesterov,  // as kMomentum
  kAdam,      // rate with both corrections, 1 - beta_1, 1 - beta_2, epsilon; a, b: moments
  kAmsgrad,   // as kAdam; c: the largest second moment
  kRmsprop,   // rate, rho, epsilon, momentum; a: mean square, b: momentum or null, c: mean gradient or null
  kAdagrad,   // rate, epsilon; a: sum of squares
  kNadam,  // rates of a and of the gradient, 1 - beta_1, 1 - beta_2, 1 / (1 - beta_2^step), epsilon; a, b: moments
  kLion,      // rate, beta_1, beta_2; a: momentum
  kAdamax,    // rate, 1 - beta_1, beta_2, 1 - beta_1^step, epsilon; a: moment, b: largest |g|
  kAdadelta,  // rate, rho, epsilon; a: mean square of gradients, b: mean square of changes
  kFtrl,      // rate, power of a, l1, twice l2, twice the shrinkage; a: sum of squares, b: linear
  kCount,
};
inline constexpr const char* kUpdateNames[] = {
    "sgd",     "momentum", "nesterov", "adam",   "amsgrad",  "rmsprop",
    "adagrad", "nadam",    "lion",     "adamax", "adadelta", "ftrl",
};
static_assert(sizeof kUpdateNames / sizeof *kUpdateNames == static_cast<size_t>(UpdateKind::kCount));
inline constexpr int kMostNumbers = 6, kMostSlots = 3;

// What happens to gradients before the update.
enum class ClipKind : int32_t { kNone, kValue, kNorm, kGlobalNorm, kCount };
inline constexpr const char* kClipNames[] = {"", "value", "norm", "global_norm"};

}  // namespace cellerate
