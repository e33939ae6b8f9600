#include "bindings/xla_interface.h"

#include <exception>
#include <new>

namespace cellerate::xla {
namespace {

Error* failed(const Frame& frame, Code code, const std::string& message) {
  const std::string whole = "cellerate: " + message;
  ErrorRequest request{sizeof(ErrorRequest), nullptr, whole.c_str(), code};
  return frame.api->create_error(&request);
}

}  // namespace

const Buffer& Request::buffer(const Buffers& buffers, size_t n, const char* what) {
  if (n >= static_cast<size_t>(buffers.count) || buffers.kinds[n] != kIsBuffer) {
    throw std::invalid_argument("expected a buffer as " + std::string(what) + " " + std::to_string(n) +
                                " of " + std::to_string(buffers.count));
  }
  return *static_cast<const Buffer*>(buffers.buffers[n]);
}

const void* Request::attribute(std::string_view name, AttributeKind kind) const {
  const Attributes& all = frame_.attributes;
  for (int64_t n = 0; n < all.count; ++n) {
    if (std::string_view(all.names[n]->data, all.names[n]->size) == name && all.kinds[n] == kind) {
      return all.values[n];
    }
  }
  throw std::invalid_argument("expected the attribute " + std::string(name) + ", got none");
}

void Request::check_type(std::string_view name, Number type, Number expected) {
  if (type == expected) return;
  throw std::invalid_argument(std::string(name) + ": expected numbers of type " +
                              std::to_string(static_cast<int32_t>(expected)) + ", got " +
                              std::to_string(static_cast<int32_t>(type)));
}

std::string_view Request::text(std::string_view name) const {
  const auto& text = *static_cast<const Text*>(attribute(name, AttributeKind::kText));
  return {text.data, text.size};
}

int64_t Request::number(std::string_view name) const {
  const auto& scalar = *static_cast<const Scalar*>(attribute(name, AttributeKind::kScalar));
  check_type(name, scalar.type, Number::kInt64);
  return *static_cast<const int64_t*>(scalar.value);
}

void* Request::stream() const {
  StreamRequest request{sizeof(StreamRequest), nullptr, frame_.context, nullptr};
  if (Error* error = frame_.api->get_stream(&request)) {
    DestroyRequest destroyed{sizeof(DestroyRequest), nullptr, error};
    frame_.api->destroy_error(&destroyed);
    throw Failure(Code::kInternal, "expected a stream from XLA for this call, got none");
  }
  return request.stream;
}

Error* answer(const Frame& frame, uint32_t traits, void (*work)(const Request&)) {
  if (frame.extensions != nullptr && frame.extensions->kind == kMetadata) {
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
    metadata.version = {sizeof(Version), nullptr, kMajor, kMinor};
    metadata.traits = traits;
    return nullptr;
  }
  if (frame.bytes < sizeof(Frame)) {
    return failed(frame, Code::kInvalidArgument,
                  "expected a call of at least " + std::to_string(sizeof(Frame)) + " bytes, got " +
                      std::to_string(frame.bytes));
  }
  if (frame.stage != kExecute) {
    return failed(frame, Code::kInvalidArgument, "only the execution of a call is handled");
  }
  try {
    work(Request(frame));
    return nullptr;
  } catch (const Failure& error) {
    return failed(frame, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(frame, Code::kResourceExhausted, "not enough memory for this call");
  } catch (const std::invalid_argument& error) {
    return failed(frame, Code::kInvalidArgument, error.what());
  } catch (const std::out_of_range& error) {
    return failed(frame, Code::kOutOfRange, error.what());
  } catch (const std::exception& error) {
    return failed(frame, Code::kInternal, error.what());
  }
}

}  // namespace cellerate::xla
