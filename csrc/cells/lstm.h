// One LSTM layer in one direction, forward and backward: its interface, which knows neither Python nor a framework.
//
// The kernels implement it once per target; lstm_calls.cpp fills the structures from a caller's arrays.
//
// Dimensions: B batch, T steps, D inputs, H units, V vocabulary. All arrays are dense and row-major; those of type
// `void` are of the type that `storage` says. Gates are in Keras's order i, f, c, o on an axis of 4H.
#pragma once

#include "cells/activation.h"
#include "types.h"

namespace cellerate {

// The output of a masked step.
enum class MaskedOutput : int32_t {
  kPreviousOutput,  // the previous output, zeros at the start
  kPreviousState,   // the previous state, h0 at the start
  kZero,
  kCount,
};
inline constexpr const char* kMaskedOutputNames[] = {"previous_output", "previous_state", "zero"};

// The inputs that forward and backward share.
struct LstmInputs {
  int64_t batch = 0, steps = 0, inputs = 0, units = 0;
  Storage storage = Storage::kFloat32;
  Activation activation = Activation::kTanh;
  Activation recurrent_activation = Activation::kSigmoid;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false;
  bool return_sequences = true;

  // Either x, or ids and embeddings; with these, row (b, t) of x is embeddings[ids[b, t]], and there is no dropout. A
  // call with both gives the gradient of x in place of that of the embeddings; the values of x are then not read.
  // Neither, and D = 0, where the biases of rows are all that is read.
  const void* x = nullptr;            // (B, T, D)
  const int32_t* ids = nullptr;       // (B, T), each in [0, V)
  const float* embeddings = nullptr;  // (V, D)
  int64_t vocabulary = 0;

  const float* kernel = nullptr;             // (D, 4H)
  const float* recurrent_kernel = nullptr;   // (H, 4H)
  const float* bias = nullptr;               // (4H), or null
  const float* row_bias = nullptr;           // (B, 4H): one of each row, in place of that, or null
  const void* h0 = nullptr;                  // (B, H), or null for zeros
  const void* c0 = nullptr;                  // (B, H), or null for zeros
  const uint8_t* mask = nullptr;             // (B, T), zero where masked, or null
  const float* dropout = nullptr;            // (4, B, D): multiplies x before each gate, or null
  const float* recurrent_dropout = nullptr;  // (4, B, H): the same for h; both are constant over time

  // What pack_forward() or pack_backward() made of the weights, for many calls; null for a call that packs them itself.
  const std::byte* packed = nullptr;
  // With embeddings: whether their product with the kernel is packed, too, for all calls; else each call computes it.
  bool packs_table = true;
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
  float* d_embeddings = nullptr;        // (V, D), or null if not wanted; with d_x it is not
  float* d_kernel = nullptr;            // (D, 4H)
  float* d_recurrent_kernel = nullptr;  // (H, 4H)
  float* d_bias = nullptr;              // (4H), or null without a bias
  float* d_row_bias = nullptr;          // (B, 4H), or null without biases of rows
  void* d_h0 = nullptr;                 // (B, H), or null if not wanted
  void* d_c0 = nullptr;                 // (B, H), or null if not wanted
};

// What a target has for it. They run on any number of threads, and throw std::bad_alloc.
struct LstmKernels {
  size_t (*reserve_bytes)(const LstmInputs&);
  void (*forward)(const LstmForward&);
  void (*backward)(const LstmBackward&);
  // Pack the weights into memory on this thread, and give how many bytes they take; with null they only count. Calls
  // that use them differ in rows and steps alone; pointers that are not read must be null or not, as there.
  size_t (*pack_forward)(const LstmForward&, std::byte* memory);
  size_t (*pack_backward)(const LstmBackward&, std::byte* memory);
};

// Runs one layer on target(). Throws std::out_of_range if an id is not in [0, V), std::bad_alloc, and what
// parallel() throws.
void forward(const LstmForward& in);
void backward(const LstmBackward& in);

}  // namespace cellerate
