// Turns a caller's arrays into the structures of lstm.h, and checks every shape and type.
//
// NumPy and torch (bindings.cpp) and XLA (xla_ffi.cpp) pass the same arrays in the same order, and must refuse the
// same mistakes with the same messages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lstm.h"

namespace cellerate {

enum class Type { kFloat32, kBfloat16, kInt32, kBool, kByte, kOther };

// An array that is dense and row-major, or absent: then data is null and shape is not used.
struct Array {
  void* data = nullptr;
  Type type = Type::kOther;
  std::vector<int64_t> shape;
  bool present = false;  // also for an array without elements, which has no data
};

// The options of a call as whole numbers, in the order of the fields of LstmInputs that they set.
struct Options {
  int64_t activation = 0, recurrent_activation = 0, masked_output = 0;
  bool go_backwards = false, return_sequences = true;
};

// The orders in which arrays are passed. Absent arrays keep their place.
inline constexpr const char* kForwardArguments[] = {
    "x",  "ids", "embeddings", "kernel",  "recurrent_kernel", "bias",
    "h0", "c0",  "mask",       "dropout", "recurrent_dropout"};
inline constexpr const char* kForwardResults[] = {"outputs", "h_T", "c_T", "reserve"};
inline constexpr const char* kBackwardArguments[] = {
    "x",    "ids",     "embeddings",        "kernel",  "recurrent_kernel", "bias",      "h0",    "c0",
    "mask", "dropout", "recurrent_dropout", "outputs", "reserve",          "d_outputs", "d_h_T", "d_c_T"};
inline constexpr const char* kBackwardResults[] = {"d_x",    "d_embeddings", "d_kernel", "d_recurrent_kernel",
                                                   "d_bias", "d_h0",         "d_c0"};

inline constexpr const char* kDenseForwardArguments[] = {"x", "kernel", "bias"};
inline constexpr const char* kDenseForwardResults[] = {"y"};
inline constexpr const char* kDenseBackwardArguments[] = {"x", "kernel", "bias", "d_y"};
inline constexpr const char* kDenseBackwardResults[] = {"d_x", "d_kernel", "d_bias"};

// All throw std::invalid_argument, which names the array, the shape or type that it should have, and what came.
LstmForward forward_call(const Options& options, std::span<const Array> arguments,
                         std::span<const Array> results);
LstmBackward backward_call(const Options& options, std::span<const Array> arguments,
                           std::span<const Array> results);
DenseForward dense_forward_call(std::span<const Array> arguments, std::span<const Array> results);
DenseBackward dense_backward_call(std::span<const Array> arguments, std::span<const Array> results);

}  // namespace cellerate
