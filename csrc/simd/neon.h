// Vectors of NEON on 64-bit ARM, with the dot product of ARMv8.2 if there is one.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace cellerate::CELLERATE_TARGET {

struct Simd {
  static constexpr int kLanes = 4;
  static constexpr int kRows = 6;  // 6 rows of 4 accumulators, 4 weights and a broadcast: 29 of 32 registers
  static constexpr bool kFused = true;  // fma rounds once
  static constexpr bool kBfloat16Products = false;
  static constexpr bool kTiles = false;
  using F = float32x4_t;

  static F set(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static F load_shared(const float* p) { return load(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F load_n(const float* p, int n) {
    float all[kLanes] = {};
    for (int lane = 0; lane < n; ++lane) all[lane] = p[lane];
    return load(all);
  }
  static void store_n(float* p, F x, int n) {
    float all[kLanes];
    store(all, x);
    for (int lane = 0; lane < n; ++lane) p[lane] = all[lane];
  }

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F square_root(F x) { return vsqrtq_f32(x); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // Both give b if either is NaN, as on x86; vminq_f32 would give NaN.
  static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F round(F x) { return vrndnq_f32(x); }
  // x * 2^n for an integral n in [-252, 254], as two factors because 2^n itself may not be a normal number.
  static F scale(F x, F n) {
    const int32x4_t i = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(i, 1);
    return vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(i, half)));
  }
  // The lowest x for which an exponential may call scale_normal().
  static constexpr float kLowestPower = -86.0f;
  // x * 2^n for an integral n, where neither x nor the result is a denormal number.
  static F scale_normal(F x, F n) {
    const int32x4_t steps = vshlq_n_s32(vcvtq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), steps));
  }
  // In each lane, a > b ? yes : no; no if either is NaN.
  static F where_greater(F a, F b, F yes, F no) { return vbslq_f32(vcgtq_f32(a, b), yes, no); }
  // In each lane, yes if the sign bit of x is set (also of -0), else no.
  static F where_negative(F x, F yes, F no) {
    return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(x)), yes, no);
  }

  static F load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
  }
  static F load_bf16_n(const uint16_t* p, int n) {
    uint16_t all[kLanes] = {};
    for (int lane = 0; lane < n; ++lane) all[lane] = p[lane];
    return load_bf16(all);
  }
  static void store_bf16(uint16_t* p, F x) {
    // Rounds to nearest, ties to even; a NaN keeps its upper half and becomes quiet.
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  static void store_bf16_n(uint16_t* p, F x, int n) {
    uint16_t all[kLanes];
    store_bf16(all, x);
    for (int lane = 0; lane < n; ++lane) p[lane] = all[lane];
  }

  // The two bfloat16 of each word as floats.
  static F low_half(F x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 16)); }
  static F high_half(F x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000u)));
  }

  // Whole numbers of 32 bits, for products of bytes.
  using I = int32x4_t;
  static I load_int(const int32_t* p) { return vld1q_s32(p); }
  static F to_float(I x) { return vcvtq_f32_s32(x); }
  static constexpr int kByteOffset = 0;
  static constexpr bool kShortSums = false;
  // sum + the four products of the bytes of each word, exactly. Those of a are numbers in [-127, 127] plus
  // kByteOffset; those of b are signed, also -128.
  static I dot_bytes(F a, F b, I sum) {
    const int8x16_t x = vreinterpretq_s8_f32(a), y = vreinterpretq_s8_f32(b);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, x, y);
#else
    // Each vpaddq adds neighbours, so that two in a row bring the four products of a word together.
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
  }
  // Rounds x in [-127, 127] to the nearest whole number, ties to even, and stores it plus kByteOffset, one byte per
  // lane.
  static void store_bytes(uint8_t* p, F x) {
    int32_t lanes[kLanes];
    vst1q_s32(lanes, vcvtnq_s32_f32(x));
    for (int lane = 0; lane < kLanes; ++lane) p[lane] = static_cast<uint8_t>(lanes[lane] + kByteOffset);
  }

 private:
  static F power(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
};

}  // namespace cellerate::CELLERATE_TARGET
