// CUDA kernels as XLA custom calls.
#pragma once

#include <cstdint>
#include <string>

namespace cellerate {

// Handlers for XLA's foreign function interface that start one kernel. Its only argument is a structure of numbers,
// followed by addresses. Attributes:
//   kernel                     the key under which it was registered; an address would be valid in this process only
//   blocks, threads, shared    blocks of the grid, threads of a block, and bytes of shared memory per block
//   numbers                    the numbers, 32 bits each
//   slots                      for each address, the index of its buffer, arguments first, then results; -1 for null
// The second handler is for a launcher that runs on the CPU, without a stream.
void* xla_launch();
void* xla_launch_on_host();

// Registers a kernel under a key; a second registration replaces the first.
//   launcher, function         the address of the driver's cuLaunchKernelEx, and the driver's handle of the kernel
void xla_register_kernel(const std::string& key, uintptr_t launcher, uintptr_t function);

}  // namespace cellerate
