#define CELLERATE_TARGET scalar
#define CELLERATE_STEPS fused
#include "simd/scalar.h"
//
#include "simd/target.h"
