#define CELLERATE_TARGET avx2vnni
#define CELLERATE_TRAINING avx2
#define CELLERATE_ALIKE avx2
#define CELLERATE_LAYERS avx2
#include "simd/avx2.h"
//
#include "simd/target.h"
