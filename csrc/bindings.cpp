// The Python module cellerate.kernels._core: arguments in, errors out; nothing is computed here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>

#include "arguments.h"
#include "dispatch.h"
#include "step_bindings.h"
#include "threads.h"
#include "xla_ffi.h"
#include "xla_launch.h"

namespace nb = nanobind;

namespace {

using cellerate::Array;
using cellerate::Options;
using cellerate::Type;

using OptionCodes = std::tuple<int64_t, int64_t, int64_t, bool, bool>;

Type type_of(const nb::dlpack::dtype& type) {
  // NumPy cannot pass bfloat16; its 16 bits come as uint16.
  if (type == nb::dtype<uint16_t>()) return Type::kBfloat16;
  if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.bits == 16)
    return Type::kBfloat16;
  if (type == nb::dtype<float>()) return Type::kFloat32;
  if (type == nb::dtype<int32_t>()) return Type::kInt32;
  if (type == nb::dtype<uint8_t>()) return Type::kByte;
  if (type == nb::dtype<bool>()) return Type::kBool;
  return Type::kOther;
}

// The arrays of one call; the ndarrays keep the memory alive.
class Arrays {
 public:
  Arrays(const nb::sequence& objects, std::span<const char* const> names, bool writable) {
    for (const nb::handle object : objects) {
      Array& array = arrays_.emplace_back();
      if (object.is_none()) continue;
      const std::string name = arrays_.size() <= names.size() ? names[arrays_.size() - 1] : "array";
      add(array, object, name, writable);
    }
  }
  std::span<const Array> all() const { return arrays_; }

 private:
  void add(Array& array, nb::handle object, const std::string& name, bool writable) {
    nb::ndarray<nb::ro, nb::device::cpu> view;
    if (!nb::try_cast(object, view, false)) {
      throw std::invalid_argument(name + ": expected a dense array in main memory, got " +
                                  nb::cast<std::string>(nb::str(object.type())));
    }
    int64_t stride = 1;
    for (size_t axis = view.ndim(); axis-- > 0;) {
      if (view.shape(axis) != 1 && view.size() != 0 && view.stride(axis) != stride) {
        throw std::invalid_argument(name +
                                    ": expected a C-contiguous array, got one with gaps or another order");
      }
      stride *= static_cast<int64_t>(view.shape(axis));
    }
    if (writable) {
      nb::ndarray<nb::device::cpu> result;
      if (!nb::try_cast(object, result, false))
        throw std::invalid_argument(name + ": expected a writable array");
    }
    array.present = true;
    array.data = const_cast<void*>(view.data());
    array.type = type_of(view.dtype());
    for (size_t axis = 0; axis < view.ndim(); ++axis)
      array.shape.push_back(static_cast<int64_t>(view.shape(axis)));
    held_.push_back(std::move(view));
  }

  std::vector<Array> arrays_;
  std::vector<nb::ndarray<nb::ro, nb::device::cpu>> held_;
};

Options options_of(const OptionCodes& codes) {
  return {std::get<0>(codes), std::get<1>(codes), std::get<2>(codes), std::get<3>(codes), std::get<4>(codes)};
}

void forward(const OptionCodes& options, const nb::sequence& arguments, const nb::sequence& results) {
  const Arrays in(arguments, cellerate::kForwardArguments, false);
  const Arrays out(results, cellerate::kForwardResults, true);
  const cellerate::LstmForward call = cellerate::forward_call(options_of(options), in.all(), out.all());
  const nb::gil_scoped_release release;
  cellerate::forward(call);
}

void backward(const OptionCodes& options, const nb::sequence& arguments, const nb::sequence& results) {
  const Arrays in(arguments, cellerate::kBackwardArguments, false);
  const Arrays out(results, cellerate::kBackwardResults, true);
  const cellerate::LstmBackward call = cellerate::backward_call(options_of(options), in.all(), out.all());
  const nb::gil_scoped_release release;
  cellerate::backward(call);
}

void dense_forward(const nb::sequence& arguments, const nb::sequence& results) {
  const Arrays in(arguments, cellerate::kDenseForwardArguments, false);
  const Arrays out(results, cellerate::kDenseForwardResults, true);
  const cellerate::DenseForward call = cellerate::dense_forward_call(in.all(), out.all());
  const nb::gil_scoped_release release;
  cellerate::dense_forward(call);
}

void dense_backward(const nb::sequence& arguments, const nb::sequence& results) {
  const Arrays in(arguments, cellerate::kDenseBackwardArguments, false);
  const Arrays out(results, cellerate::kDenseBackwardResults, true);
  const cellerate::DenseBackward call = cellerate::dense_backward_call(in.all(), out.all());
  const nb::gil_scoped_release release;
  cellerate::dense_backward(call);
}

size_t reserve_bytes(int64_t batch, int64_t steps, int64_t units, bool bfloat16, bool masked,
                     bool return_sequences) {
  const uint8_t mask = 0;
  cellerate::LstmInputs in;
  in.batch = batch;
  in.steps = steps;
  in.units = units;
  in.storage = bfloat16 ? cellerate::Storage::kBfloat16 : cellerate::Storage::kFloat32;
  in.mask = masked ? &mask : nullptr;
  in.return_sequences = return_sequences;
  return cellerate::target().reserve_bytes(in);
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "Cellerate's native core; cellerate.kernels.lstm.cpu is its face.";
  module.def(
      "target", [] { return std::string(cellerate::target().name); }, "The name of the target in use.");
  module.def("available_targets", &cellerate::available_targets,
             "The targets that can run here, fastest first.");
  module.def(
      "set_target", [](const std::string& name) { cellerate::set_target(name); }, nb::arg("name"),
      "Chooses another target for all calls from now on.");
  module.def(
      "bfloat16_products", [] { return cellerate::target().bfloat16_products; },
      "Whether the target in use multiplies bfloat16 as such.");
  module.def("thread_count", &cellerate::thread_count, "How many threads a call may use.");
  module.def("set_thread_count", &cellerate::set_thread_count, nb::arg("count"),
             "Sets how many threads a call may use.");
  module.def("measure_peak", &cellerate::measure_peak, nb::arg("bfloat16"), nb::arg("threads"),
             nb::call_guard<nb::gil_scoped_release>(), "Operations a second that registers alone allow.");
  module.def("reserve_bytes", &reserve_bytes, nb::arg("batch"), nb::arg("steps"), nb::arg("units"),
             nb::arg("bfloat16"), nb::arg("masked"), nb::arg("return_sequences"),
             "Bytes that forward keeps for backward.");
  module.def(
      "forward", &forward, nb::arg("options"), nb::arg("arguments"), nb::arg("results"),
      "Runs one layer. Arrays in the order of FORWARD_ARGUMENTS and FORWARD_RESULTS, None where absent.");
  module.def("backward", &backward, nb::arg("options"), nb::arg("arguments"), nb::arg("results"),
             "The gradients of one layer. Arrays in the order of BACKWARD_ARGUMENTS and BACKWARD_RESULTS.");
  module.def("dense_forward", &dense_forward, nb::arg("arguments"), nb::arg("results"),
             "A dense layer: (x, kernel, bias) and (y,), None where absent.");
  module.def("dense_backward", &dense_backward, nb::arg("arguments"), nb::arg("results"),
             "Its gradients: (x, kernel, bias, d_y) and (d_x, d_kernel, d_bias), None where absent.");
  cellerate::bind_steps(module);
  const auto names = [](std::span<const char* const> all) {
    nb::list list;
    for (const char* name : all) list.append(name);
    return nb::tuple(list);
  };
  module.attr("FORWARD_ARGUMENTS") = names(cellerate::kForwardArguments);
  module.attr("FORWARD_RESULTS") = names(cellerate::kForwardResults);
  module.attr("BACKWARD_ARGUMENTS") = names(cellerate::kBackwardArguments);
  module.attr("BACKWARD_RESULTS") = names(cellerate::kBackwardResults);
  module.def(
      "xla_forward", [] { return nb::capsule(cellerate::xla_forward()); }, "The XLA handler of forward.");
  module.def(
      "xla_backward", [] { return nb::capsule(cellerate::xla_backward()); }, "The XLA handler of backward.");
  module.def(
      "xla_dense_forward", [] { return nb::capsule(cellerate::xla_dense_forward()); },
      "The XLA handler of dense_forward.");
  module.def(
      "xla_dense_backward", [] { return nb::capsule(cellerate::xla_dense_backward()); },
      "The XLA handler of dense_backward.");
  module.def(
      "xla_launch", [] { return nb::capsule(cellerate::xla_launch()); },
      "The XLA handler that starts a CUDA kernel.");
  module.def(
      "xla_launch_on_host", [] { return nb::capsule(cellerate::xla_launch_on_host()); },
      "The same for a launcher that runs on the CPU.");
  module.def("xla_register_kernel", &cellerate::xla_register_kernel, nb::arg("key"), nb::arg("launcher"),
             nb::arg("function"),
             "Makes a kernel known to them under a key: the addresses of the launcher and of the kernel.");
}
