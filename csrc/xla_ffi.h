// The core as XLA custom calls.
#pragma once

namespace cellerate {

// Handlers for XLA's foreign function interface. Attributes: the five options, and the bit masks `arguments` and
// `results` of which arrays are present, counted as in arguments.h; buffers come in that order, without the absent
// ones.
void* xla_forward();
void* xla_backward();
// The same for a dense layer, which has no options.
void* xla_dense_forward();
void* xla_dense_backward();

}  // namespace cellerate
