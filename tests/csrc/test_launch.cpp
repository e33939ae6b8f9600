// The handlers that start CUDA kernels for XLA: what they say of themselves, and their table of kernels.
#include "bindings/xla_launch.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/xla_interface.h"
#include "check.h"

namespace xla = cellerate::xla;

// XLA's own; this is the least that the handlers need.
struct xla::Error {
  std::string message;
};

namespace {

uint32_t traits_of(void* handler) {
  xla::Metadata metadata{};
  xla::MetadataExtension extension{{sizeof(xla::Extension), xla::kMetadata, nullptr}, &metadata};
  xla::Frame frame{};
  frame.extensions = &extension.extension;
  CHECK(reinterpret_cast<xla::Handler*>(handler)(&frame) == nullptr);
  CHECK(metadata.version.major == xla::kMajor && metadata.version.minor == xla::kMinor);
  return metadata.traits;
}

xla::Error* created(xla::ErrorRequest* given) { return new xla::Error{given->message}; }

// A call of a kernel without buffers, with attributes in the order of the alphabet, as XLA has them.
struct KernelCall {
  std::string key;
  int64_t blocks = 6, threads = 128, shared = 1000, slot = -1;
  int32_t numbers[3] = {11, 12, 13};
  int32_t stage = xla::kExecute;
  size_t bytes = sizeof(xla::Frame);
  const char* last = "threads";

  // Gives the message of the error, nothing if there is none.
  std::string make() {
    xla::Api api{};
    api.create_error = created;
    xla::Scalar blocks_value{xla::Number::kInt64, &blocks}, threads_value{xla::Number::kInt64, &threads};
    xla::Scalar shared_value{xla::Number::kInt64, &shared};
    xla::Numbers numbers_value{xla::Number::kInt32, 3, numbers}, slots_value{xla::Number::kInt64, 1, &slot};
    xla::Text key_value{key.data(), key.size()};
    void* values[] = {&blocks_value, &key_value, &numbers_value, &shared_value, &slots_value, &threads_value};
    using enum xla::AttributeKind;
    xla::AttributeKind kinds[] = {kScalar, kText, kArray, kScalar, kArray, kScalar};
    const std::string text[] = {"blocks", "kernel", "numbers", "shared", "slots", last};
    xla::Text spans[6];
    xla::Text* names[6];
    for (int n = 0; n < 6; ++n) {
      spans[n] = {text[n].data(), text[n].size()};
      names[n] = &spans[n];
    }
    xla::Frame frame{};
    frame.bytes = bytes;
    frame.api = &api;
    frame.stage = stage;
    frame.attributes = {sizeof(xla::Attributes), nullptr, 6, kinds, names, values};
    auto* handler = reinterpret_cast<xla::Handler*>(cellerate::xla_launch_on_host());
    const std::unique_ptr<xla::Error> error(handler(&frame));
    return error == nullptr ? "" : error->message;
  }
};
std::string call(std::string key) { return KernelCall{std::move(key)}.make(); }
bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::atomic<int> started{0};

// As the driver's cuLaunchKernelEx. The address of a kernel is a number here, and what comes back is the error.
int launcher(const unsigned* grid, void* function, void** arguments, void**) {
  const auto* numbers = static_cast<const int32_t*>(*arguments);
  CHECK(grid[0] == 6 && grid[3] == 128 && grid[6] == 1000);
  CHECK(numbers[0] == 11 && numbers[2] == 13);
  ++started;
  return static_cast<int>(reinterpret_cast<uintptr_t>(function));
}

void add(const std::string& key, uintptr_t function) {
  cellerate::xla_register_kernel(key, reinterpret_cast<uintptr_t>(&launcher), function);
}

}  // namespace

TEST(a_call_on_a_gpu_can_be_recorded_into_a_graph) {
  CHECK(traits_of(cellerate::xla_launch()) == xla::kInCommandBuffer);
  CHECK(traits_of(cellerate::xla_launch_on_host()) == 0);
}

TEST(a_kernel_is_started_by_its_key_and_one_that_is_not_loaded_is_an_error) {
  const std::string told = call("nothing");
  CHECK(holds(told, "the kernel nothing is not loaded in this process"));
  add("one", 0);
  CHECK(call("one").empty());
  CHECK(started == 1);
  add("one", 700);
  CHECK(holds(call("one"), "its error code is 700"));
}

TEST(a_call_that_does_not_fit_is_an_error_in_words) {
  add("one", 0);
  KernelCall refused{"one"};
  refused.slot = 0;
  CHECK(holds(refused.make(), "expected a buffer as result 0 of 0"));
  refused = KernelCall{"one"};
  refused.last = "other";
  CHECK(holds(refused.make(), "expected the attribute threads"));
  refused = KernelCall{"one"};
  refused.stage = 1;
  CHECK(holds(refused.make(), "only the execution"));
  refused = KernelCall{"one"};
  refused.bytes = sizeof(xla::Frame) - 1;
  CHECK(holds(refused.make(), "expected a call of at least"));
}

TEST(kernels_are_added_while_others_are_started) {
  add("shared", 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int n = 0; n < 200; ++n) {
        const std::string own = std::to_string(thread) + "-" + std::to_string(n);
        add(own, 0);
        CHECK(call(own).empty());
        CHECK(call("shared").empty());
      }
    });
  }
  for (std::thread& each : threads) each.join();
}
