// The handlers that start CUDA kernels for XLA: what they say of themselves, and their table of kernels.
#include "bindings/xla_launch.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "xla/ffi/api/c_api.h"

// XLA's own; this is the least that the handlers need.
struct XLA_FFI_Error {
  std::string message;
};

namespace {

uint32_t traits_of(void* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  CHECK(reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame) == nullptr);
  CHECK(metadata.api_version.major_version == XLA_FFI_API_MAJOR);
  return metadata.traits;
}

XLA_FFI_Error* created(XLA_FFI_Error_Create_Args* given) { return new XLA_FFI_Error{given->message}; }

// Calls the handler without buffers; gives the message of the error, nothing if there is none.
std::string call(std::string key) {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_Error_Create = created;
  int64_t blocks = 6, threads = 128, shared = 1000, null_slot = -1;
  int32_t numbers[] = {11, 12, 13};
  // In the order of the alphabet, as XLA has them.
  std::string text[] = {"blocks", "kernel", "numbers", "shared", "slots", "threads"};
  XLA_FFI_Scalar blocks_value{XLA_FFI_DataType_S64, &blocks}, threads_value{XLA_FFI_DataType_S64, &threads};
  XLA_FFI_Scalar shared_value{XLA_FFI_DataType_S64, &shared};
  XLA_FFI_Array numbers_value{XLA_FFI_DataType_S32, 3, numbers};
  XLA_FFI_Array slots_value{XLA_FFI_DataType_S64, 1, &null_slot};
  XLA_FFI_ByteSpan key_value{key.data(), key.size()};
  void* values[] = {&blocks_value, &key_value, &numbers_value, &shared_value, &slots_value, &threads_value};
  XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_ARRAY,
                              XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_ARRAY,  XLA_FFI_AttrType_SCALAR};
  XLA_FFI_ByteSpan spans[6];
  XLA_FFI_ByteSpan* names[6];
  for (int n = 0; n < 6; ++n) {
    spans[n] = {text[n].data(), text[n].size()};
    names[n] = &spans[n];
  }
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 6, types, names, values};
  auto* handler = reinterpret_cast<XLA_FFI_Handler*>(cellerate::xla_launch_on_host());
  const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
  return error == nullptr ? "" : error->message;
}

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
  CHECK((traits_of(cellerate::xla_launch()) & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) != 0);
}

TEST(a_kernel_is_started_by_its_key_and_one_that_is_not_loaded_is_an_error) {
  const std::string told = call("nothing");
  CHECK(told.find("the kernel nothing is not loaded in this process") != std::string::npos);
  add("one", 0);
  CHECK(call("one").empty());
  CHECK(started == 1);
  add("one", 700);
  CHECK(call("one").find("says 700") != std::string::npos);
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
