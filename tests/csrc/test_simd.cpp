// The vectors of plain C++ against the C library, value by value; other targets' are held to the same results by
// tests/kernels.
#define CELLERATE_TARGET simd_of_the_test
#define CELLERATE_FUSED
#include "simd/scalar.h"
//
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"

namespace {

using Simd = cellerate::simd_of_the_test::Simd;
constexpr int kLanes = Simd::kLanes;

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Any float: of all bits, of a size near 1, near the smallest, of few bits so that sums lie halfway, and the odd ones.
class Floats {
 public:
  float next(int kind) {
    const auto bits = static_cast<uint32_t>(random_());
    const auto sized = [&](uint32_t first, uint32_t count) {
      const uint32_t exponent = first + static_cast<uint32_t>(random_()) % count;
      return std::bit_cast<float>((bits & 0x807fffff) | exponent << 23);
    };
    constexpr float kOdd[] = {0.0f,
                              1.0f,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::denorm_min(),
                              std::numeric_limits<float>::min(),
                              std::numeric_limits<float>::max()};
    switch (kind) {
      case 0:
        return std::bit_cast<float>(bits);
      case 1:
        return sized(115, 24);
      case 2:
        return sized(0, 80);
      case 3:
        return std::bit_cast<float>(bits & 0xfff00000);
      default:
        return kOdd[bits % 7] * (bits & 256 ? 1.0f : -1.0f);
    }
  }

 private:
  std::mt19937 random_{1};
};

TEST(fma_rounds_once_like_the_c_library) {
  Floats floats;
  int wrong = 0, inexact = 0;
  for (int round = 0; round < 500'000; ++round) {
    const int kind = round % 5;
    float a[kLanes], b[kLanes], c[kLanes], found[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      a[i] = floats.next(kind);
      b[i] = floats.next(kind);
      c[i] = floats.next(kind);
      // A sum that cancels.
      if (round % 3 == 0) c[i] = -a[i] * b[i];
      // One that a double rounds to halfway between two floats, though it lies on one side of that.
      if (round % 7 == 0 && std::isfinite(c[i])) {
        constexpr float kUlp = std::numeric_limits<float>::epsilon();
        const int last = std::max(std::ilogb(c[i]), -126) - 23;  // the exponent of the last bit of c
        a[i] = std::scalbn(1 + kUlp, last / 2);
        b[i] = std::scalbn(round % 2 == 0 ? 1 - kUlp : 1 + kUlp, last - last / 2 - 1);
      }
    }
    Simd::store(found, Simd::fma(Simd::load(a), Simd::load(b), Simd::load(c)));
    for (int i = 0; i < kLanes; ++i) {
      const float expected = std::fma(a[i], b[i], c[i]);
      wrong += !same(found[i], expected);
      inexact += !same(expected, a[i] * b[i] + c[i]);
    }
  }
  CHECK(wrong == 0);
  CHECK(inexact > 10'000);  // where a plain product and a sum would do, nothing would be shown
}

TEST(round_and_scale_are_those_of_the_c_library) {
  Floats floats;
  int wrong = 0;
  for (int round = 0; round < 200'000; ++round) {
    float x[kLanes], rounded[kLanes], scaled[kLanes], power[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      x[i] = floats.next(round % 5);
      if (round % 2 == 0) x[i] = static_cast<float>(round % 4001 - 2000) / 2;  // halves
      // Beyond, a product of the two factors may round twice.
      power[i] = static_cast<float>(round % 250 - 125);
    }
    Simd::store(rounded, Simd::round(Simd::load(x)));
    Simd::store(scaled, Simd::scale(Simd::set(1.5f), Simd::load(power)));
    for (int i = 0; i < kLanes; ++i) {
      wrong += !same(rounded[i], std::nearbyint(x[i]));
      wrong += !same(scaled[i], std::ldexp(1.5f, static_cast<int>(power[i])));
    }
  }
  CHECK(wrong == 0);
}

TEST(min_max_and_choices_treat_nan_as_they_say) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto first = [](Simd::F x) { return x[0]; };
  CHECK(first(Simd::min(Simd::set(nan), Simd::set(2))) == 2 &&
        first(Simd::max(Simd::set(nan), Simd::set(2))) == 2);
  CHECK(std::isnan(first(Simd::min(Simd::set(2), Simd::set(nan)))));
  CHECK(std::isnan(first(Simd::max(Simd::set(2), Simd::set(nan)))));
  CHECK(first(Simd::where_greater(Simd::set(nan), Simd::set(1), Simd::set(3), Simd::set(4))) == 4);
  CHECK(first(Simd::where_negative(Simd::set(-0.0f), Simd::set(3), Simd::set(4))) == 3);
}

TEST(bfloat16_rounds_to_nearest_and_part_of_a_vector_stays_within) {
  uint16_t halves[kLanes] = {7, 7, 7, 7};
  Simd::store_bf16_n(halves, Simd::F{1.00390625f, 1.01171875f, -2.0f, 9.0f}, 3);
  CHECK(halves[0] == 0x3f80 && halves[1] == 0x3f82 && halves[2] == 0xc000 && halves[3] == 7);
  Simd::store_bf16(halves, Simd::set(std::bit_cast<float>(0x7f800001u)));
  CHECK((halves[0] & 0x7fc0) == 0x7fc0);
  const Simd::F back = Simd::load_bf16_n(halves + 1, 2);
  CHECK(std::isnan(back[0]) && std::isnan(back[1]) && back[2] == 0 && back[3] == 0);
  float floats[kLanes] = {1, 2, 3, 4};
  Simd::store_n(floats, Simd::set(9), 2);
  CHECK(floats[1] == 9 && floats[2] == 3);
  const Simd::F some = Simd::load_n(floats, 3);
  CHECK(some[2] == 3 && some[3] == 0);
}

TEST(products_of_bytes_are_exact) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    uint8_t x[4 * kLanes];
    int8_t w[4 * kLanes];
    Simd::I sum;
    for (int i = 0; i < 4 * kLanes; ++i) {
      const int largest = round % 2 == 0 ? 127 : static_cast<int>(random() % 255) - 127;
      x[i] = static_cast<uint8_t>(largest + Simd::kByteOffset);
      w[i] = static_cast<int8_t>(round % 3 == 0 ? -127 : static_cast<int>(random() % 255) - 127);
    }
    int32_t expected[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] = expected[lane] = static_cast<int32_t>(random() % 1'000'000);
      for (int i = 0; i < 4; ++i) expected[lane] += x[4 * lane + i] * w[4 * lane + i];
    }
    Simd::F a, b;
    std::memcpy(&a, x, sizeof a);
    std::memcpy(&b, w, sizeof b);
    const Simd::I found = Simd::dot_bytes(a, b, sum);
    for (int lane = 0; lane < kLanes; ++lane) CHECK(found[lane] == expected[lane]);
  }
  uint8_t bytes[kLanes];
  Simd::store_bytes(bytes, Simd::F{-127, 0.5f, 1.5f, 127});
  CHECK(bytes[0] == 1 && bytes[1] == 128 && bytes[2] == 130 && bytes[3] == 255);
}

}  // namespace
