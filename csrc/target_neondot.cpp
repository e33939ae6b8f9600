#define CELLERATE_TARGET neondot
#include "simd_neon.h"
//
#include "target.h"
