// The core as an XLA custom call.
#pragma once

namespace cellerate {

// The handler of all calls for XLA's foreign function interface. Attributes: the name of the `call`, its `options`, and
// the bit masks `arguments` and `results`, with a bit for each array that is present, in the order of the call's names.
// The buffers come in this order, without absent arrays.
void* xla_call();

}  // namespace cellerate
