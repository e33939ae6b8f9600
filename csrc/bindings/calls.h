// The calls of the core by name: what bindings.cpp and xla_ffi.cpp offer, without knowing any of them.
#pragma once

#include <functional>
#include <string_view>

#include "bindings/arguments.h"

namespace cellerate {

using Options = std::span<const int64_t>;
using Run = std::function<void()>;

struct Call {
  const char* name;
  // The orders in which options, whole numbers, and arrays are passed. Absent arrays keep their place.
  Names options, arguments, results;
  // Checks everything and gives what runs while the arrays live. Throws std::invalid_argument.
  Run (*prepare)(Options options, Checker& arrays);
  // How many bytes the result `reserve` has, for sizes in the order of their names; null if there is none.
  size_t (*reserve_bytes)(Storage storage, Options options, Options sizes) = nullptr;
  Names sizes = {};
};

std::vector<const Call*> calls();

// Throws std::invalid_argument if there is no such call.
const Call& call_named(std::string_view name);

// Checks a call and gives what runs it, which needs no lock of Python: it throws what the algorithm does. Throws
// std::invalid_argument if something does not fit.
Run prepare(const Call& call, Options options, Arrays arguments, Arrays results);

// How many bytes forward keeps for backward. Throws std::invalid_argument as above, also for a call that keeps nothing.
size_t reserve_bytes(const Call& call, std::string_view storage, Options options, Options sizes);

}  // namespace cellerate
