#define CELLERATE_TARGET avx512vnni
#define CELLERATE_TRAINING avx512
#define CELLERATE_ALIKE avx512
#define CELLERATE_LAYERS avx512
#include "simd/avx512.h"
//
#include "simd/target.h"
