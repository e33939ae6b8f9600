// CUDA kernels as XLA custom calls.
#pragma once

#include <cstdint>
#include <string>

namespace cellerate {

// Handlers for XLA's foreign function interface that start one kernel, whose only argument is a structure of numbers and
// then of addresses. Attributes:
//   kernel                     the key under which it was registered: an address would be of this process alone
//   blocks, threads, shared    the grid, a block, and the bytes of shared memory that a block has
//   numbers                    the numbers, 32 bits each
//   slots                      for each address the buffer that it is of, arguments first, then results; -1 for null
// The second is for a launcher that runs on the CPU: there is no stream.
void* xla_launch();
void* xla_launch_on_host();

// Makes a kernel known under a key; of what a key is given twice, the last counts.
//   launcher, function         the address of the driver's cuLaunchKernelEx, and of the kernel as the driver knows it
void xla_register_kernel(const std::string& key, uintptr_t launcher, uintptr_t function);

}  // namespace cellerate
