#include "bindings/xla_launch.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bindings/xla_interface.h"

namespace cellerate {
namespace {

// The driver's CUlaunchConfig, defined here because nothing else of its headers is needed.
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};
using Launcher = int (*)(const LaunchConfig*, void* function, void** arguments, void** extra);

struct Kernel {
  Launcher launcher;
  void* function;
};

// Lets string_views look up strings without a copy.
struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
};

// The kernels of this process. Python adds to them while XLA's threads look them up.
class Kernels {
 public:
  void add(const std::string& key, Kernel kernel) {
    const std::unique_lock lock(mutex_);
    kernels_.insert_or_assign(key, kernel);
  }
  std::optional<Kernel> find(std::string_view key) const {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(key);
    return found == kernels_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, Kernel, Hash, std::equal_to<>> kernels_;
};

Kernels& kernels() {
  // Never destroyed: XLA's threads may still run while the end of the process destroys static objects.
  static auto* all = new Kernels;
  return *all;
}

// Starts the kernel that a call names, on a stream.
void launch(const xla::Request& request, void* stream) {
  const std::string_view key = request.text("kernel");
  const std::optional<Kernel> kernel = kernels().find(key);
  if (!kernel) {
    throw xla::Failure(xla::Code::kNotFound, "the kernel " + std::string(key) +
                                                 " is not loaded in this process; an exported "
                                                 "program does not contain its kernels: call or "
                                                 "lower the function with JAX in this process");
  }
  const std::span<const int32_t> numbers = request.int32s("numbers");
  const std::span<const int64_t> slots = request.int64s("slots");
  // Numbers first, then addresses from the next multiple of their size on, as a compiler would lay them out.
  const size_t first = (numbers.size_bytes() + sizeof(void*) - 1) / sizeof(void*);
  std::vector<void*> structure(first + slots.size(), nullptr);
  std::memcpy(structure.data(), numbers.data(), numbers.size_bytes());
  for (size_t n = 0; n < slots.size(); ++n) {
    if (slots[n] < 0) continue;
    const auto slot = static_cast<size_t>(slots[n]);
    const bool is_argument = slot < request.arguments();
    structure[first + n] =
        (is_argument ? request.argument(slot) : request.result(slot - request.arguments())).data;
  }
  const LaunchConfig config{{static_cast<unsigned>(request.number("blocks")), 1, 1},
                            {static_cast<unsigned>(request.number("threads")), 1, 1},
                            static_cast<unsigned>(request.number("shared")),
                            stream,
                            nullptr,
                            0};
  void* only = structure.data();
  const int code = kernel->launcher(&config, kernel->function, &only, nullptr);
  if (code != 0) {
    throw xla::Failure(xla::Code::kInternal,
                       "the CUDA driver did not start a kernel; its error code is " + std::to_string(code));
  }
}

// A call only starts that one kernel, so XLA may record it into a CUDA graph.
xla::Error* handler(xla::Frame* frame) {
  return xla::answer(*frame, xla::kInCommandBuffer,
                     [](const xla::Request& request) { launch(request, request.stream()); });
}
xla::Error* handler_on_host(xla::Frame* frame) {
  return xla::answer(*frame, 0, [](const xla::Request& request) { launch(request, nullptr); });
}

}  // namespace

void xla_register_kernel(const std::string& key, uintptr_t launcher, uintptr_t function) {
  kernels().add(key, {reinterpret_cast<Launcher>(launcher), reinterpret_cast<void*>(function)});
}

void* xla_launch() { return reinterpret_cast<void*>(&handler); }
void* xla_launch_on_host() { return reinterpret_cast<void*>(&handler_on_host); }

}  // namespace cellerate
