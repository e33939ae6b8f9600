#define CELLERATE_TARGET scalar
#define CELLERATE_SAME_PROGRAMS fused
#include "simd/scalar.h"
//
#include "simd/target.h"
