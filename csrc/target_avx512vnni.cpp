#define CELLERATE_TARGET avx512vnni
#include "simd_avx512.h"
//
#include "target.h"
