#include "bindings/xla_launch.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace cellerate {
namespace {

namespace ffi = xla::ffi;

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

// Looks strings up without a copy.
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

void* address_of(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results, size_t n) {
  if (n < arguments.size()) {
    const auto found = arguments.get<ffi::AnyBuffer>(n);
    return found.has_value() ? found->untyped_data() : nullptr;
  }
  const auto found = results.get<ffi::AnyBuffer>(n - arguments.size());
  if (!found.has_value()) return nullptr;
  ffi::Result<ffi::AnyBuffer> result = *found;
  return result->untyped_data();
}

ffi::Error launch(void* stream, const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results,
                  std::string_view key, int64_t blocks, int64_t threads, int64_t shared,
                  ffi::Span<const int32_t> numbers, ffi::Span<const int64_t> slots) {
  const std::optional<Kernel> kernel = kernels().find(key);
  if (!kernel) {
    return ffi::Error(
        ffi::ErrorCode::kNotFound,
        "cellerate: the kernel " + std::string(key) +
            " is not loaded in this process; a program does not bring its kernels along: call or "
            "lower the function with JAX here, in place of a program that another process exported");
  }
  // Numbers first, then addresses from the next multiple of their size on, as a compiler would lay them out.
  const size_t first = (numbers.size() * sizeof(int32_t) + sizeof(void*) - 1) / sizeof(void*);
  std::vector<void*> structure(first + slots.size(), nullptr);
  std::memcpy(structure.data(), numbers.begin(), numbers.size() * sizeof(int32_t));
  for (size_t n = 0; n < slots.size(); ++n) {
    const int64_t slot = slots.begin()[n];
    if (slot < 0) continue;
    if (static_cast<size_t>(slot) >= arguments.size() + results.size()) {
      return ffi::Error::InvalidArgument("cellerate: a slot is of no buffer");
    }
    structure[first + n] = address_of(arguments, results, static_cast<size_t>(slot));
  }
  const LaunchConfig config{{static_cast<unsigned>(blocks), 1, 1},
                            {static_cast<unsigned>(threads), 1, 1},
                            static_cast<unsigned>(shared),
                            stream,
                            nullptr,
                            0};
  void* only = structure.data();
  const int code = kernel->launcher(&config, kernel->function, &only, nullptr);
  if (code == 0) return ffi::Error::Success();
  return ffi::Error::Internal("cellerate: the CUDA driver did not start a kernel, and says " +
                              std::to_string(code));
}

ffi::Error launch_on_host(ffi::RemainingArgs arguments, ffi::RemainingRets results, std::string_view key,
                          int64_t blocks, int64_t threads, int64_t shared, ffi::Span<const int32_t> numbers,
                          ffi::Span<const int64_t> slots) {
  return launch(nullptr, arguments, results, key, blocks, threads, shared, numbers, slots);
}

template <class Bound>
auto with_attributes(Bound bound) {
  return std::move(bound)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("kernel")
      .template Attr<int64_t>("blocks")
      .template Attr<int64_t>("threads")
      .template Attr<int64_t>("shared")
      .template Attr<ffi::Span<const int32_t>>("numbers")
      .template Attr<ffi::Span<const int64_t>>("slots");
}

// A call only starts that one kernel, so XLA may record it into a CUDA graph.
XLA_FFI_DEFINE_HANDLER(kLaunch, launch, with_attributes(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kLaunchOnHost, launch_on_host, with_attributes(ffi::Ffi::Bind()));

}  // namespace

void xla_register_kernel(const std::string& key, uintptr_t launcher, uintptr_t function) {
  kernels().add(key, {reinterpret_cast<Launcher>(launcher), reinterpret_cast<void*>(function)});
}

void* xla_launch() { return reinterpret_cast<void*>(kLaunch); }
void* xla_launch_on_host() { return reinterpret_cast<void*>(kLaunchOnHost); }

}  // namespace cellerate
