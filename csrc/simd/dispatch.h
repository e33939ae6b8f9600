// Chooses the target: the fastest that this build has and this processor runs, or the one that the user names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "simd/target.h"

namespace cellerate {

// The target in use. The first call chooses: CELLERATE_TARGET if it is set, else the fastest that can run.
// Throws std::invalid_argument if CELLERATE_TARGET names a target that is unknown or cannot run here.
const Target& target();

// The targets that can run here, fastest first.
std::vector<std::string> available_targets();

// Chooses another target for all calls from now on. Throws std::invalid_argument as target() does.
void set_target(std::string_view name);

// Operations per second of target() on `threads` threads when only its multiply-add units limit it. Without products of
// bfloat16, those of float32 are measured.
double measure_peak(Precision precision, int threads);
// Bytes per second at which threads read `bytes` bytes again and again: the limit for weights that each step reads.
double measure_read(int64_t bytes, int threads);

}  // namespace cellerate
