// The functions of a single number that a function node computes, and their slopes.
#pragma once

#include "cells/activations.h"
#include "engine/program.h"

namespace cellerate::CELLERATE_TARGET {

// Out of line, because callers call it lane by lane and would otherwise hold a copy of the code for each lane.
[[gnu::noinline]] inline float function_of(Function of, float number, float x) {
  switch (of) {
    case Function::kSqrt:
      return __builtin_sqrtf(x);
    case Function::kRsqrt:
      return 1 / __builtin_sqrtf(x);
    case Function::kReciprocal:
      return 1 / x;
    case Function::kLog:
      return logf(x);
    case Function::kLog1p:
      return log1pf(x);
    case Function::kExpm1:
      return expm1f(x);
    case Function::kSin:
      return sinf(x);
    case Function::kCos:
      return cosf(x);
    case Function::kAbs:
      return __builtin_fabsf(x);
    case Function::kSign:
      return x > 0 ? 1.0f : x < 0 ? -1.0f : x;  // keeps NaN and zeros
    case Function::kFloor:
      return floorf(x);
    case Function::kCeil:
      return ceilf(x);
    case Function::kRound:
      return rintf(x);
    case Function::kPower:
      return powf(x, number);
    case Function::kGreater:
      return x > number ? 1.0f : 0.0f;
    case Function::kGreaterEqual:
      return x >= number ? 1.0f : 0.0f;
    case Function::kLess:
      return x < number ? 1.0f : 0.0f;
    case Function::kLessEqual:
      return x <= number ? 1.0f : 0.0f;
    case Function::kEqual:
      return x == number ? 1.0f : 0.0f;
    default:
      return x != number ? 1.0f : 0.0f;
  }
}

// The derivative at x, where the value is y.
[[gnu::noinline]] inline float slope_of(Function of, float number, float x, float y) {
  switch (of) {
    case Function::kSqrt:
      return 0.5f / y;
    case Function::kRsqrt:
      return -0.5f * y * y * y;
    case Function::kReciprocal:
      return -y * y;
    case Function::kLog:
      return 1 / x;
    case Function::kLog1p:
      return 1 / (1 + x);
    case Function::kExpm1:
      return y + 1;
    case Function::kSin:
      return cosf(x);
    case Function::kCos:
      return -sinf(x);
    case Function::kAbs:
      return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
    case Function::kPower:
      return number == 0 ? 0.0f : number * powf(x, number - 1);
    default:  // step functions
      return 0;
  }
}

inline F function_of(Function of, float number, F x) {
  switch (of) {
    case Function::kSqrt:
      return Simd::square_root(x);
    case Function::kRsqrt:
      return Simd::div(set(1.0f), Simd::square_root(x));
    case Function::kReciprocal:
      return Simd::div(set(1.0f), x);
    case Function::kRound:
      return Simd::round(x);
    default:
      return each_lane(x, [=](float one) { return function_of(of, number, one); });
  }
}

}  // namespace cellerate::CELLERATE_TARGET
