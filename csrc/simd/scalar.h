// Vectors in plain C++, for every machine: four lanes, which compilers map to the vectors of the baseline.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace cellerate::CELLERATE_TARGET {

struct Simd {
  static constexpr int kLanes = 4;
  static constexpr int kRows = 4;
#ifdef CELLERATE_FUSED
  static constexpr bool kFused = true;  // fma rounds once
#else
  static constexpr bool kFused = false;
#endif
  static constexpr bool kBfloat16Products = false;
  static constexpr bool kTiles = false;
  typedef float F __attribute__((vector_size(16)));

  static F set(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static F load_shared(const float* p) { return load(p); }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static F load_n(const float* p, int n) {
    F r = set(0);
    std::memcpy(&r, p, static_cast<size_t>(n) * sizeof *p);
    return r;
  }
  static void store_n(float* p, F x, int n) { std::memcpy(p, &x, static_cast<size_t>(n) * sizeof *p); }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F square_root(F x) {
    for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
  }
#ifndef CELLERATE_FUSED
  static F fma(F a, F b, F c) { return a * b + c; }
#elif defined FP_FAST_FMAF
  static F fma(F a, F b, F c) { return each_fma(a, b, c); }
#else
  // As doubles the product is exact. The sum is rounded to a double and then to a float. This equals a single rounding
  // unless the double is halfway between two floats, because the first rounding may have moved it there. Then, and for
  // denormal floats, where halfway looks different, the C library computes the result.
  static F fma(F a, F b, F c) {
    const Doubles sum = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles) +
                        __builtin_convertvector(c, Doubles);
    const F r = __builtin_convertvector(sum, F);
    I parts[2];
    std::memcpy(parts, &sum, sizeof parts);
    const I size = (I)r & 0x7fffffff;
    const I doubtful = halfway(parts[0]) | halfway(parts[1]) | ((size > 0) & (size < 0x00800001));
    const Longs any = (Longs)doubtful;
    if ((any[0] | any[1]) != 0) [[unlikely]]
      return each_fma(a, b, c);
    return r;
  }
#endif
  // Both give b if either is NaN.
  static F min(F a, F b) { return a < b ? a : b; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F round(F x) {
    // Floats of at least this size are integers, so adding it rounds x to an integer, ties to even.
    const F whole = set(8388608.0f), sign = where_negative(x, set(-1), set(1));
    const F r = ((x * sign + whole) - whole) * sign;
    return x * sign < whole ? r : x;
  }
  // x * 2^n for an integral n in [-252, 254], as two factors because 2^n itself may not be a normal number.
  static F scale(F x, F n) {
    const I i = __builtin_convertvector(n, I);
    const I half = i >> 1;
    return x * power(half) * power(i - half);
  }
  // The lowest x for which an exponential may call scale_normal().
  static constexpr float kLowestPower = -86.0f;
  // x * 2^n for an integral n, where neither x nor the result is a denormal number.
  static F scale_normal(F x, F n) { return (F)((I)x + (__builtin_convertvector(n, I) << 23)); }
  // In each lane, a > b ? yes : no; no if either is NaN.
  static F where_greater(F a, F b, F yes, F no) { return a > b ? yes : no; }
  // In each lane, yes if the sign bit of x is set (also of -0), else no.
  static F where_negative(F x, F yes, F no) { return (I)x < 0 ? yes : no; }

  static F load_bf16(const uint16_t* p) { return load_bf16_n(p, kLanes); }
  static F load_bf16_n(const uint16_t* p, int n) {
    Halves halves{};
    std::memcpy(&halves, p, static_cast<size_t>(n) * sizeof *p);
    return (F)(__builtin_convertvector(halves, U) << 16);
  }
  static void store_bf16(uint16_t* p, F x) { store_bf16_n(p, x, kLanes); }
  static void store_bf16_n(uint16_t* p, F x, int n) {
    // Rounds to nearest, ties to even; a NaN keeps its upper half and becomes quiet.
    const U bits = (U)x;
    const U rounded = x == x ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x00400000;
    const Halves halves = __builtin_convertvector(rounded >> 16, Halves);
    std::memcpy(p, &halves, static_cast<size_t>(n) * sizeof *p);
  }

  // The two bfloat16 of each word as floats.
  static F low_half(F x) { return (F)((U)x << 16); }
  static F high_half(F x) { return (F)((U)x & 0xffff0000u); }

  // Whole numbers of 32 bits, for products of bytes.
  typedef int32_t I __attribute__((vector_size(16)));
  static I load_int(const int32_t* p) {
    I r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static F to_float(I x) { return __builtin_convertvector(x, F); }
  static constexpr int kByteOffset = 128;
  static constexpr bool kShortSums = false;
  // sum + the four products of the bytes of each word, exactly. Those of a are numbers in [-127, 127] plus
  // kByteOffset; those of b are signed, also -128.
  static I dot_bytes(F a, F b, I sum) {
    // A product fits into 16 bits, and two of them lie in each word.
    const Shorts even = ((Shorts)a & 0xff) * ((Shorts)((UnsignedShorts)b << 8) >> 8);
    const Shorts odd = (Shorts)((UnsignedShorts)a >> 8) * ((Shorts)b >> 8);
    return sum + sum_of_halves(even) + sum_of_halves(odd);
  }
  // Rounds x in [-127, 127] to the nearest whole number, ties to even, and stores it plus kByteOffset, one byte per
  // lane.
  static void store_bytes(uint8_t* p, F x) {
    const I whole = __builtin_convertvector(round(x), I) + kByteOffset;
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint8_t>(whole[i]);
  }

 private:
  typedef uint32_t U __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef int16_t Shorts __attribute__((vector_size(16)));
  typedef uint16_t UnsignedShorts __attribute__((vector_size(16)));
  typedef int64_t Longs __attribute__((vector_size(16)));
  typedef double Doubles __attribute__((vector_size(32)));

  static F power(I exponent) { return (F)((exponent + 127) << 23); }
  // The sum of the upper and the lower half of each word.
  static I sum_of_halves(Shorts x) { return ((I)((U)x << 16) >> 16) + ((I)x >> 16); }
#ifdef CELLERATE_FUSED
  static F each_fma(F a, F b, F c) {
    for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
  }
  // Nonzero for a double whose bits beyond a float's are a one and then zeros; rarely nonzero elsewhere.
  static I halfway(I parts) { return (parts & 0x1fffffff) == 0x10000000; }
#endif
};

}  // namespace cellerate::CELLERATE_TARGET
