// Vectors in plain C++, for every machine: four lanes, which compilers map to the vectors of the baseline.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace cellerate::CELLERATE_TARGET {

struct Simd {
  static constexpr int kLanes = 4;
  static constexpr int kRows = 2;
#ifdef CELLERATE_FUSED
  static constexpr bool kFused = true;  // fma rounds once
#else
  static constexpr bool kFused = false;
#endif
  static constexpr bool kBfloat16Products = false;
  struct F {
    float v[kLanes];
  };

  static F set(float x) { return {{x, x, x, x}}; }
  static F load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
  static F load_n(const float* p, int n) {
    F r = set(0);
    for (int i = 0; i < n; ++i) r.v[i] = p[i];
    return r;
  }
  static void store_n(float* p, F x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x.v[i];
  }

  static F add(F a, F b) {
    return map(a, b, [](float x, float y) { return x + y; });
  }
  static F sub(F a, F b) {
    return map(a, b, [](float x, float y) { return x - y; });
  }
  static F mul(F a, F b) {
    return map(a, b, [](float x, float y) { return x * y; });
  }
  static F div(F a, F b) {
    return map(a, b, [](float x, float y) { return x / y; });
  }
#ifdef CELLERATE_FUSED
  static F fma(F a, F b, F c) {
    for (int i = 0; i < kLanes; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
  }
#else
  static F fma(F a, F b, F c) { return add(mul(a, b), c); }
#endif
  // Both give b if either is NaN.
  static F min(F a, F b) {
    return map(a, b, [](float x, float y) { return x < y ? x : y; });
  }
  static F max(F a, F b) {
    return map(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static F round(F x) {
    return map(x, x, [](float y, float) { return std::nearbyint(y); });
  }
  // x * 2^n for an integral n.
  static F scale(F x, F n) {
    return map(x, n, [](float y, float e) { return std::ldexp(y, static_cast<int>(e)); });
  }
  // In each lane, a > b ? yes : no; no if either is NaN.
  static F where_greater(F a, F b, F yes, F no) {
    F r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = a.v[i] > b.v[i] ? yes.v[i] : no.v[i];
    return r;
  }
  // In each lane, yes if the sign bit of x is set (also of -0), else no.
  static F where_negative(F x, F yes, F no) {
    F r;
    // Not std::signbit: GCC 12 fails on it here when it compiles for the thread sanitizer.
    for (int i = 0; i < kLanes; ++i) r.v[i] = std::bit_cast<int32_t>(x.v[i]) < 0 ? yes.v[i] : no.v[i];
    return r;
  }

  static F load_bf16(const uint16_t* p) { return load_bf16_n(p, kLanes); }
  static F load_bf16_n(const uint16_t* p, int n) {
    F r = set(0);
    for (int i = 0; i < n; ++i) {
      const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
      std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
  }
  static void store_bf16(uint16_t* p, F x) { store_bf16_n(p, x, kLanes); }
  static void store_bf16_n(uint16_t* p, F x, int n) {
    for (int i = 0; i < n; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &x.v[i], 4);
      // Rounds to nearest, ties to even; a NaN keeps its upper half and becomes quiet.
      const bool nan = (bits & 0x7fffffff) > 0x7f800000;
      const uint32_t rounded = nan ? bits | 0x00400000 : bits + 0x7fff + ((bits >> 16) & 1);
      p[i] = static_cast<uint16_t>(rounded >> 16);
    }
  }

  // The two bfloat16 of each word as floats.
  static F low_half(F x) {
    return bits_of(x, [](uint32_t word) { return word << 16; });
  }
  static F high_half(F x) {
    return bits_of(x, [](uint32_t word) { return word & 0xffff0000u; });
  }

  // Whole numbers of 32 bits, for products of bytes.
  struct I {
    int32_t v[kLanes];
  };
  static I load_int(const int32_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static F to_float(I x) {
    return {{static_cast<float>(x.v[0]), static_cast<float>(x.v[1]), static_cast<float>(x.v[2]),
             static_cast<float>(x.v[3])}};
  }
  static constexpr int kByteOffset = 128;
  // sum + the four products of the bytes of each word, exactly. Those of a are numbers in [-127, 127] plus
  // kByteOffset; those of b are signed, in [-127, 127].
  static I dot_bytes(F a, F b, I sum) {
    uint8_t x[4 * kLanes];
    int8_t y[4 * kLanes];
    std::memcpy(x, a.v, sizeof x);
    std::memcpy(y, b.v, sizeof y);
    for (int i = 0; i < 4 * kLanes; ++i) sum.v[i / 4] += static_cast<int32_t>(x[i]) * y[i];
    return sum;
  }
  // Rounds x in [-127, 127] to the nearest whole number, ties to even, and stores it plus kByteOffset, one byte per
  // lane.
  static void store_bytes(uint8_t* p, F x) {
    for (int i = 0; i < kLanes; ++i)
      p[i] = static_cast<uint8_t>(static_cast<int>(std::nearbyint(x.v[i])) + kByteOffset);
  }

 private:
  template <class Function>
  static F bits_of(F x, Function function) {
    for (float& lane : x.v) {
      uint32_t word;
      std::memcpy(&word, &lane, sizeof word);
      word = function(word);
      std::memcpy(&lane, &word, sizeof word);
    }
    return x;
  }
  template <class Function>
  static F map(F a, F b, Function function) {
    F r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = function(a.v[i], b.v[i]);
    return r;
  }
};

}  // namespace cellerate::CELLERATE_TARGET
