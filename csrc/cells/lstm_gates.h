// The activation of a gate, and how forward keeps the gate for backward.
//
// Both passes must agree on it. Floats are kept as they are: the value, or the pre-activation if the derivative
// cannot be computed from the value. bfloat16 rounds a gate of 0.9975 to 0.9961, which makes its slope s(1 - s) 56 %
// wrong, and after a hundred steps d_c, which the forget gate multiplies at each, 13 % wrong. So in bfloat16, a value
// close to a limit of the activation is kept as its distance from that limit.
#pragma once

#include "cells/activations.h"

namespace cellerate::CELLERATE_TARGET {

template <bool kBfloat16>
class GateFunction {
 public:
  struct Point {
    F value, slope;
  };

  explicit GateFunction(const Activation& kind) : kind_(kind), kept_as_(kept_as(kind)) {}

  // The value at x. Also sets `e`, which kept() needs.
  F value(F x, F& e) const { return activate(kind_, x, e); }

  // The number to keep of a gate whose value at x is y.
  F kept(F x, F y, F e) const {
    if (kBfloat16 && kind_ == Activation::kSigmoid) {
      // 1 - s as e^-x s, which avoids the rounding of a difference.
      return Simd::where_greater(x, set(0.0f), Simd::mul(e, Simd::sub(set(0.0f), y)), y);
    }
    if (kBfloat16 && kind_ == Activation::kTanh) return from_the_ends(y);
    if (kept_as_ == KeptAs::kFromOne) return from_one(y);
    return kept_as_ == KeptAs::kValue ? y : x;
  }

  // The value of the gate and its derivative there.
  Point at(F kept) const {
    if (kBfloat16 && kind_ == Activation::kSigmoid) {
      const F smaller = Simd::where_negative(kept, Simd::sub(set(0.0f), kept), kept);
      const F larger = Simd::sub(set(1.0f), smaller);
      return {Simd::where_negative(kept, larger, smaller), Simd::mul(smaller, larger)};
    }
    F y = kept;
    if (kBfloat16 && kind_ == Activation::kTanh) {
      y = of_the_ends(kept);
    } else if (kept_as_ == KeptAs::kFromOne) {
      y = Simd::where_negative(kept, Simd::add(set(1.0f), kept), kept);
    } else if (kept_as_ == KeptAs::kPreActivation) {
      y = activate(kind_, kept);
    }
    return {y, derivative(kind_, kept, y)};
  }

 private:
  enum class KeptAs {
    kValue,
    kPreActivation,
    kFromOne,   // for a value in [0, 1]: y up to 1/2, and beyond that y - 1, which is -0 for 1
    kFromEnds,  // for tanh: y up to 1/2 in size, and beyond that its distance from 1 or -1, signed, times kFar
  };

  static KeptAs kept_as(const Activation& kind) {
    if (kBfloat16) {
      switch (kind) {
        case Activation::kTanh:
          return KeptAs::kFromEnds;
        case Activation::kSigmoid:
        case Activation::kHardSigmoid:
        case Activation::kSparseSigmoid:
          return KeptAs::kFromOne;
        case Activation::kElu:
        case Activation::kCelu:
        case Activation::kSelu:
        case Activation::kCeluOfBothSides:
        case Activation::kSeluFromAbove:
          // These have a limit on one side only, where rounding x changes the slope little.
          return KeptAs::kPreActivation;
        default:
          break;
      }
    }
    return derivative_from_value(kind) ? KeptAs::kValue : KeptAs::kPreActivation;
  }

  static F from_one(F y) {
    return Simd::where_greater(y, set(0.5f), Simd::mul(Simd::sub(set(1.0f), y), set(-1.0f)), y);
  }

  // Multiplied by kFar, every nonzero distance of a float from 1 is larger than 1. So is kLeastFar, for a distance of
  // zero: divided by kFar, it changes nothing when added to 1.
  static constexpr float kFar = 0x1p32f, kLeastFar = 0x1p6f;

  static F from_the_ends(F y) {
    const F zero = set(0.0f);
    const F size = Simd::max(y, Simd::sub(zero, y));
    const F distance = Simd::max(set(kLeastFar), Simd::fma(size, set(-kFar), set(kFar)));  // exact
    return Simd::where_greater(y, set(0.5f), distance,
                               Simd::where_greater(set(-0.5f), y, Simd::sub(zero, distance), y));
  }
  static F of_the_ends(F kept) {
    const F one = set(1.0f), minus_one = set(-1.0f), back = set(-1 / kFar);
    return Simd::where_greater(kept, one, Simd::fma(kept, back, one),
                               Simd::where_greater(minus_one, kept, Simd::fma(kept, back, minus_one), kept));
  }

  const Activation kind_;
  const KeptAs kept_as_;
};

}  // namespace cellerate::CELLERATE_TARGET
