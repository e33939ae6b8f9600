#define CELLERATE_TARGET scalar
#define CELLERATE_STEPS fused
#include "simd_scalar.h"
//
#include "target.h"
