// The steps of the scalar target, with fma as other targets have it: one rounding, which the C library provides where
// the processor does not.
#define CELLERATE_TARGET fused
#define CELLERATE_FUSED
#include "simd_scalar.h"
//
#include "step_kernels.h"
