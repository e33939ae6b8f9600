#define CELLERATE_TARGET avx512
#include "simd_avx512.h"
//
#include "target.h"
