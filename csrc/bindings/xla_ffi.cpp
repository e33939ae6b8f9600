#include "bindings/xla_ffi.h"

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "bindings/calls.h"
#include "bindings/xla_interface.h"

namespace cellerate {
namespace {

static_assert(row(Type::kFloat32).xla == static_cast<int32_t>(xla::Number::kFloat32));
static_assert(row(Type::kBfloat16).xla == static_cast<int32_t>(xla::Number::kBfloat16));
static_assert(row(Type::kInt32).xla == static_cast<int32_t>(xla::Number::kInt32));
static_assert(row(Type::kBool).xla == static_cast<int32_t>(xla::Number::kBool));
static_assert(row(Type::kByte).xla == static_cast<int32_t>(xla::Number::kUint8));

Array array_of(const xla::Buffer& buffer) {
  Array array;
  array.present = true;
  array.data = buffer.data;
  array.shape.assign(buffer.sizes, buffer.sizes + buffer.axes);
  const auto number = static_cast<int32_t>(buffer.type);
  array.type = type_where([&](const TypeRow& row) { return row.xla == number; });
  return array;
}

// Puts buffers at their indices: buffer n belongs to the n-th bit that is set in `present`.
template <class BufferOf>
std::vector<Array> arrays_of(const BufferOf& buffer_of, int64_t present, size_t count) {
  std::vector<Array> arrays(count);
  size_t next = 0;
  for (size_t n = 0; n < count; ++n) {
    if ((present >> n & 1) != 0) arrays[n] = array_of(buffer_of(next++));
  }
  return arrays;
}

void run(const xla::Request& request) {
  const std::string_view name = request.text("call");
  const Call& call = call_named(name);
  const std::vector<Array> in = arrays_of([&](size_t n) -> auto& { return request.argument(n); },
                                          request.number("arguments"), call.arguments.size());
  const std::vector<Array> out = arrays_of([&](size_t n) -> auto& { return request.result(n); },
                                           request.number("results"), call.results.size());
  try {
    prepare(call, request.int64s("options"), in, out)();
  } catch (const std::bad_alloc&) {
    throw xla::Failure(xla::Code::kResourceExhausted, "not enough memory for " + std::string(name));
  }
}

xla::Error* handler(xla::Frame* frame) { return xla::answer(*frame, 0, run); }

}  // namespace

void* xla_call() { return reinterpret_cast<void*>(&handler); }

}  // namespace cellerate
