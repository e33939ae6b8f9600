// Vectors of AVX-512 (F, BW, DQ, VL), with the dot product of AVX-512-BF16 if there is one.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/sums_of_bytes.h"

// GCC 12 warns about the deliberately undefined operands inside its own intrinsics (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace cellerate::CELLERATE_TARGET {

struct Simd {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;  // 6 rows of 4 accumulators, 4 weights and a broadcast: 29 of 32 registers
  static constexpr bool kFused = true;  // fma rounds once
#ifdef __AVX512BF16__
  static constexpr bool kBfloat16Products = true;
#else
  static constexpr bool kBfloat16Products = false;
#endif
#ifdef __AMX_BF16__
  static constexpr bool kTiles = true;  // products of bfloat16 and of bytes run in the tiles of amx.h
#else
  static constexpr bool kTiles = false;
#endif
  using F = __m512;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  // Weights of several rows: in a register, as otherwise each product would load them again.
  static F load_shared(const float* p) {
    F x = load(p);
    asm("" : "+v"(x));
    return x;
  }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F square_root(F x) { return _mm512_sqrt_ps(x); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // Both give b if either is NaN.
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for an integral n.
  static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }
  // Here e^x rounds to 0 in bfloat16, in which forward keeps it as the distance of a gate from 1: 0 at infinity.
  static constexpr float kLowestPower = -104.0f;
  static F scale_normal(F x, F n) { return scale(x, n); }
  // In each lane, a > b ? yes : no; no if either is NaN.
  static F where_greater(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
  }
  // In each lane, yes if the sign bit of x is set (also of -0), else no.
  static F where_negative(F x, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), no, yes);
  }

  static F load_bf16(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16_n(const uint16_t* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
  static void store_bf16_n(uint16_t* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }

#ifdef __AVX512BF16__
  // For words that are pairs of bfloat16: sum + a.low * b.low + a.high * b.high.
  static F dot(F a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // The words (low, high) of two vectors rounded to bfloat16.
  static F pair(F low, F high) {
    const __m512i l = _mm512_cvtepu16_epi32(narrow(low));
    const __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow(high)), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(l, h));
  }
#endif

  // The two bfloat16 of each word as floats.
  static F low_half(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
  static F high_half(F x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  // Whole numbers of 32 bits, for products of bytes.
  using I = __m512i;
  static I load_int(const int32_t* p) { return _mm512_loadu_si512(p); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
#ifdef __AVX512VNNI__
  static constexpr int kByteOffset = 128;  // vpdpbusd takes unsigned bytes on the left
  static constexpr bool kShortSums = false;
#else
  static constexpr int kByteOffset = 0;
  static constexpr bool kShortSums = true;
  // sum + two products of bytes in each half of a word, exactly for up to eight sums. Those of a are numbers in
  // [-127, 127], those of b in [0, 15].
  static I dot_shorts(F a, F b, I sum) {
    const I x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(y, x));
  }
  // Sixteen times the sum of both halves of each word.
  static I sixteenfold(I sums) { return _mm512_madd_epi16(sums, _mm512_set1_epi16(16)); }
  static int32_t sum_of_bytes(const void* p) { return sum_of_32_bytes(p); }
#endif
  // sum + the four products of the bytes of each word, exactly. Those of a are numbers in [-127, 127] plus
  // kByteOffset; those of b are signed, also -128 where there is VNNI.
  static I dot_bytes(F a, F b, I sum) {
    const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
#ifdef __AVX512VNNI__
    // Not the intrinsic: around it GCC 12 copies every sum to another register and back.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "vm"(y));
    return sum;
#else
    // |x| times y with the sign of x: two such products are at most 2 * 127 * 127, so that nothing saturates.
    const __m512i turned = _mm512_mask_sub_epi8(y, _mm512_movepi8_mask(x), _mm512_setzero_si512(), y);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(x), turned);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
  }
  // Rounds x in [-127, 127] to the nearest whole number, ties to even, and stores it plus kByteOffset, one byte per
  // lane.
  static void store_bytes(uint8_t* p, F x) {
    const __m512i offset = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(kByteOffset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(offset));
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
  static __m256i narrow(F x) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
    // Rounds to nearest, ties to even; a NaN keeps its upper half and becomes quiet.
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
#endif
  }
};

}  // namespace cellerate::CELLERATE_TARGET
