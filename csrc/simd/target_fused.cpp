// The programs of the scalar target, with an fma that rounds once, as on other targets; if the processor has none, the C
// library provides it.
#define CELLERATE_TARGET fused
#define CELLERATE_FUSED
#include "simd/scalar.h"
//
#include "engine/program_kernels.h"
