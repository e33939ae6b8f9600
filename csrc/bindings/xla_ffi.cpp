#include "bindings/xla_ffi.h"

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "bindings/calls.h"
#include "xla/ffi/api/ffi.h"

namespace cellerate {
namespace {

namespace ffi = xla::ffi;

static_assert(row(Type::kFloat32).xla == static_cast<int32_t>(ffi::DataType::F32));
static_assert(row(Type::kBfloat16).xla == static_cast<int32_t>(ffi::DataType::BF16));
static_assert(row(Type::kInt32).xla == static_cast<int32_t>(ffi::DataType::S32));
static_assert(row(Type::kBool).xla == static_cast<int32_t>(ffi::DataType::PRED));
static_assert(row(Type::kByte).xla == static_cast<int32_t>(ffi::DataType::U8));

Array array_of(const ffi::AnyBuffer& buffer) {
  Array array;
  array.present = true;
  array.data = buffer.untyped_data();
  for (const int64_t size : buffer.dimensions()) array.shape.push_back(size);
  const auto element = static_cast<int32_t>(buffer.element_type());
  array.type = type_where([&](const TypeRow& row) { return row.xla == element; });
  return array;
}

ffi::AnyBuffer buffer_of(const ffi::RemainingArgs& buffers, size_t n) {
  const ffi::ErrorOr<ffi::AnyBuffer> found = buffers.get<ffi::AnyBuffer>(n);
  if (!found.has_value()) throw std::invalid_argument(found.error().message());
  return *found;
}
ffi::AnyBuffer buffer_of(const ffi::RemainingRets& buffers, size_t n) {
  const ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> found = buffers.get<ffi::AnyBuffer>(n);
  if (!found.has_value()) throw std::invalid_argument(found.error().message());
  ffi::Result<ffi::AnyBuffer> result = *found;
  return *result;
}

// Puts buffers into their places: buffer n belongs to the n-th bit that is set.
template <class Buffers>
std::vector<Array> arrays_of(const Buffers& buffers, int64_t present, size_t count) {
  std::vector<Array> arrays(count);
  size_t next = 0;
  for (size_t n = 0; n < count; ++n) {
    if ((present >> n & 1) != 0) arrays[n] = array_of(buffer_of(buffers, next++));
  }
  return arrays;
}

ffi::Error run(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::string_view name,
               ffi::Span<const int64_t> options, int64_t which_arguments, int64_t which_results) {
  try {
    const Call& call = call_named(name);
    const std::vector<Array> in = arrays_of(arguments, which_arguments, call.arguments.size());
    const std::vector<Array> out = arrays_of(results, which_results, call.results.size());
    prepare(call, {options.begin(), options.size()}, in, out)();
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      "cellerate: not enough memory for " + std::string(name));
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("cellerate: ") + error.what());
  } catch (const std::out_of_range& error) {
    return ffi::Error(ffi::ErrorCode::kOutOfRange, std::string("cellerate: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("cellerate: ") + error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(kCall, run,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("call")
                           .Attr<ffi::Span<const int64_t>>("options")
                           .Attr<int64_t>("arguments")
                           .Attr<int64_t>("results"));

}  // namespace

void* xla_call() { return reinterpret_cast<void*>(kCall); }

}  // namespace cellerate
