// The element-wise activations of Keras and their derivatives, for one number at a time: those of
// csrc/cells/activations.h.
//
// Here, tanh and sigmoid are only as exact as the storage type, and the activation is a compile-time parameter.
#pragma once

#include "device.cuh"

namespace cellerate::gpu {

// An activation with its parameters, all known at compile time.
struct Activation {
  // The names of cellerate.activations, which kernels.cuda.sources writes into a kernel's source.
  enum Kind : int {
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

  CELLERATE_DEVICE constexpr operator Kind() const { return kind; }  // so that it can be compared

  Kind kind;
  // The bits of float numbers, in the order of cellerate.activations.PARAMETERS.
  unsigned first = 0, second = 0, third = 0;
};
CELLERATE_DEVICE constexpr Activation activation_of(Activation::Kind kind, unsigned first = 0,
                                                    unsigned second = 0, unsigned third = 0) {
  return {kind, first, second, third};
}

constexpr float kSeluAlpha = 1.6732632423543772848f;
constexpr float kSeluScale = 1.0507009873554804934f;
constexpr float kInverseSqrt2 = 0.70710678118654752440f;
constexpr float kInverseSqrt2Pi = 0.39894228040143267794f;

// tanh, as exact as its storage type needs: bfloat16 has 8 bits, float16 has 11.
CELLERATE_DEVICE float hyperbolic_tangent(float, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Tf32, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Float16, float x) { return tanhf(x); }
CELLERATE_DEVICE float hyperbolic_tangent(Bfloat16, float x) { return tanh_11_bits(x); }

// The smaller of s and 1 - s, for the sigmoid s of x, exact to its last bits even if it is small: the distance of a
// forget gate from 1 matters over hundreds of steps.
CELLERATE_DEVICE float smaller_of_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return e / (1.0f + e);
}
// Replaces several numbers x by exp(-|x|) / (1 + exp(-|x|)) with 22 exact bits: enough for 16-bit storage, for which
// the 11 exact bits of tanh_11_bits are too few. All share one division.
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

// This order of comparisons keeps NaN.
CELLERATE_DEVICE float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
CELLERATE_DEVICE float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

constexpr unsigned kInfinityBits = 0x7f800000u;
// Whether a ReLU has Keras's defaults.
CELLERATE_DEVICE constexpr bool is_plain_relu(Activation of) {
  return of.first == 0 && of.second == kInfinityBits && of.third == 0;
}

// The factor of x in the approximation of GELU, (1 + tanh u) / 2, as the sigmoid of 2u, which stays accurate where tanh
// is near -1. Source: Hendrycks and Gimpel, 2016, equation 2.
constexpr float kGeluScale = 2 * 0.79788456080286535588f, kGeluCubic = 0.044715f * kGeluScale;
CELLERATE_DEVICE float gelu_factor(float x) { return sigmoid(x * (kGeluScale + kGeluCubic * x * x)); }

// Whether the derivative can be computed from the activation's value; if not, the pre-activation must be kept.
CELLERATE_DEVICE constexpr bool derivative_from_value(Activation of) {
  switch (of) {
    case Activation::kLinear:
    case Activation::kTanh:
    case Activation::kSigmoid:
    case Activation::kHardSigmoid:
    case Activation::kSelu:
    case Activation::kExponential:
    case Activation::kRelu6:
    case Activation::kSparseSigmoid:
    case Activation::kSeluFromAbove:
      return true;
    case Activation::kRelu:
    case Activation::kReluBetween:
      return is_plain_relu(of);
    // With a slope or an alpha above 0 the value has the sign of the pre-activation.
    case Activation::kElu:
    case Activation::kCelu:
    case Activation::kLeakyRelu:
    case Activation::kLeakyReluFromAbove:
    case Activation::kCeluOfBothSides:
      return static_cast<int>(of.first) > 0;
    default:
      return false;
  }
}

// The activation's value, as exact as Storage needs.
template <Activation kKind, class Storage>
CELLERATE_DEVICE float activate(float x) {
  [[maybe_unused]] const float parameter = from_bits(kKind.first), second = from_bits(kKind.second);
  switch (kKind) {
    case Activation::kTanh:
      return hyperbolic_tangent(Storage{}, x);
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kRelu:
    case Activation::kReluBetween: {
      if constexpr (is_plain_relu(kKind)) return x < 0 ? 0.0f : x;
      // Below a maximum, numbers between a negative threshold and 0 become 0.
      const float above = kKind.second == kInfinityBits ? x : clamp(x, 0.0f, second);
      const float threshold = from_bits(kKind.third);
      return x > threshold ? above : parameter * (x - threshold);
    }
    case Activation::kHardSigmoid:
      return clamp(x * (1.0f / 6) + 0.5f, 0.0f, 1.0f);
    case Activation::kSoftplus:
      return softplus(x);
    case Activation::kSoftsign:
      return x / (1.0f + fabsf(x));
    case Activation::kElu:
      return x > 0 ? x : parameter * expm1f(x);
    case Activation::kCelu:
    case Activation::kCeluOfBothSides:
      return x > 0 ? x : parameter * expm1f(x / parameter);
    case Activation::kSelu:
    case Activation::kSeluFromAbove:
      return kSeluScale * (x > 0 ? x : kSeluAlpha * expm1f(x));
    case Activation::kExponential:
      return expf(x);
    case Activation::kRelu6:
      return clamp(x, 0.0f, 6.0f);
    case Activation::kLeakyRelu:
    case Activation::kLeakyReluFromAbove:
      return x > 0 ? x : parameter * x;
    case Activation::kSilu:
      return x * sigmoid(x);
    case Activation::kGelu:
      if constexpr (kKind.first != 0) return x * gelu_factor(x);
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
      return fabsf(x) <= parameter ? 0.0f : x;
    case Activation::kSoftShrink:
      return x > parameter ? x - parameter : x < -parameter ? x + parameter : x - x;
    // A NaN is not beyond the threshold.
    case Activation::kHardShrinkOfNumbers:
      return fabsf(x) > parameter ? x : 0.0f;
    case Activation::kSoftShrinkOfNumbers:
      return x > parameter ? x - parameter : x < -parameter ? x + parameter : 0.0f;
    case Activation::kTanhShrink:
      return x - tanhf(x);
    case Activation::kSquareplus:
      return 0.5f * (x + sqrtf(x * x + parameter));
    case Activation::kThreshold:
      return x > parameter ? x : second;
    case Activation::kSparsePlus:
      return x <= -1 ? 0.0f : x < 1 ? 0.25f * (x + 1) * (x + 1) : x;
    case Activation::kSparseSigmoid:
    case Activation::kSparseSigmoidBetween:
      return clamp(0.5f * x + 0.5f, 0.0f, 1.0f);
    default:
      return x;
  }
}

// The derivative at pre-activation x with value y. If derivative_from_value(kKind), x is not used.
template <Activation kKind>
CELLERATE_DEVICE float derivative(float x, float y) {
  [[maybe_unused]] const float parameter = from_bits(kKind.first), second = from_bits(kKind.second);
  // A number with the sign of x: the value if possible, else x.
  [[maybe_unused]] const float side = derivative_from_value(kKind) ? y : x;
  switch (kKind) {
    case Activation::kTanh:
      return 1.0f - y * y;
    case Activation::kSigmoid:
      return y * (1.0f - y);
    case Activation::kRelu:
    case Activation::kReluBetween: {
      if constexpr (is_plain_relu(kKind)) return y > 0 ? 1.0f : 0.0f;
      const float threshold = from_bits(kKind.third);
      if (x > threshold) {
        if (kKind.second == kInfinityBits || (x > 0 && x < second)) return 1.0f;
        return x < 0 || x > second ? 0.0f : kKind == Activation::kReluBetween ? 0.5f : 1.0f;
      }
      return x < threshold ? parameter : 0.0f;
    }
    case Activation::kHardSigmoid:
      return y > 0 && y < 1 ? 1.0f / 6 : 0.0f;
    case Activation::kSoftplus:
      return sigmoid(x);
    case Activation::kSoftsign:
      return 1.0f / ((1.0f + fabsf(x)) * (1.0f + fabsf(x)));
    case Activation::kElu:
      return side > 0 ? 1.0f : y + parameter;
    case Activation::kCelu:
      return side > 0 ? 1.0f : y / parameter + 1.0f;
    case Activation::kSelu:
      return y > 0 ? kSeluScale : y + kSeluScale * kSeluAlpha;
    case Activation::kCeluOfBothSides:
      return side > 0 ? 1.0f : side < 0 ? y / parameter + 1.0f : 2.0f;
    case Activation::kSeluFromAbove:
      return y < 0 ? y + kSeluScale * kSeluAlpha : kSeluScale;
    case Activation::kExponential:
      return y;
    case Activation::kRelu6:
      return y > 0 && y < 6 ? 1.0f : 0.0f;
    case Activation::kLeakyRelu:
      return side > 0 ? 1.0f : parameter;
    case Activation::kLeakyReluFromAbove:
      return side < 0 ? parameter : 1.0f;
    case Activation::kSilu: {
      const float s = sigmoid(x);
      return s * (1.0f + x * (1.0f - s));
    }
    case Activation::kGelu:
      if constexpr (kKind.first != 0) {
        const float s = gelu_factor(x);
        return s + x * s * (1.0f - s) * (kGeluScale + 3.0f * kGeluCubic * x * x);
      }
      return 0.5f * erfcf(-x * kInverseSqrt2) + x * kInverseSqrt2Pi * expf(-0.5f * x * x);
    case Activation::kHardSilu:
      return x <= -3 ? 0.0f : x >= 3 ? 1.0f : x / 3 + 0.5f;
    case Activation::kHardTanh:
      // 1 at both ends. The value alone does not tell whether x is at an end or beyond it.
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
      return fabsf(x) > parameter ? 1.0f : 0.0f;
    case Activation::kTanhShrink:
      return tanhf(x) * tanhf(x);
    case Activation::kSquareplus:
      return 0.5f * (1.0f + x / sqrtf(x * x + parameter));
    case Activation::kThreshold:
      return x > parameter ? 1.0f : 0.0f;
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
