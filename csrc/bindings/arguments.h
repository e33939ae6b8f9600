// Checks the arrays and options that a caller passes, whatever it calls.
//
// NumPy and torch (bindings.cpp) and XLA (xla_ffi.cpp) pass the same arrays in the same order, and must refuse the
// same mistakes with the same messages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cells/activation.h"
#include "types.h"

namespace cellerate {

// An array that is dense and row-major, or absent: then data is null and shape is not used.
struct Array {
  void* data = nullptr;
  Type type = Type::kOther;
  std::vector<int64_t> shape;
  bool present = false;  // also for an array without elements, which has no data
};

using Arrays = std::span<const Array>;
using Names = std::span<const char* const>;

// The arrays of one call by name. Looking one up checks it, and so fixes the sizes and the storage that others share.
//
// All throw std::invalid_argument, which names the array, the shape or type that it should have, and what came.
class Checker {
 public:
  // Arrays in the order of their names; results are those that the call will write.
  Checker(Names names, Arrays arguments, Names result_names, Arrays results);

  bool has(const char* name) const { return find(name) != nullptr; }

  // The data of an array, null if it is absent.
  //
  // T says which types it may have: float, int32_t, uint8_t for bool, std::byte for bytes, and void for the storage,
  // which is the same for all of these arrays. Axes are separated by spaces: a letter is a size that all arrays share,
  // a number is itself, and 4H four times H.
  template <class T>
  T* get(const char* name, const char* axes) {
    const Array* array = find(name);
    if (array == nullptr) return nullptr;
    check(*array, name, axes, accepted(static_cast<T*>(nullptr)));
    return static_cast<T*>(array->data);
  }
  // The same for an array that must be there.
  template <class T>
  T* need(const char* name, const char* axes) {
    if (!has(name)) throw std::invalid_argument(std::string(name) + ": expected an array, got none");
    return get<T>(name, axes);
  }

  // A size that the arrays looked up so far have determined, at least 1.
  int64_t size(char letter, const char* what) const;
  void set_size(char letter, int64_t size) { sizes_[index(letter)] = size; }

  // The storage, as the first array of that type has determined it.
  Storage storage() const { return storage_ == Type::kOther ? Storage::kFloat32 : Storage(storage_); }

 private:
  enum class Accepted { kStorage, kFloat32, kInt32, kBool, kBytes };
  static constexpr Accepted accepted(void*) { return Accepted::kStorage; }
  static constexpr Accepted accepted(float*) { return Accepted::kFloat32; }
  static constexpr Accepted accepted(int32_t*) { return Accepted::kInt32; }
  static constexpr Accepted accepted(uint8_t*) { return Accepted::kBool; }
  static constexpr Accepted accepted(std::byte*) { return Accepted::kBytes; }

  static constexpr int64_t kUnknown = -1;
  static size_t index(char letter) { return static_cast<size_t>(letter - 'A'); }

  const Array* find(const char* name) const;
  void check(const Array& array, const char* name, const char* axes, Accepted accepted);
  bool right_type(Type type, Accepted accepted);
  std::string expected_type(Accepted accepted) const;
  [[noreturn]] void refuse_shape(const Array& array, const char* name, const char* axes) const;

  std::vector<std::pair<const char*, const Array*>> arrays_;  // those that are there
  int64_t sizes_['Z' - 'A' + 1];
  Type storage_ = Type::kOther;
};

// An option as one of an enumeration's kCount values.
template <class Enum>
Enum option(const char* name, int64_t value, int64_t count = static_cast<int64_t>(Enum::kCount)) {
  if (value < 0 || value >= count) {
    throw std::invalid_argument(std::string(name) + ": expected a code below " + std::to_string(count) +
                                ", got " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}
// The place of a name among others. Throws std::invalid_argument if it is none of them.
size_t place_among(const char* what, std::string_view name, std::span<const char* const> names);
// One of an enumeration's values by its name.
template <class Enum, size_t kNames>
Enum named(const char* what, std::string_view name, const char* const (&names)[kNames]) {
  static_assert(kNames == static_cast<size_t>(Enum::kCount));
  return static_cast<Enum>(place_among(what, name, names));
}
// The same for an activation: its code, and the bits of its parameters.
constexpr size_t kActivationOptions = 1 + Activation::kMostParameters;
inline Activation activation_option(const char* name, std::span<const int64_t> values) {
  if (values.size() != kActivationOptions) {
    throw std::invalid_argument(std::string(name) + ": expected a code and " +
                                std::to_string(Activation::kMostParameters) + " parameters");
  }
  Activation found = option<Activation::Kind>(name, values[0], Activation::kCount);
  for (size_t n = 1; n < kActivationOptions; ++n) {
    found.parameters[n - 1] = std::bit_cast<float>(static_cast<int32_t>(values[n]));
  }
  return found;
}
// The same for a bool.
inline bool option(const char* name, int64_t value) { return option<bool>(name, value, 2); }

}  // namespace cellerate
