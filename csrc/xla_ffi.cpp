#include "xla_ffi.h"

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "dispatch.h"
#include "xla/ffi/api/ffi.h"

namespace cellerate {
namespace {

namespace ffi = xla::ffi;

Array array_of(const ffi::AnyBuffer& buffer) {
  Array array;
  array.present = true;
  array.data = buffer.untyped_data();
  for (const int64_t size : buffer.dimensions()) array.shape.push_back(size);
  switch (buffer.element_type()) {
    case ffi::DataType::F32:
      array.type = Type::kFloat32;
      break;
    case ffi::DataType::BF16:
      array.type = Type::kBfloat16;
      break;
    case ffi::DataType::S32:
      array.type = Type::kInt32;
      break;
    case ffi::DataType::PRED:
      array.type = Type::kBool;
      break;
    case ffi::DataType::U8:
      array.type = Type::kByte;
      break;
    default:
      break;
  }
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

template <class Call>
ffi::Error guarded(Call call) {
  try {
    call();
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "cellerate: not enough memory for the LSTM");
  } catch (const std::invalid_argument& error) {
    return ffi::Error::InvalidArgument(std::string("cellerate: ") + error.what());
  } catch (const std::out_of_range& error) {
    return ffi::Error(ffi::ErrorCode::kOutOfRange, std::string("cellerate: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("cellerate: ") + error.what());
  }
}

ffi::Error forward_handler(ffi::RemainingArgs arguments, ffi::RemainingRets results, int64_t activation,
                           int64_t recurrent_activation, int64_t masked_output, bool go_backwards,
                           bool return_sequences, int64_t which_arguments, int64_t which_results) {
  return guarded([&] {
    const Options options{activation, recurrent_activation, masked_output, go_backwards, return_sequences};
    forward(forward_call(options, arrays_of(arguments, which_arguments, std::size(kForwardArguments)),
                         arrays_of(results, which_results, std::size(kForwardResults))));
  });
}

ffi::Error backward_handler(ffi::RemainingArgs arguments, ffi::RemainingRets results, int64_t activation,
                            int64_t recurrent_activation, int64_t masked_output, bool go_backwards,
                            bool return_sequences, int64_t which_arguments, int64_t which_results) {
  return guarded([&] {
    const Options options{activation, recurrent_activation, masked_output, go_backwards, return_sequences};
    backward(backward_call(options, arrays_of(arguments, which_arguments, std::size(kBackwardArguments)),
                           arrays_of(results, which_results, std::size(kBackwardResults))));
  });
}

ffi::Error dense_forward_handler(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                 int64_t which_arguments, int64_t which_results) {
  return guarded([&] {
    dense_forward(dense_forward_call(arrays_of(arguments, which_arguments, std::size(kDenseForwardArguments)),
                                     arrays_of(results, which_results, std::size(kDenseForwardResults))));
  });
}

ffi::Error dense_backward_handler(ffi::RemainingArgs arguments, ffi::RemainingRets results,
                                  int64_t which_arguments, int64_t which_results) {
  return guarded([&] {
    dense_backward(
        dense_backward_call(arrays_of(arguments, which_arguments, std::size(kDenseBackwardArguments)),
                            arrays_of(results, which_results, std::size(kDenseBackwardResults))));
  });
}

auto signature_of_lstm() {
  return ffi::Ffi::Bind()
      .RemainingArgs()
      .RemainingRets()
      .Attr<int64_t>("activation")
      .Attr<int64_t>("recurrent_activation")
      .Attr<int64_t>("masked_output")
      .Attr<bool>("go_backwards")
      .Attr<bool>("return_sequences")
      .Attr<int64_t>("arguments")
      .Attr<int64_t>("results");
}

auto signature_of_dense() {
  return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<int64_t>("arguments").Attr<int64_t>("results");
}

XLA_FFI_DEFINE_HANDLER(kForward, forward_handler, signature_of_lstm());
XLA_FFI_DEFINE_HANDLER(kBackward, backward_handler, signature_of_lstm());
XLA_FFI_DEFINE_HANDLER(kDenseForward, dense_forward_handler, signature_of_dense());
XLA_FFI_DEFINE_HANDLER(kDenseBackward, dense_backward_handler, signature_of_dense());

}  // namespace

void* xla_forward() { return reinterpret_cast<void*>(kForward); }
void* xla_backward() { return reinterpret_cast<void*>(kBackward); }

void* xla_dense_forward() { return reinterpret_cast<void*>(kDenseForward); }
void* xla_dense_backward() { return reinterpret_cast<void*>(kDenseBackward); }

}  // namespace cellerate
