// Checks the arrays and options of any call.
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

// A dense row-major array. If it is absent, `data` is null and `shape` is not used.
struct Array {
  void* data = nullptr;
  Type type = Type::kOther;
  std::vector<int64_t> shape;
  bool present = false;  // also true for an array without elements, whose data is null
};

using Arrays = std::span<const Array>;
using Names = std::span<const char* const>;

// The arrays of one call by name. Each lookup checks an array, and fixes the sizes and the storage that arrays share.
//
// All functions throw std::invalid_argument, which names the array, and the expected and actual shape or type.
class Checker {
 public:
  // Arrays in the order of their names; results are those that the call will write.
  Checker(Names names, Arrays arguments, Names result_names, Arrays results);

  bool has(const char* name) const { return find(name) != nullptr; }

  // The data of an array, or null if it is absent.
  //
  // T is the accepted type: float, int32_t, uint8_t for bool, std::byte for bytes, and void for the storage type, which
  // all such arrays share. Axes are separated by spaces: a letter is a size that all arrays share, a number is itself,
  // and 4H is four times H.
  template <class T>
  T* get(const char* name, const char* axes) {
    const Array* array = find(name);
    if (array == nullptr) return nullptr;
    check(*array, name, axes, accepted(static_cast<T*>(nullptr)));
    return static_cast<T*>(array->data);
  }
  // The data of an array that must be present.
  template <class T>
  T* need(const char* name, const char* axes) {
    if (!has(name)) throw std::invalid_argument(std::string(name) + ": expected an array, got none");
    return get<T>(name, axes);
  }

  // A size that previous lookups have fixed; throws if it is 0.
  int64_t size(char letter, const char* what) const;
  void set_size(char letter, int64_t size) { sizes_[index(letter)] = size; }

  // The storage type, fixed by the first lookup of an array with T = void.
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

  std::vector<std::pair<const char*, const Array*>> arrays_;  // the arrays that are present
  int64_t sizes_['Z' - 'A' + 1];
  Type storage_ = Type::kOther;
};

// An option as one of the kCount values of an enumeration.
template <class Enum>
Enum option(const char* name, int64_t value, int64_t count = static_cast<int64_t>(Enum::kCount)) {
  if (value < 0 || value >= count) {
    throw std::invalid_argument(std::string(name) + ": expected a code below " + std::to_string(count) +
                                ", got " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}
// The index of a name among `names`. Throws std::invalid_argument if it is not there.
size_t place_among(const char* what, std::string_view name, std::span<const char* const> names);
// The value of an enumeration with this name.
template <class Enum, size_t kNames>
Enum named(const char* what, std::string_view name, const char* const (&names)[kNames]) {
  static_assert(kNames == static_cast<size_t>(Enum::kCount));
  return static_cast<Enum>(place_among(what, name, names));
}
// An activation as options: its code, and the bits of its parameters.
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
// An option that is a bool.
inline bool option(const char* name, int64_t value) { return option<bool>(name, value, 2); }

}  // namespace cellerate
