// An element-wise activation of Keras, with its parameters; activations.h computes it.
#pragma once

#include <cstdint>
#include <limits>

namespace cellerate {

struct Activation {
  // The order is that of cellerate.kernels.lstm.spec.ACTIVATIONS.
  enum Kind : int32_t {
    kLinear,
    kTanh,
    kSigmoid,
    kRelu,
    kHardSigmoid,
    kSoftplus,
    kSoftsign,
    kElu,
    kSelu,
    kExponential,
    kRelu6,
    kLeakyRelu,
    kSilu,
    kGelu,
    kHardSilu,
    kHardTanh,
    kMish,
    kCelu,
    kLogSigmoid,
    kHardShrink,
    kSoftShrink,
    kTanhShrink,
    kSquareplus,
    kSparsePlus,
    kSparseSigmoid,
    kThreshold,
    // These differ from the ones above at single points; cellerate.activations says where.
    kSeluFromAbove,
    kLeakyReluFromAbove,
    kCeluOfBothSides,
    kHardTanhOpen,
    kSparseSigmoidBetween,
    kHardShrinkOfNumbers,
    kSoftShrinkOfNumbers,
    kReluBetween,
    kCount
  };
  // In the order of cellerate.activations.PARAMETERS, which explains them.
  static constexpr int kMostParameters = 3;

  // An activation with Keras's defaults.
  constexpr Activation(Kind of = kLinear) : kind(of) {  // NOLINT: a kind stands for its activation
    if (of == kRelu || of == kReluBetween) parameters[1] = std::numeric_limits<float>::infinity();
    if (of == kElu || of == kCelu || of == kCeluOfBothSides) parameters[0] = 1.0f;
    if (of == kLeakyRelu || of == kLeakyReluFromAbove) parameters[0] = 0.2f;
    if (of == kHardShrink || of == kSoftShrink) parameters[0] = 0.5f;
    if (of == kHardShrinkOfNumbers || of == kSoftShrinkOfNumbers) parameters[0] = 0.5f;
    if (of == kSquareplus) parameters[0] = 4.0f;
  }
  constexpr operator Kind() const { return kind; }  // NOLINT: so that it can be compared and switched over

  Kind kind;
  float parameters[kMostParameters] = {};
};

}  // namespace cellerate
