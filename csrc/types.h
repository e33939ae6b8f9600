// The number types of arrays: one row for each type, which the checks, the bindings and XLA read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

// The types in which x, states and outputs are stored; pack.h loads and stores them.
enum class Storage : int32_t { kFloat32, kBfloat16, kCount };

// The type in which the matrices of a packed model are stored and multiplied; int4 is widened and multiplied as int8.
enum class Precision : int32_t { kFloat32, kBfloat16, kInt8, kInt4, kCount };
inline constexpr const char* kPrecisionNames[] = {"float32", "bfloat16", "int8", "int4"};

// All types of arrays: those of Storage first, in the same order.
enum class Type : int32_t { kFloat32, kBfloat16, kInt32, kBool, kByte, kOther };
static_assert(static_cast<int>(Type::kInt32) == static_cast<int>(Storage::kCount));

struct TypeRow {
  const char* name;
  size_t bytes;
  uint8_t dlpack_code, bits;  // in arrays of NumPy and torch
  int32_t xla;                // XLA's PrimitiveType
};
// In the order of Type.
inline constexpr TypeRow kTypes[] = {
    {"float32", 4, 2, 32, 11}, {"bfloat16", 2, 4, 16, 16}, {"int32", 4, 0, 32, 4},
    {"bool", 1, 6, 8, 1},      {"uint8", 1, 1, 8, 6},      {"another type", 1, 0, 0, 0},
};
static_assert(sizeof kTypes / sizeof *kTypes == static_cast<size_t>(Type::kOther) + 1);

constexpr const TypeRow& row(Type type) { return kTypes[static_cast<size_t>(type)]; }

// The type whose row a predicate accepts, or kOther.
template <class Predicate>
Type type_where(Predicate predicate) {
  for (int32_t n = 0; n < static_cast<int32_t>(Type::kOther); ++n) {
    if (predicate(kTypes[n])) return static_cast<Type>(n);
  }
  return Type::kOther;
}

}  // namespace cellerate
