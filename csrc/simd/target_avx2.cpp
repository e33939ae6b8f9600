#define CELLERATE_TARGET avx2
#include "simd/avx2.h"
//
#include "simd/target.h"
