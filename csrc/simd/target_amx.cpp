// AVX-512 with bfloat16; products in bfloat16, and those of bytes in packed models, run on AMX tiles.
#define CELLERATE_TARGET amx
#define CELLERATE_TRAINING avx512
#define CELLERATE_ALIKE avx512bf16
#include "simd/avx512.h"
//
#include "simd/target.h"
