// One LSTM layer in one direction, forward and backward: its interface, which knows neither Python nor a framework.
//
// The kernels implement it once per target; lstm_calls.cpp fills the structures from a caller's arrays.
//
// Dimensions: B batch, T steps, D inputs, H units, V vocabulary. All arrays are dense and row-major; `void` arrays have
// the type `storage`. Gates are in Keras's order i, f, c, o on an axis of 4H.
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

  // Either x, or ids and embeddings. With ids and embeddings, row (b, t) of x is embeddings[ids[b, t]], and there is no
  // dropout. If a call has both, x is not read, and backward computes the gradient of x, not of the embeddings. A
  // call has neither, and D = 0, if row_bias is its only input.
  const void* x = nullptr;            // (B, T, D)
  const int32_t* ids = nullptr;       // (B, T), each in [0, V)
  const float* embeddings = nullptr;  // (V, D)
  int64_t vocabulary = 0;

  const float* kernel = nullptr;             // (D, 4H)
  const float* recurrent_kernel = nullptr;   // (H, 4H)
  const float* bias = nullptr;               // (4H), or null
  const float* row_bias = nullptr;           // (B, 4H): a bias for each row, in place of `bias`, or null
  const void* h0 = nullptr;                  // (B, H), or null for zeros
  const void* c0 = nullptr;                  // (B, H), or null for zeros
  const uint8_t* mask = nullptr;             // (B, T), zero where masked, or null
  const float* dropout = nullptr;            // (4, B, D): multiplies x before each gate, or null
  const float* recurrent_dropout = nullptr;  // (4, B, H): multiplies h; both are constant over time

  // The weights as packed by pack_forward() or pack_backward(), for many calls; null for a call that packs its own.
  const std::byte* packed = nullptr;
  // With embeddings: whether their product with the kernel is packed too, for all calls; else each call computes it.
  bool packs_table = true;
};

struct LstmForward : LstmInputs {
  void* outputs = nullptr;  // (B, T, H), or (B, H) without return_sequences
  void* h_T = nullptr;      // (B, H)
  void* c_T = nullptr;      // (B, H)
  void* reserve = nullptr;  // memory of reserve_bytes() for backward, or null to keep nothing
};

struct LstmBackward : LstmInputs {
  const void* outputs = nullptr;  // as forward wrote them; not read without return_sequences
  const void* reserve = nullptr;

  const void* d_outputs = nullptr;  // the cotangents, in the shapes of the results; null for zeros
  const void* d_h_T = nullptr;
  const void* d_c_T = nullptr;

  void* d_x = nullptr;                  // (B, T, D), or null to skip it
  float* d_embeddings = nullptr;        // (V, D), or null to skip it; skipped if d_x is not null
  float* d_kernel = nullptr;            // (D, 4H)
  float* d_recurrent_kernel = nullptr;  // (H, 4H)
  float* d_bias = nullptr;              // (4H), or null without a bias
  float* d_row_bias = nullptr;          // (B, 4H), or null without row_bias
  void* d_h0 = nullptr;                 // (B, H), or null to skip it
  void* d_c0 = nullptr;                 // (B, H), or null to skip it
};

// The LSTM functions of a target. They run on any number of threads, and throw std::bad_alloc.
struct LstmKernels {
  size_t (*reserve_bytes)(const LstmInputs&);
  void (*forward)(const LstmForward&);
  void (*backward)(const LstmBackward&);
  // Pack the weights into memory on this thread, and return their size in bytes; with null they only count. The calls
  // that use the packed weights may differ from this call only in rows and steps, and must have the same pointers null.
  size_t (*pack_forward)(const LstmForward&, std::byte* memory);
  size_t (*pack_backward)(const LstmBackward&, std::byte* memory);
};

// Runs a layer on target(). Throws std::out_of_range if an id is not in [0, V), std::bad_alloc, and like parallel().
void forward(const LstmForward& in);
void backward(const LstmBackward& in);

}  // namespace cellerate
