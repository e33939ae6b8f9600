#define CELLERATE_TARGET neon
#include "simd_neon.h"
//
#include "target.h"
