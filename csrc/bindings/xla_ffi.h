// The core as an XLA custom call.
#pragma once

namespace cellerate {

// The handler of all calls for XLA's foreign function interface. Attributes: the name of the `call`, its `options`,
// and the bit masks `arguments` and `results` of which arrays are present, counted as in the call's names; buffers
// come in that order, without the absent ones.
void* xla_call();

}  // namespace cellerate
