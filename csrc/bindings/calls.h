// The calls of the core by name, so that bindings.cpp and xla_ffi.cpp need not know any single call.
#pragma once

#include <functional>
#include <string_view>

#include "bindings/arguments.h"

namespace cellerate {

using Options = std::span<const int64_t>;
using Run = std::function<void()>;

struct Call {
  const char* name;
  // The order of the options, which are whole numbers, and of the arrays. Absent arrays keep their place.
  Names options, arguments, results;
  // Checks everything, and returns a function that runs the call while the arrays live. Throws std::invalid_argument.
  Run (*prepare)(Options options, Checker& arrays);
  // The bytes of the result `reserve`, for sizes in the order of their names; null for a call without a reserve.
  size_t (*reserve_bytes)(Storage storage, Options options, Options sizes) = nullptr;
  Names sizes = {};
};

std::vector<const Call*> calls();

// Throws std::invalid_argument if no call has this name.
const Call& call_named(std::string_view name);

// Checks a call, and returns a function that runs it without Python's lock and throws the errors of the algorithm.
// Throws std::invalid_argument if an argument does not fit.
Run prepare(const Call& call, Options options, Arrays arguments, Arrays results);

// The bytes of the reserve. Throws std::invalid_argument if an argument does not fit, or the call keeps nothing.
size_t reserve_bytes(const Call& call, std::string_view storage, Options options, Options sizes);

}  // namespace cellerate
