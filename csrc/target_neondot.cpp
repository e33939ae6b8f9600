#define CELLERATE_TARGET neondot
#define CELLERATE_ALIKE neon
#define CELLERATE_LAYERS neon
#include "simd_neon.h"
//
#include "target.h"
