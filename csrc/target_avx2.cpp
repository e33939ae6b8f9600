#define CELLERATE_TARGET avx2
#include "simd_avx2.h"
//
#include "target.h"
