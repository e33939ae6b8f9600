#define CELLERATE_TARGET avx512bf16
#include "simd_avx512.h"
//
#include "target.h"
