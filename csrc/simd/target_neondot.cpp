#define CELLERATE_TARGET neondot
#define CELLERATE_TRAINING neon
#define CELLERATE_ALIKE neon
#define CELLERATE_LAYERS neon
#include "simd/neon.h"
//
#include "simd/target.h"
