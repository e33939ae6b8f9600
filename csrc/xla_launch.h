// CUDA kernels as XLA custom calls.
#pragma once

namespace cellerate {

// Handlers for XLA's foreign function interface that start one kernel, whose only argument is a structure of numbers and
// then of addresses. Attributes:
//   launcher, function         the address of the driver's cuLaunchKernelEx, and of the kernel as the driver knows it
//   blocks, threads, shared    the grid, a block, and the bytes of shared memory that a block has
//   numbers                    the numbers, 32 bits each
//   slots                      for each address the buffer that it is of, arguments first, then results; -1 for null
// The second is for a launcher that runs on the CPU: there is no stream.
void* xla_launch();
void* xla_launch_on_host();

}  // namespace cellerate
