// Vectors of AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/sums_of_bytes.h"

namespace cellerate::CELLERATE_TARGET {

struct Simd {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 3;       // 3 rows of 4 accumulators, a weight and 3 broadcasts: 16 registers
  static constexpr bool kFused = true;  // fma rounds once
  static constexpr bool kBfloat16Products = false;
  static constexpr bool kTiles = false;
  using F = __m256;

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  // See avx512.h.
  static F load_shared(const float* p) {
    F x = load(p);
    asm("" : "+x"(x));
    return x;
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F load_n(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_n(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F square_root(F x) { return _mm256_sqrt_ps(x); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // Both give b if either is NaN.
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for an integral n in [-252, 254], as two factors because 2^n itself may not be a normal number.
  static F scale(F x, F n) {
    const __m256i i = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(i, 1);
    return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(i, half)));
  }
  // The lowest x for which an exponential may call scale_normal().
  static constexpr float kLowestPower = -86.0f;
  // x * 2^n for an integral n, where neither x nor the result is a denormal number.
  static F scale_normal(F x, F n) {
    const __m256i steps = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), steps));
  }
  // In each lane, a > b ? yes : no; no if either is NaN.
  static F where_greater(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
  }
  // In each lane, yes if the sign bit of x is set (also of -0), else no.
  static F where_negative(F x, F yes, F no) { return _mm256_blendv_ps(no, yes, x); }

  static F load_bf16(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static F load_bf16_n(const uint16_t* p, int n) {
    uint16_t all[kLanes] = {};
    for (int lane = 0; lane < n; ++lane) all[lane] = p[lane];
    return load_bf16(all);
  }
  static void store_bf16(uint16_t* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x)); }
  static void store_bf16_n(uint16_t* p, F x, int n) {
    uint16_t all[kLanes];
    store_bf16(all, x);
    for (int lane = 0; lane < n; ++lane) p[lane] = all[lane];
  }

  // The two bfloat16 of each word as floats.
  static F low_half(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)); }
  static F high_half(F x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  // Whole numbers of 32 bits, for products of bytes.
  using I = __m256i;
  static I load_int(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
#ifdef __AVXVNNI__
  static constexpr int kByteOffset = 128;  // vpdpbusd takes unsigned bytes on the left
  static constexpr bool kShortSums = false;
#else
  static constexpr int kByteOffset = 0;
  static constexpr bool kShortSums = true;
  // sum + two products of bytes in each half of a word, exactly for up to eight sums. Those of a are numbers in
  // [-127, 127], those of b in [0, 15].
  static I dot_shorts(F a, F b, I sum) {
    const I x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(y, x));
  }
  // Sixteen times the sum of both halves of each word.
  static I sixteenfold(I sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(16)); }
  static int32_t sum_of_bytes(const void* p) { return sum_of_32_bytes(p); }
#endif
  // sum + the four products of the bytes of each word, exactly. Those of a are numbers in [-127, 127] plus
  // kByteOffset; those of b are signed, also -128 where there is VNNI.
  static I dot_bytes(F a, F b, I sum) {
    const __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b);
#ifdef __AVXVNNI__
    // As for AVX-512, not the intrinsic; in the encoding of processors without AVX-512.
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "xm"(y));
    return sum;
#else
    // |x| times y with the sign of x: two such products are at most 2 * 127 * 127, so that nothing saturates.
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
  }
  // Rounds x in [-127, 127] to the nearest whole number, ties to even, and stores it plus kByteOffset, one byte per
  // lane.
  static void store_bytes(uint8_t* p, F x) {
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    const __m128i bytes = _mm_packs_epi16(words, words);
    // The bits of an offset of 128, which wraps around.
    constexpr int kTurned = kByteOffset == 0 ? 0 : -128;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_xor_si128(bytes, _mm_set1_epi8(kTurned)));
  }

 private:
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m128i narrow(F x) {
    // Rounds to nearest, ties to even; a NaN keeps its upper half and becomes quiet.
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
};

}  // namespace cellerate::CELLERATE_TARGET
