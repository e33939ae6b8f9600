// Which target runs: the best that this processor and build have, or the one that was asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "simd/target.h"

namespace cellerate {

// The target in use. The first call chooses: CELLERATE_TARGET if it is set, else the fastest that can run.
// Throws std::invalid_argument if CELLERATE_TARGET names one that is unknown or cannot run here.
const Target& target();

// The targets that can run here, fastest first.
std::vector<std::string> available_targets();

// Chooses another target for all calls from now on. Throws std::invalid_argument as target() does.
void set_target(std::string_view name);

// Operations per second of target() on `threads` threads when only its multiply-add units limit it. Without products of
// bfloat16, those of float32 are measured.
double measure_peak(Precision precision, int threads);
// Bytes a second that threads read of so many bytes, over and over: what weights that are read at every step allow.
double measure_read(int64_t bytes, int threads);

}  // namespace cellerate
