#define CELLERATE_TARGET neon
#include "simd/neon.h"
//
#include "simd/target.h"
