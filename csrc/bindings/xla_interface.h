// XLA's foreign function interface, as far as the core needs it: C structures whose layout every version since 0.1
// keeps, and functions that read them. Source of the layout: jaxlib/include/xla/ffi/api/c_api.h of jaxlib, which
// tests/bridges/test_xla_layout.py compares with this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace cellerate::xla {

// The version that a handler reports. XLA refuses handlers of a later version than its own, so this is the version of
// the oldest jaxlib that pyproject.toml allows.
constexpr int kMajor = 0, kMinor = 1;

// Constants of XLA.
constexpr int32_t kMetadata = 1;          // the kind of an extension
constexpr int32_t kIsBuffer = 1;          // of an argument or result
constexpr int32_t kExecute = 3;           // the stage of a call
constexpr uint32_t kInCommandBuffer = 1;  // a trait: calls may be recorded, for example into a CUDA graph
enum class AttributeKind : int32_t { kArray = 1, kScalar = 3, kText = 4 };
enum class Code : int32_t {
  kInvalidArgument = 3,
  kNotFound = 5,
  kResourceExhausted = 8,
  kOutOfRange = 11,
  kInternal = 13
};
enum class Number : int32_t { kBool = 1, kInt32 = 4, kInt64 = 5, kUint8 = 6, kFloat32 = 11, kBfloat16 = 16 };

struct Error;    // opaque
struct Context;  // of a call; opaque

// Most structures begin with their size in bytes, from which XLA recognises an earlier version, and with extensions.
struct Extension {
  size_t bytes;
  int32_t kind;
  Extension* next;
};
struct Version {
  size_t bytes;
  Extension* extensions;
  int major, minor;
};
// The questions of XLA to a new handler.
struct Metadata {
  size_t bytes;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension extension;
  Metadata* metadata;
};
struct ErrorRequest {
  size_t bytes;
  Extension* extensions;
  const char* message;
  Code code;
};
struct DestroyRequest {
  size_t bytes;
  Extension* extensions;
  Error* error;
};
struct StreamRequest {
  size_t bytes;
  Extension* extensions;
  Context* context;
  void* stream;  // the result
};
// The functions that a handler may call; XLA's structure is longer.
struct Api {
  size_t bytes;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorRequest*);
  void (*message_of_error)(void*);
  void (*destroy_error)(DestroyRequest*);
  Error* (*register_handler)(void*);
  Error* (*get_stream)(StreamRequest*);
};
struct Buffer {
  size_t bytes;
  Extension* extensions;
  Number type;
  void* data;
  int64_t axes;
  int64_t* sizes;
};
struct Buffers {
  size_t bytes;
  Extension* extensions;
  int64_t count;
  int32_t* kinds;
  void** buffers;
};
// Attributes of three kinds.
struct Text {
  const char* data;
  size_t size;
};
struct Scalar {
  Number type;
  void* value;
};
struct Numbers {
  Number type;
  size_t size;
  void* data;
};
struct Attributes {
  size_t bytes;
  Extension* extensions;
  int64_t count;
  AttributeKind* kinds;
  Text** names;
  void** values;
};
// A call; XLA's structure is longer.
struct Frame {
  size_t bytes;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};
using Handler = Error*(Frame*);

// An error with a code of its own; for other exceptions, the type decides the code.
class Failure : public std::runtime_error {
 public:
  Failure(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

// Reads the parts of a call. Throws std::invalid_argument if a part is missing or has another type.
class Request {
 public:
  explicit Request(const Frame& frame) : frame_(frame) {}

  size_t arguments() const { return static_cast<size_t>(frame_.arguments.count); }
  size_t results() const { return static_cast<size_t>(frame_.results.count); }
  const Buffer& argument(size_t n) const { return buffer(frame_.arguments, n, "argument"); }
  const Buffer& result(size_t n) const { return buffer(frame_.results, n, "result"); }

  std::string_view text(std::string_view name) const;
  int64_t number(std::string_view name) const;
  std::span<const int32_t> int32s(std::string_view name) const {
    return numbers<int32_t>(name, Number::kInt32);
  }
  std::span<const int64_t> int64s(std::string_view name) const {
    return numbers<int64_t>(name, Number::kInt64);
  }

  // The platform's stream of the call. Throws Failure if there is none.
  void* stream() const;

 private:
  static const Buffer& buffer(const Buffers& buffers, size_t n, const char* what);
  const void* attribute(std::string_view name, AttributeKind kind) const;
  template <class T>
  std::span<const T> numbers(std::string_view name, Number type) const {
    const auto& found = *static_cast<const Numbers*>(attribute(name, AttributeKind::kArray));
    check_type(name, found.type, type);
    return {static_cast<const T*>(found.data), found.size};
  }
  static void check_type(std::string_view name, Number type, Number expected);

  const Frame& frame_;
};

// Answers a call: describes the handler if XLA asks for metadata, else does the work. An exception becomes an error of
// XLA, with "cellerate: " before its message.
//   traits: 0, or kInCommandBuffer.
Error* answer(const Frame& frame, uint32_t traits, void (*work)(const Request&));

}  // namespace cellerate::xla
