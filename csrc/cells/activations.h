// The element-wise activations of Keras and their derivatives, on vectors.
//
// Errors against float64 are in units in the last place (ulp); tests/kernels/lstm/test_activations.py measures them.
#pragma once

#include <cmath>

#include "products/words.h"

namespace cellerate::CELLERATE_TARGET {

inline F set(float x) { return Simd::set(x); }
inline F clamp(F x, float low, float high) {
  // This order of arguments keeps NaN: min and max return their second argument if either is NaN.
  return Simd::min(set(high), Simd::max(set(low), x));
}

// Calls body(0), body(1), ..., body(kCount - 1). Functions of several vectors use it for each operation in turn: the
// operations of one vector wait for each other, those of different vectors do not.
template <int kCount, class Body>
CELLERATE_PART_OF_CALLER inline void each_vector(Body body) {
#pragma GCC unroll 8
  for (int n = 0; n < kCount; ++n) body(n);
}

// The polynomials p of r, one coefficient further: p = p r + next.
template <int kCount>
CELLERATE_PART_OF_CALLER inline void add_term(F (&p)[kCount], const F (&r)[kCount], float next) {
  each_vector<kCount>([&](int k) { p[k] = Simd::fma(p[k], r[k], set(next)); });
}

// x = e^x within 2 ulp, for x from -104 to `high`; beyond, the value at that end. It is finite for `high` up to 88.
// kBesideOne saves steps for callers that only add 1 to e^x: it is within 5 ulp, or within 2 where |x| is below 14, and
// no smaller than e to the power of Simd::kLowestPower.
// Source: Cody and Waite's reduction, x = n ln 2 + r; the polynomial is the best of degree 6 that begins with 1 + r,
// for |r| up to ln 2 / 2: it errs by 3e-9.
template <bool kBesideOne, int kCount>
CELLERATE_PART_OF_CALLER inline void exponentials(F (&x)[kCount], float high) {
  F n[kCount], r[kCount], p[kCount];
  each_vector<kCount>([&](int k) { x[k] = clamp(x[k], kBesideOne ? Simd::kLowestPower : -104.0f, high); });
  each_vector<kCount>([&](int k) { n[k] = Simd::round(Simd::mul(x[k], set(1.44269504088896341f))); });
  if constexpr (kBesideOne && Simd::kFused) {
    each_vector<kCount>([&](int k) { r[k] = Simd::fma(n[k], set(-0.69314718055994531f), x[k]); });
  } else {
    each_vector<kCount>([&](int k) { r[k] = Simd::fma(n[k], set(-0.693359375f), x[k]); });
    each_vector<kCount>([&](int k) { r[k] = Simd::fma(n[k], set(2.12194440e-4f), r[k]); });
  }
  each_vector<kCount>([&](int k) { p[k] = set(1.3814540579915047e-3f); });
  add_term(p, r, 8.3687454462051392e-3f);
  add_term(p, r, 4.1668388992548e-2f);
  add_term(p, r, 1.6666521131992340e-1f);
  add_term(p, r, 4.9999994039535522e-1f);
  add_term(p, r, 1.0f);
  add_term(p, r, 1.0f);
  each_vector<kCount>(
      [&](int k) { x[k] = kBesideOne ? Simd::scale_normal(p[k], n[k]) : Simd::scale(p[k], n[k]); });
}
inline F exponential(F x, float high) {
  F of[1] = {x};
  exponentials<false>(of, high);
  return of[0];
}

// Quotients before their division.
template <int kCount>
struct Quotients {
  F above[kCount], below[kCount];
};

// tanh within 4 ulp, or within 6 if fma rounds twice.
// Source: Eigen's rational approximation (ptanh_float), degree 13 over degree 6.
template <int kCount>
CELLERATE_PART_OF_CALLER inline Quotients<kCount> tangent_quotients(F (&x)[kCount]) {
  // The limit is where the quotient reaches 1, which depends on how its terms are rounded.
  constexpr float kLimit = Simd::kFused ? 7.99881172180175781f : 7.90531110763549805f;
  F square[kCount];
  Quotients<kCount> y;
  each_vector<kCount>([&](int k) { x[k] = clamp(x[k], -kLimit, kLimit); });
  each_vector<kCount>([&](int k) { square[k] = Simd::mul(x[k], x[k]); });
  each_vector<kCount>([&](int k) { y.above[k] = set(-2.76076847742355e-16f); });
  add_term(y.above, square, 2.00018790482477e-13f);
  add_term(y.above, square, -8.60467152213735e-11f);
  add_term(y.above, square, 5.12229709037114e-08f);
  add_term(y.above, square, 1.48572235717979e-05f);
  add_term(y.above, square, 6.37261928875436e-04f);
  add_term(y.above, square, 4.89352455891786e-03f);
  each_vector<kCount>([&](int k) { y.below[k] = set(1.19825839466702e-06f); });
  add_term(y.below, square, 1.18534705686654e-04f);
  add_term(y.below, square, 2.26843463243900e-03f);
  add_term(y.below, square, 4.89352518554385e-03f);
  each_vector<kCount>([&](int k) { y.above[k] = Simd::mul(x[k], y.above[k]); });
  return y;
}
inline F hyperbolic_tangent(F x) {
  F of[1] = {x};
  const Quotients<1> y = tangent_quotients(of);
  return Simd::div(y.above[0], y.below[0]);
}

// x = 1 + e^-x, finite for all x.
template <int kCount>
CELLERATE_PART_OF_CALLER inline void one_and_exponentials(F (&x)[kCount]) {
  each_vector<kCount>([&](int k) { x[k] = Simd::sub(set(0.0f), x[k]); });
  exponentials<true>(x, 88.0f);
  each_vector<kCount>([&](int k) { x[k] = Simd::add(set(1.0f), x[k]); });
}
// 1 / (1 + e^-x) within 4 ulp for x from -14 on and within 6 below, and e^-x.
inline F logistic(F x, F& e) {
  F of[1] = {Simd::sub(set(0.0f), x)};
  exponentials<true>(of, 88.0f);
  e = of[0];
  return Simd::div(set(1.0f), Simd::add(set(1.0f), e));
}
inline F logistic(F x) {
  F e;
  return logistic(x, e);
}

// Whether the activations are tanh and sigmoid, as in nearly every LSTM. These have separate code: calls of the rare
// activations must save registers, which would cost the forward pass a tenth more instructions.
constexpr bool has_usual_gates(Activation activation, Activation recurrent_activation) {
  return activation == Activation::kTanh && recurrent_activation == Activation::kSigmoid;
}

// The new state of some units of an LSTM.
struct CellState {
  F c, h;
};

// With the usual activations: c' = sigmoid(f) c + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c'), for kCount vectors of
// units; gate(n, k) is gate k of vector n. Multiplying the quotients before dividing takes three divisions instead of
// five, which saves a tenth of the function's time. Nothing overflows, because the quotients of tanh are below 1.
template <int kCount, class Gate>
CELLERATE_PART_OF_CALLER inline void usual_cells(Gate gate, F (&c)[kCount], F (&h)[kCount]) {
  F x[kCount], sigmoid[kCount];
  const auto read = [&](F(&to)[kCount], int which) {
    each_vector<kCount>([&](int n) { to[n] = gate(n, which); });
  };
  read(x, 2);
  const Quotients<kCount> candidate = tangent_quotients(x);
  read(sigmoid, 0);
  one_and_exponentials(sigmoid);
  F added[kCount];
  each_vector<kCount>(
      [&](int n) { added[n] = Simd::div(candidate.above[n], Simd::mul(sigmoid[n], candidate.below[n])); });
  read(sigmoid, 1);
  one_and_exponentials(sigmoid);
  each_vector<kCount>([&](int n) { c[n] = Simd::add(Simd::div(c[n], sigmoid[n]), added[n]); });
  read(sigmoid, 3);
  one_and_exponentials(sigmoid);
  each_vector<kCount>([&](int n) { x[n] = c[n]; });
  const Quotients<kCount> shown = tangent_quotients(x);
  each_vector<kCount>(
      [&](int n) { h[n] = Simd::div(shown.above[n], Simd::mul(sigmoid[n], shown.below[n])); });
}
CELLERATE_PART_OF_CALLER inline CellState usual_cell_here(F i, F f, F g, F o, F c) {
  const F gates[] = {i, f, g, o};
  F cell[1] = {c}, h[1];
  usual_cells([&](int, int k) { return gates[k]; }, cell, h);
  return {cell[0], h[0]};
}
inline CellState usual_cell(F i, F f, F g, F o, F c) { return usual_cell_here(i, f, g, o, c); }

// The same for `count` vectors in memory, four at once.
//
// Args: sums: gate k of vector n begins at n * next + k * gate. c: [count][kLanes], updated. h: [count][h_row], written.
[[gnu::noinline]] inline void usual_cells(const float* sums, Index next, Index gate, Index count, float* c,
                                          float* h, Index h_row) {
  const auto advance = [&]<int kCount>() {
    F cells[kCount], states[kCount];
    each_vector<kCount>([&](int n) { cells[n] = Simd::load(c + n * kLanes); });
    usual_cells([&](int n, int k) { return Simd::load(sums + n * next + k * gate); }, cells, states);
    each_vector<kCount>([&](int n) { Simd::store(c + n * kLanes, cells[n]); });
    each_vector<kCount>([&](int n) { Simd::store(h + n * h_row, states[n]); });
    sums += kCount * next, c += kCount * kLanes, h += kCount * h_row, count -= kCount;
  };
  while (count >= 4) advance.template operator()<4>();
  if (count >= 2) advance.template operator()<2>();
  if (count == 1) advance.template operator()<1>();
}

// For activations that are rare in an LSTM: calls the C library, one lane at a time.
template <class Function>
inline F each_lane(F x, Function function) {
  float lanes[Simd::kLanes];
  Simd::store(lanes, x);
  for (float& lane : lanes) lane = function(lane);
  return Simd::load(lanes);
}

constexpr float kSeluAlpha = 1.6732632423543772848f;
constexpr float kSeluScale = 1.0507009873554804934f;
constexpr float kInverseSqrt2 = 0.70710678118654752440f;
constexpr float kInverseSqrt2Pi = 0.39894228040143267794f;

inline float softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }
inline float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }

constexpr bool is_plain_relu(const Activation& of) {
  return of.parameters[0] == 0 && of.parameters[1] == std::numeric_limits<float>::infinity() &&
         of.parameters[2] == 0;
}
// ReLU with any slope, maximum and threshold. Below a maximum, numbers between a negative threshold and 0 become 0.
inline F relu_of(const Activation& of, F x) {
  const F slope = set(of.parameters[0]), threshold = set(of.parameters[2]);
  const float high = of.parameters[1];
  const F above = high < std::numeric_limits<float>::infinity() ? clamp(x, 0.0f, high) : x;
  return Simd::where_greater(x, threshold, above, Simd::mul(slope, Simd::sub(x, threshold)));
}
inline F relu_slope_of(const Activation& of, F x) {
  const F zero = set(0.0f), one = set(1.0f), threshold = set(of.parameters[2]);
  F above = one;
  if (of.parameters[1] < std::numeric_limits<float>::infinity()) {
    const F high = set(of.parameters[1]), at_ends = set(of == Activation::kReluBetween ? 0.5f : 1.0f);
    const F inside = Simd::where_greater(high, x, Simd::where_greater(x, zero, one, at_ends), at_ends);
    above = Simd::where_greater(x, high, zero, Simd::where_greater(zero, x, zero, inside));
  }
  const F below = Simd::where_greater(threshold, x, set(of.parameters[0]), zero);
  return Simd::where_greater(x, threshold, above, below);
}

// The factor of x in the approximation of GELU, (1 + tanh u) / 2, as the sigmoid of 2u, which loses no accuracy where
// tanh is near -1. Source: Hendrycks and Gimpel, 2016, equation 2.
constexpr float kGeluScale = 2 * 0.79788456080286535588f, kGeluCubic = 0.044715f * kGeluScale;
inline F gelu_factor(F x) {
  return logistic(Simd::mul(x, Simd::fma(Simd::mul(x, x), set(kGeluCubic), set(kGeluScale))));
}

// Whether the derivative can be computed from the activation's value; if not, the pre-activation must be kept.
constexpr bool derivative_from_value(const Activation& of) {
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
      return of.parameters[0] > 0;
    default:
      return false;
  }
}

// The value of an activation other than tanh and sigmoid; out of line, so that the code for those two stays small.
[[gnu::noinline]] inline F activate_other(const Activation& of, F x) {
  const F zero = set(0.0f);
  const float parameter = of.parameters[0];
  switch (of) {
    case Activation::kRelu:
    case Activation::kReluBetween:
      return is_plain_relu(of) ? Simd::max(zero, x) : relu_of(of, x);
    case Activation::kHardSigmoid:
      return clamp(Simd::fma(x, set(1.0f / 6), set(0.5f)), 0.0f, 1.0f);
    case Activation::kSoftplus:
      return each_lane(x, softplus);
    case Activation::kSoftsign:
      return Simd::div(x, Simd::add(set(1.0f), Simd::max(x, Simd::sub(zero, x))));
    case Activation::kElu:
      return Simd::where_greater(x, zero, x, each_lane(x, [=](float v) { return parameter * expm1f(v); }));
    case Activation::kCelu:
    case Activation::kCeluOfBothSides:
      return Simd::where_greater(x, zero, x,
                                 each_lane(x, [=](float v) { return parameter * expm1f(v / parameter); }));
    case Activation::kSelu:
    case Activation::kSeluFromAbove:
      return Simd::mul(
          set(kSeluScale),
          Simd::where_greater(x, zero, x, each_lane(x, [](float v) { return kSeluAlpha * expm1f(v); })));
    case Activation::kExponential:
      return exponential(x, 89.0f);
    case Activation::kRelu6:
      return clamp(x, 0.0f, 6.0f);
    case Activation::kLeakyRelu:
    case Activation::kLeakyReluFromAbove:
      return Simd::where_greater(x, zero, x, Simd::mul(x, set(parameter)));
    case Activation::kSilu:
      return Simd::mul(x, logistic(x));
    case Activation::kGelu:
      if (parameter != 0) return Simd::mul(x, gelu_factor(x));
      return each_lane(x, [](float v) { return 0.5f * v * erfcf(-v * kInverseSqrt2); });
    case Activation::kHardSilu:
      return Simd::mul(x, clamp(Simd::fma(x, set(1.0f / 6), set(0.5f)), 0.0f, 1.0f));
    case Activation::kHardTanh:
    case Activation::kHardTanhOpen:
      return clamp(x, -1.0f, 1.0f);
    case Activation::kMish:
      return Simd::mul(x, hyperbolic_tangent(each_lane(x, softplus)));
    case Activation::kLogSigmoid:
      return each_lane(x, [](float v) { return -softplus(-v); });
    case Activation::kHardShrink:
      return each_lane(x, [=](float v) { return std::fabs(v) <= parameter ? 0.0f : v; });
    case Activation::kSoftShrink:
      return each_lane(x, [=](float v) {
        return v > parameter ? v - parameter : v < -parameter ? v + parameter : v - v;
      });
    // NaN is not beyond the threshold.
    case Activation::kHardShrinkOfNumbers:
      return each_lane(x, [=](float v) { return std::fabs(v) > parameter ? v : 0.0f; });
    case Activation::kSoftShrinkOfNumbers:
      return each_lane(x, [=](float v) {
        return v > parameter ? v - parameter : v < -parameter ? v + parameter : 0.0f;
      });
    case Activation::kTanhShrink:
      return each_lane(x, [](float v) { return v - tanhf(v); });
    case Activation::kSquareplus:
      return each_lane(x, [=](float v) { return 0.5f * (v + sqrtf(v * v + parameter)); });
    case Activation::kThreshold:
      return Simd::where_greater(x, set(parameter), x, set(of.parameters[1]));
    case Activation::kSparsePlus:
      return each_lane(x, [](float v) { return v <= -1 ? 0.0f : v < 1 ? 0.25f * (v + 1) * (v + 1) : v; });
    case Activation::kSparseSigmoid:
    case Activation::kSparseSigmoidBetween:
      return clamp(Simd::fma(x, set(0.5f), set(0.5f)), 0.0f, 1.0f);
    default:
      return x;
  }
}

// The derivative of an activation other than tanh and sigmoid.
[[gnu::noinline]] inline F derivative_other(const Activation& of, F x, F y) {
  const F zero = set(0.0f);
  const F one = set(1.0f);
  const float parameter = of.parameters[0];
  // A number with the sign of x: the value where possible, else x.
  const F side = derivative_from_value(of) ? y : x;
  switch (of) {
    case Activation::kRelu:
    case Activation::kReluBetween:
      return is_plain_relu(of) ? Simd::where_greater(y, zero, one, zero) : relu_slope_of(of, x);
    case Activation::kHardSigmoid:
      return Simd::where_greater(y, zero, Simd::where_greater(one, y, set(1.0f / 6), zero), zero);
    case Activation::kSoftplus:
      return logistic(x);
    case Activation::kSoftsign: {
      const F d = Simd::add(one, Simd::max(x, Simd::sub(zero, x)));
      return Simd::div(one, Simd::mul(d, d));
    }
    case Activation::kElu:
      return Simd::where_greater(side, zero, one, Simd::add(y, set(parameter)));
    case Activation::kCelu:
      return Simd::where_greater(side, zero, one, Simd::fma(y, set(1.0f / parameter), one));
    case Activation::kSelu:
      return Simd::where_greater(y, zero, set(kSeluScale), Simd::add(y, set(kSeluScale * kSeluAlpha)));
    case Activation::kCeluOfBothSides: {
      const F below = Simd::fma(y, set(1.0f / parameter), one);
      return Simd::where_greater(side, zero, one, Simd::where_greater(zero, side, below, set(2.0f)));
    }
    case Activation::kSeluFromAbove:
      return Simd::where_greater(zero, y, Simd::add(y, set(kSeluScale * kSeluAlpha)), set(kSeluScale));
    case Activation::kExponential:
      return y;
    case Activation::kRelu6:
      return Simd::where_greater(y, zero, Simd::where_greater(set(6.0f), y, one, zero), zero);
    case Activation::kLeakyRelu:
      return Simd::where_greater(side, zero, one, set(parameter));
    case Activation::kLeakyReluFromAbove:
      return Simd::where_greater(zero, side, set(parameter), one);
    case Activation::kSilu: {
      const F s = logistic(x);
      return Simd::mul(s, Simd::fma(x, Simd::sub(one, s), one));
    }
    case Activation::kGelu:
      if (parameter != 0) {
        const F s = gelu_factor(x), inner = Simd::fma(Simd::mul(x, x), set(3 * kGeluCubic), set(kGeluScale));
        return Simd::fma(Simd::mul(x, Simd::mul(s, Simd::sub(one, s))), inner, s);
      }
      return each_lane(x, [](float v) {
        return 0.5f * erfcf(-v * kInverseSqrt2) + v * kInverseSqrt2Pi * expf(-0.5f * v * v);
      });
    case Activation::kHardSilu:
      return each_lane(x, [](float v) { return v <= -3 ? 0.0f : v >= 3 ? 1.0f : v / 3 + 0.5f; });
    case Activation::kHardTanh:
      // 1 at both ends. The value alone does not tell whether x is at an end or beyond it.
      return Simd::where_greater(x, one, zero, Simd::where_greater(set(-1.0f), x, zero, one));
    case Activation::kHardTanhOpen:
      return Simd::where_greater(one, x, Simd::where_greater(x, set(-1.0f), one, zero), zero);
    case Activation::kMish:
      return each_lane(x, [](float v) {
        const float t = tanhf(softplus(v));
        return t + v * (1 - t * t) * sigmoid_of(v);
      });
    case Activation::kLogSigmoid:
      return logistic(Simd::sub(zero, x));
    case Activation::kHardShrink:
    case Activation::kSoftShrink:
    case Activation::kHardShrinkOfNumbers:
    case Activation::kSoftShrinkOfNumbers:
      return each_lane(x, [=](float v) { return std::fabs(v) > parameter ? 1.0f : 0.0f; });
    case Activation::kTanhShrink:
      return each_lane(x, [](float v) { return tanhf(v) * tanhf(v); });
    case Activation::kSquareplus:
      return each_lane(x, [=](float v) { return 0.5f * (1 + v / sqrtf(v * v + parameter)); });
    case Activation::kThreshold:
      return Simd::where_greater(x, set(parameter), one, zero);
    case Activation::kSparsePlus:
      return each_lane(x, [](float v) { return v <= -1 ? 0.0f : v < 1 ? 0.5f * (v + 1) : 1.0f; });
    case Activation::kSparseSigmoid:
      return Simd::where_greater(y, zero, Simd::where_greater(one, y, set(0.5f), zero), zero);
    case Activation::kSparseSigmoidBetween:
      return each_lane(x, [](float v) { return std::fabs(v) == 1 ? 0.25f : std::fabs(v) < 1 ? 0.5f : 0.0f; });
    default:
      return one;
  }
}

// The activation's value.
inline F activate(const Activation& of, F x) {
  if (of == Activation::kTanh) return hyperbolic_tangent(x);
  if (of == Activation::kSigmoid) return logistic(x);
  return activate_other(of, x);
}
// The activation's value; also sets `e` to e^-x for a sigmoid, else to zero.
inline F activate(const Activation& of, F x, F& e) {
  if (of == Activation::kSigmoid) return logistic(x, e);
  e = set(0.0f);
  return activate(of, x);
}

// The derivative at pre-activation x, where the value is y. If derivative_from_value(of), x is not used.
inline F derivative(const Activation& of, F x, F y) {
  if (of == Activation::kTanh) return Simd::sub(set(1.0f), Simd::mul(y, y));
  if (of == Activation::kSigmoid) return Simd::mul(y, Simd::sub(set(1.0f), y));
  return derivative_other(of, x, y);
}

}  // namespace cellerate::CELLERATE_TARGET
