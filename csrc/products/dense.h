// A dense layer over rows, forward and backward: its interface, as lstm.h is the LSTM's.
//
// Dimensions: M rows, K inputs, N outputs.
#pragma once

#include "types.h"

namespace cellerate {

// y = x·kernel + bias.
struct DenseInputs {
  int64_t rows = 0, inputs = 0, outputs = 0;
  Storage storage = Storage::kFloat32;
  const void* x = nullptr;        // (M, K)
  const float* kernel = nullptr;  // (K, N)
  const float* bias = nullptr;    // (N), or null
};
struct DenseForward : DenseInputs {
  void* y = nullptr;  // (M, N)
};
struct DenseBackward : DenseInputs {
  const void* d_y = nullptr;
  void* d_x = nullptr;  // or null to skip it
  float* d_kernel = nullptr;
  float* d_bias = nullptr;  // or null without a bias
};

// The dense functions of a target.
struct DenseKernels {
  void (*forward)(const DenseForward&);
  void (*backward)(const DenseBackward&);
};

}  // namespace cellerate
