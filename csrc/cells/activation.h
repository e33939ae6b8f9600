// An element-wise activation of Keras, with its parameters; activations.h computes it.
#pragma once

#include <cstdint>
#include <limits>

namespace cellerate {

struct Activation {
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
    // These differ from the activations above at single points, which cellerate.activations lists.
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
  // The names in cellerate.activations, in the order of Kind. Append new names at the end, because the programs that
  // JAX caches on disk hold these indices.
  static constexpr const char* kNames[] = {
      "linear",
      "tanh",
      "sigmoid",
      "relu",
      "hard_sigmoid",
      "softplus",
      "softsign",
      "elu",
      "selu",
      "exponential",
      "relu6",
      "leaky_relu",
      "silu",
      "gelu",
      "hard_silu",
      "hard_tanh",
      "mish",
      "celu",
      "log_sigmoid",
      "hard_shrink",
      "soft_shrink",
      "tanh_shrink",
      "squareplus",
      "sparse_plus",
      "sparse_sigmoid",
      "threshold",
      "selu_from_above",
      "leaky_relu_from_above",
      "celu_of_both_sides",
      "hard_tanh_open",
      "sparse_sigmoid_between",
      "hard_shrink_of_numbers",
      "soft_shrink_of_numbers",
      "relu_between",
  };
  static_assert(sizeof kNames / sizeof *kNames == kCount);
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
