// The core as XLA custom calls.
#pragma once

namespace cellerate {

// Handlers for XLA's foreign function interface. Attributes: the five options, and `arguments` and `results`, bit
// masks of which arrays are there, counted as in arguments.h; buffers come in that order without the absent ones.
void* xla_forward();
void* xla_backward();

}  // namespace cellerate
