#include "xla_launch.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace cellerate {
namespace {

namespace ffi = xla::ffi;

// The driver's CUlaunchConfig; its headers are not needed for more.
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};
using Launcher = int (*)(const LaunchConfig*, void* function, void** arguments, void** extra);

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
                  int64_t launcher, int64_t function, int64_t blocks, int64_t threads, int64_t shared,
                  ffi::Span<const int32_t> numbers, ffi::Span<const int64_t> slots) {
  // Numbers first, and addresses from the next multiple of their size on, as a compiler lays them out.
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
  const int code =
      reinterpret_cast<Launcher>(launcher)(&config, reinterpret_cast<void*>(function), &only, nullptr);
  if (code == 0) return ffi::Error::Success();
  return ffi::Error::Internal("cellerate: the CUDA driver did not start a kernel, and says " +
                              std::to_string(code));
}

ffi::Error launch_on_host(ffi::RemainingArgs arguments, ffi::RemainingRets results, int64_t launcher,
                          int64_t function, int64_t blocks, int64_t threads, int64_t shared,
                          ffi::Span<const int32_t> numbers, ffi::Span<const int64_t> slots) {
  return launch(nullptr, arguments, results, launcher, function, blocks, threads, shared, numbers, slots);
}

template <class Bound>
auto with_attributes(Bound bound) {
  return std::move(bound)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<int64_t>("launcher")
      .template Attr<int64_t>("function")
      .template Attr<int64_t>("blocks")
      .template Attr<int64_t>("threads")
      .template Attr<int64_t>("shared")
      .template Attr<ffi::Span<const int32_t>>("numbers")
      .template Attr<ffi::Span<const int64_t>>("slots");
}

XLA_FFI_DEFINE_HANDLER(kLaunch, launch, with_attributes(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()));
XLA_FFI_DEFINE_HANDLER(kLaunchOnHost, launch_on_host, with_attributes(ffi::Ffi::Bind()));

}  // namespace

void* xla_launch() { return reinterpret_cast<void*>(kLaunch); }
void* xla_launch_on_host() { return reinterpret_cast<void*>(kLaunchOnHost); }

}  // namespace cellerate
