// How forward keeps gates for backward, value by value: plain C++ in place of a target's vectors.
//
// Where backward takes a gate from is a bfloat16 on few machines only, and the arithmetic is the same on all.
#define CELLERATE_TARGET gates_of_the_test
#include "simd/scalar.h"
//
#include "cells/lstm_gates.h"
//
#include "check.h"

namespace {

using namespace cellerate::gates_of_the_test;
using cellerate::Activation;

struct Point {
  double value, slope;
};

// What backward knows of a gate at x.
template <bool kBfloat16>
Point kept_and_back(Activation kind, float x) {
  const GateFunction<kBfloat16> function(kind);
  F e;
  const F y = function.value(set(x), e);
  F kept = function.kept(set(x), y, e);
  if (kBfloat16) {
    uint16_t narrow[Simd::kLanes];
    Simd::store_bf16(narrow, kept);
    kept = Simd::load_bf16(narrow);
  }
  const auto back = function.at(kept);
  return {back.value[0], back.slope[0]};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Without the difference of nearly equal numbers that 1 - tanh² is.
double slope_of_tanh(double x) { return 1 / (std::cosh(x) * std::cosh(x)); }

constexpr double kRounding = 1.0 / 256;  // of a number to the 8 bits of bfloat16, as a share of it
constexpr double kFloat = 4e-7;          // what float adds, which counts close to a limit

// The numbers a test goes through: close together where functions bend, and far out.
template <class Body>
void for_points(float end, Body body) {
  for (int n = -4000; n <= 4000; ++n) body(end * static_cast<float>(n) / 4000);
}

TEST(a_sigmoid_in_bfloat16_keeps_its_distance_from_both_limits) {
  for_points(86, [](float x) {
    const Point found = kept_and_back<true>(Activation::kSigmoid, x);
    const double value = sigmoid(x), other = sigmoid(-x);
    CHECK(std::fabs(found.value - value) <= kRounding * std::fmin(value, other) + kFloat * value);
    CHECK(std::fabs(found.slope - value * other) <= kRounding * value * other);
  });
}

TEST(a_tanh_in_bfloat16_keeps_its_distance_from_zero_and_both_limits) {
  for_points(20, [](float x) {
    const Point found = kept_and_back<true>(Activation::kTanh, x);
    const double value = std::tanh(x), slope = slope_of_tanh(x);
    const double nearest = std::fmin(std::fabs(value), 1 - std::fabs(value));
    CHECK(std::fabs(found.value - value) <= kRounding * nearest + kFloat * std::fabs(value));
    CHECK(std::fabs(found.slope - slope) <= kRounding * slope + 2 * kFloat);
  });
}

TEST(a_gate_of_straight_lines_in_bfloat16_keeps_its_distance_from_one_and_its_slope) {
  const auto compare = [](Activation kind, float slope) {
    for_points(4, [=](float x) {
      const Point found = kept_and_back<true>(kind, x);
      const double value = std::fmin(1, std::fmax(0, slope * x + 0.5f));
      CHECK(std::fabs(found.value - value) <= kRounding * std::fmin(value, 1 - value) + kFloat);
      if (value > 1e-6 && value < 1 - 1e-6) CHECK(found.slope == slope);
      if (slope * x > 0.5001f || slope * x < -0.5001f) CHECK(found.slope == 0 && found.value == value);
    });
  };
  compare(Activation::kHardSigmoid, 1.0f / 6);
  compare(Activation::kSparseSigmoid, 0.5f);
}

TEST(a_gate_with_one_limit_in_bfloat16_keeps_its_slope) {
  for_points(12, [](float x) {
    // Kept is x, and an error of x is an error of e^x as a share of it.
    const double slope = x > 0 ? 1 : std::exp(x);
    const double limit = (1.1 * std::fabs(x) + 1) * kRounding * slope + kFloat;
    CHECK(std::fabs(kept_and_back<true>(Activation::kElu, x).slope - slope) <= limit);
  });
}

TEST(a_gate_far_out_is_at_its_limit_and_a_nan_stays) {
  for (const float x : {90.0f, 1000.0f, INFINITY}) {
    CHECK(kept_and_back<true>(Activation::kSigmoid, x).value == 1);
    CHECK(kept_and_back<true>(Activation::kSigmoid, x).slope < 1e-37);
    CHECK(kept_and_back<true>(Activation::kSigmoid, -x).value < 1e-37);
    CHECK(kept_and_back<true>(Activation::kSigmoid, -x).slope < 1e-37);
    for (const float sign : {1.0f, -1.0f}) {
      const Point found = kept_and_back<true>(Activation::kTanh, sign * x);
      CHECK(found.value == sign && found.slope == 0);
    }
  }
  for (const Activation kind : {Activation::kSigmoid, Activation::kTanh, Activation::kHardSigmoid}) {
    CHECK(std::isnan(kept_and_back<true>(kind, NAN).value));
  }
}

TEST(a_gate_in_float_is_kept_as_it_is) {
  for_points(20, [](float x) {
    for (int kind = 0; kind < static_cast<int>(Activation::kCount); ++kind) {
      const auto activation = Activation(static_cast<Activation::Kind>(kind));
      const F y = activate(activation, set(x)), slope = derivative(activation, set(x), y);
      const Point found = kept_and_back<false>(activation, x);
      CHECK(found.value == static_cast<double>(y[0]) && found.slope == static_cast<double>(slope[0]));
    }
  });
}

}  // namespace
