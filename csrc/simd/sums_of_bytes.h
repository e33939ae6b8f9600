// Sums of bytes, for processors with AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace cellerate::CELLERATE_TARGET {

// The sum of 32 signed bytes.
inline int32_t sum_of_32_bytes(const void* p) {
  const __m256i bytes = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  const __m256i shifted = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));  // plus 128 each, without a sign
  const __m256i sums = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  return _mm_cvtsi128_si32(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two))) - 32 * 128;
}

}  // namespace cellerate::CELLERATE_TARGET
