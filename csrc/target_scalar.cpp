#define CELLERATE_TARGET scalar
#include "simd_scalar.h"
//
#include "target.h"
