// One LSTM layer in one direction, and a dense layer, forward and backward: the interface of the native core.
//
// The kernels implement it once per target, dispatch.cpp picks a target, and bindings.cpp and xla_ffi.cpp fill the
// structures from NumPy arrays and XLA buffers. It knows neither Python nor a framework.
//
// Dimensions: B batch, T steps, D inputs, H units, V vocabulary. All arrays are dense and row-major; those of type
// `void` hold float or bfloat16, as `storage` says. Gates are in Keras's order i, f, c, o on an axis of 4H.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

enum class Storage : int32_t { kFloat32 = 0, kBfloat16 = 1 };

// The order is that of cellerate.kernels.lstm.spec.ACTIVATIONS.
enum class Activation : int32_t {
  kLinear,
  kTanh,
  kSigmoid,
  kRelu,
  kHardSigmoid,
  kSoftplus,
  kSoftsign,
  kElu,
  kSelu,
  kExponential,
  kRelu6,
  kLeakyRelu,
  kSilu,
  kGelu,
  kHardSilu,
  kHardTanh,
  kMish,
  kCelu,
  kLogSigmoid,
  kHardShrink,
  kSoftShrink,
  kTanhShrink,
  kSquareplus,
  kSparsePlus,
  kSparseSigmoid,
  kCount,
};

// The output of a masked step; the order is that of cellerate.kernels.lstm.spec.MASKED_OUTPUTS.
enum class MaskedOutput : int32_t {
  kPreviousOutput,  // the previous output, zeros at the start
  kPreviousState,   // the previous state, h0 at the start
  kZero,
  kCount,
};

// The inputs that forward and backward share.
struct LstmInputs {
  int64_t batch = 0, steps = 0, inputs = 0, units = 0;
  Storage storage = Storage::kFloat32;
  Activation activation = Activation::kTanh;
  Activation recurrent_activation = Activation::kSigmoid;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false;
  bool return_sequences = true;

  // Either x, or ids and embeddings; with these, row (b, t) of x is embeddings[ids[b, t]], and there is no dropout.
  const void* x = nullptr;            // (B, T, D)
  const int32_t* ids = nullptr;       // (B, T), each in [0, V)
  const float* embeddings = nullptr;  // (V, D)
  int64_t vocabulary = 0;

  const float* kernel = nullptr;             // (D, 4H)
  const float* recurrent_kernel = nullptr;   // (H, 4H)
  const float* bias = nullptr;               // (4H), or null
  const void* h0 = nullptr;                  // (B, H), or null for zeros
  const void* c0 = nullptr;                  // (B, H), or null for zeros
  const uint8_t* mask = nullptr;             // (B, T), zero where masked, or null
  const float* dropout = nullptr;            // (4, B, D): multiplies x before each gate, or null
  const float* recurrent_dropout = nullptr;  // (4, B, H): the same for h; both are constant over time
};

struct LstmForward : LstmInputs {
  void* outputs = nullptr;  // (B, T, H), or (B, H) without return_sequences
  void* h_T = nullptr;      // (B, H)
  void* c_T = nullptr;      // (B, H)
  void* reserve = nullptr;  // reserve_bytes() for what backward needs, or null to keep nothing
};

struct LstmBackward : LstmInputs {
  const void* outputs = nullptr;  // as forward wrote them; not read without return_sequences
  const void* reserve = nullptr;

  const void* d_outputs = nullptr;  // the cotangents, in the shapes of the results; null for zeros
  const void* d_h_T = nullptr;
  const void* d_c_T = nullptr;

  void* d_x = nullptr;                  // (B, T, D), or null if not wanted
  float* d_embeddings = nullptr;        // (V, D); wanted with ids
  float* d_kernel = nullptr;            // (D, 4H)
  float* d_recurrent_kernel = nullptr;  // (H, 4H)
  float* d_bias = nullptr;              // (4H), or null without a bias
  void* d_h0 = nullptr;                 // (B, H), or null if not wanted
  void* d_c0 = nullptr;                 // (B, H), or null if not wanted
};

// A dense layer over rows: y = x·kernel + bias.
struct DenseInputs {
  int64_t rows = 0, inputs = 0, outputs = 0;
  Storage storage = Storage::kFloat32;
  const void* x = nullptr;        // (rows, inputs)
  const float* kernel = nullptr;  // (inputs, outputs)
  const float* bias = nullptr;    // (outputs), or null
};
struct DenseForward : DenseInputs {
  void* y = nullptr;  // (rows, outputs)
};
struct DenseBackward : DenseInputs {
  const void* d_y = nullptr;
  void* d_x = nullptr;  // or null if not wanted
  float* d_kernel = nullptr;
  float* d_bias = nullptr;  // or null without a bias
};

struct StepKernels;  // step_model.h

// One instruction set: its name and its algorithms. They run on any number of threads, and throw std::bad_alloc.
struct Target {
  const char* name;
  bool bfloat16_products;  // whether bfloat16 storage is multiplied as bfloat16; otherwise as float
  size_t (*reserve_bytes)(const LstmInputs&);
  void (*forward)(const LstmForward&);
  void (*backward)(const LstmBackward&);
  void (*dense_forward)(const DenseForward&);
  void (*dense_backward)(const DenseBackward&);
  // Runs `rounds` rounds of multiply-adds on each thread and gives the number of operations: see peak.h.
  double (*peak)(bool bfloat16, int threads, int64_t rounds);
  const StepKernels* steps;  // the next-token chain, one step at a time
};

}  // namespace cellerate
