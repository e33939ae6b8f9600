// The element-wise activations of Keras and their derivatives, for one number at a time: those of csrc/activations.h.
//
// Unlike there, tanh and sigmoid are only as exact as the storage can represent, and the activation is known when a
// kernel is compiled.
#pragma once

#include "device.cuh"

namespace cellerate::gpu {

// The order is that of cellerate.kernels.lstm.spec.ACTIVATIONS.
enum class Activation : int {
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
  // These differ from the ones above at single points; cellerate.activations says where.
  kSeluFromAbove,
  kLeakyReluFromAbove,
  kCeluOfBothSides,
  kHardTanhOpen,
  kSparseSigmoidBetween,
  kHardShrinkOfNumbers,
  kSoftShrinkOfNumbers,
  kCount,
};

constexpr float kSeluAlpha = 1.6732632423543772848f;
constexpr float kSeluScale = 1.0507009873554804934f;
constexpr float kInverseSqrt2 = 0.70710678118654752440f;
constexpr float kInverseSqrt2Pi = 0.39894228040143267794f;

// tanh, as exact as the type needs in which its values are stored: bfloat16 has 8 bits, float16 has 11.
CELLERATE_DEVICE float hyperbolic_tangent(float, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Tf32, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Float16, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Bfloat16, float x) { return tanh_11_bits(x); }

// The smaller of s and 1 - s, for the sigmoid s of x, exact to its own last bits however small it is. What matters of
// a forget gate near 1, over hundreds of steps, is its distance from 1.
CELLERATE_DEVICE float smaller_of_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return e / (1.0f + e);
}
// Replaces several numbers x by exp(-|x|) / (1 + exp(-|x|)) with 22 exact bits: enough for 16-bit storage, where a
// tanh exact to 11 bits of 1 would not be. All share one division.
template <int count>
CELLERATE_DEVICE void short_smaller_of_sigmoids(float (&x)[count]) {
  float before[count];  // the product of the denominators before each
  float product = 1.0f;
  CELLERATE_UNROLL
  for (int n = 0; n < count; ++n) {
    x[n] = exp2_22_bits(-1.44269504f * fabsf(x[n]));
    before[n] = product;
    product *= 1.0f + x[n];
  }
  float after = reciprocal_22_bits(product);
  CELLERATE_UNROLL
  for (int n = count - 1; n >= 0; --n) {
    const float e = x[n];
    x[n] = e * before[n] * after;
    after *= 1.0f + e;
  }
}

CELLERATE_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// With the comparisons in this order, a NaN stays a NaN.
CELLERATE_DEVICE float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
CELLERATE_DEVICE float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

// Whether the derivative can be computed from the activation's value; if not, the pre-activation must be kept.
CELLERATE_DEVICE constexpr bool derivative_from_value(Activation kind) {
  switch (kind) {
    case Activation::kLinear:
    case Activation::kTanh:
    case Activation::kSigmoid:
    case Activation::kRelu:
    case Activation::kHardSigmoid:
    case Activation::kElu:
    case Activation::kCelu:
    case Activation::kSelu:
    case Activation::kExponential:
    case Activation::kRelu6:
    case Activation::kLeakyRelu:
    case Activation::kSparseSigmoid:
    case Activation::kSeluFromAbove:
    case Activation::kLeakyReluFromAbove:
    case Activation::kCeluOfBothSides:
      return true;
    default:
      return false;
  }
}

// The activation's value, as exact as Storage needs.
template <Activation kKind, class Storage>
CELLERATE_DEVICE float activate(float x) {
  switch (kKind) {
    case Activation::kTanh:
      return hyperbolic_tangent(Storage{}, x);
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kRelu:
      return x < 0 ? 0.0f : x;
    case Activation::kHardSigmoid:
      return clamp(x * (1.0f / 6) + 0.5f, 0.0f, 1.0f);
    case Activation::kSoftplus:
      return softplus(x);
    case Activation::kSoftsign:
      return x / (1.0f + fabsf(x));
    case Activation::kElu:
    case Activation::kCelu:
    case Activation::kCeluOfBothSides:
      return x > 0 ? x : expm1f(x);
    case Activation::kSelu:
    case Activation::kSeluFromAbove:
      return kSeluScale * (x > 0 ? x : kSeluAlpha * expm1f(x));
    case Activation::kExponential:
      return expf(x);
    case Activation::kRelu6:
      return clamp(x, 0.0f, 6.0f);
    case Activation::kLeakyRelu:
    case Activation::kLeakyReluFromAbove:
      return x > 0 ? x : 0.2f * x;
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:
      return 0.5f * x * erfcf(-x * kInverseSqrt2);
    case Activation::kHardSilu:
      return x * clamp(x * (1.0f / 6) + 0.5f, 0.0f, 1.0f);
    case Activation::kHardTanh:
    case Activation::kHardTanhOpen:
      return clamp(x, -1.0f, 1.0f);
    case Activation::kMish:
      return x * tanhf(softplus(x));
    case Activation::kLogSigmoid:
      return -softplus(-x);
    case Activation::kHardShrink:
      return fabsf(x) <= 0.5f ? 0.0f : x;
    case Activation::kSoftShrink:
      return x > 0.5f ? x - 0.5f : x < -0.5f ? x + 0.5f : x - x;
    // A NaN is not beyond 0.5.
    case Activation::kHardShrinkOfNumbers:
      return fabsf(x) > 0.5f ? x : 0.0f;
    case Activation::kSoftShrinkOfNumbers:
      return x > 0.5f ? x - 0.5f : x < -0.5f ? x + 0.5f : 0.0f;
    case Activation::kTanhShrink:
      return x - tanhf(x);
    case Activation::kSquareplus:
      return 0.5f * (x + sqrtf(x * x + 4.0f));
    case Activation::kSparsePlus:
      return x <= -1 ? 0.0f : x < 1 ? 0.25f * (x + 1) * (x + 1) : x;
    case Activation::kSparseSigmoid:
    case Activation::kSparseSigmoidBetween:
      return clamp(0.5f * x + 0.5f, 0.0f, 1.0f);
    default:
      return x;
  }
}

// The derivative at pre-activation x, where the value is y. If derivative_from_value(kKind), x is not used.
template <Activation kKind>
CELLERATE_DEVICE float derivative(float x, float y) {
  switch (kKind) {
    case Activation::kTanh:
      return 1.0f - y * y;
    case Activation::kSigmoid:
      return y * (1.0f - y);
    case Activation::kRelu:
      return y > 0 ? 1.0f : 0.0f;
    case Activation::kHardSigmoid:
      return y > 0 && y < 1 ? 1.0f / 6 : 0.0f;
    case Activation::kSoftplus:
      return sigmoid(x);
    case Activation::kSoftsign:
      return 1.0f / ((1.0f + fabsf(x)) * (1.0f + fabsf(x)));
    case Activation::kElu:
    case Activation::kCelu:
      return y > 0 ? 1.0f : y + 1.0f;
    case Activation::kSelu:
      return y > 0 ? kSeluScale : y + kSeluScale * kSeluAlpha;
    case Activation::kCeluOfBothSides:
      return y > 0 ? 1.0f : y < 0 ? y + 1.0f : 2.0f;
    case Activation::kSeluFromAbove:
      return y < 0 ? y + kSeluScale * kSeluAlpha : kSeluScale;
    case Activation::kExponential:
      return y;
    case Activation::kRelu6:
      return y > 0 && y < 6 ? 1.0f : 0.0f;
    case Activation::kLeakyRelu:
      return y > 0 ? 1.0f : 0.2f;
    case Activation::kLeakyReluFromAbove:
      return y < 0 ? 0.2f : 1.0f;
    case Activation::kSilu: {
      const float s = sigmoid(x);
      return s * (1.0f + x * (1.0f - s));
    }
    case Activation::kGelu:
      return 0.5f * erfcf(-x * kInverseSqrt2) + x * kInverseSqrt2Pi * expf(-0.5f * x * x);
    case Activation::kHardSilu:
      return x <= -3 ? 0.0f : x >= 3 ? 1.0f : x / 3 + 0.5f;
    case Activation::kHardTanh:
      // 1 at both ends, which cannot be told from the value alone.
      return x < -1 || x > 1 ? 0.0f : 1.0f;
    case Activation::kHardTanhOpen:
      return x > -1 && x < 1 ? 1.0f : 0.0f;
    case Activation::kMish: {
      const float t = tanhf(softplus(x));
      return t + x * (1.0f - t * t) * sigmoid(x);
    }
    case Activation::kLogSigmoid:
      return sigmoid(-x);
    case Activation::kHardShrink:
    case Activation::kSoftShrink:
    case Activation::kHardShrinkOfNumbers:
    case Activation::kSoftShrinkOfNumbers:
      return fabsf(x) > 0.5f ? 1.0f : 0.0f;
    case Activation::kTanhShrink:
      return tanhf(x) * tanhf(x);
    case Activation::kSquareplus:
      return 0.5f * (1.0f + x / sqrtf(x * x + 4.0f));
    case Activation::kSparsePlus:
      return x <= -1 ? 0.0f : x < 1 ? 0.5f * (x + 1) : 1.0f;
    case Activation::kSparseSigmoid:
      return y > 0 && y < 1 ? 0.5f : 0.0f;
    case Activation::kSparseSigmoidBetween:
      return fabsf(x) == 1 ? 0.25f : fabsf(x) < 1 ? 0.5f : 0.0f;
    default:
      return 1.0f;
  }
}

}  // namespace cellerate::gpu
