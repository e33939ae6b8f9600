#define CELLERATE_TARGET avx512
#include "simd/avx512.h"
//
#include "simd/target.h"
