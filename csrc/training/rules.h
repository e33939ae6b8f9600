// What a training step minimises, measures and changes: losses, measures and updates by name.
//
// The formulas are those of Keras 3; losses.h and updates.h compute them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

// A row for each loss: its kind, what Keras calls its function, and in losses.h what computes it; behind it the
// numbers of its own, in this order.
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

// What a backend of Keras takes for derivatives where there are none.
struct Kinks {
  float size_at_zero = 0, size_at_nan = 0;       // of |x|
  float maximum_at_tie = 0, maximum_at_nan = 0;  // of max(x, bound): where they are equal
  float clip_at_end = 0;                         // of a clip, at an end
  float inverse_root_at_zero = 0;                // of 1 / sqrt(x), times 0
  bool selects = false;  // whether what does not pass is 0 even if it is NaN; else it is a product with 0
};

struct Loss {
  LossKind kind = LossKind::kSquared;
  bool from_logits = false;
  float numbers[kMostLossNumbers] = {};  // its own
  float label_smoothing = 0;             // of the cross-entropies but the sparse one
  float least = 1e-7f;                   // Keras's epsilon: how far probabilities are kept from 0 and 1
  Kinks kinks;
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
  kLion,      // rate, beta_1, beta_2; a: momentum
  kAdamax,    // rate, 1 - beta_1, beta_2, 1 - beta_1^step, epsilon; a: moment, b: largest size
  kAdadelta,  // rate, rho, epsilon; a: mean square of gradients, b: that of changes
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
