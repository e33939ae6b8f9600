// The Python module cellerate.kernels._core: converts arguments and errors; it computes nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>

#include "bindings/calls.h"
#include "bindings/module.h"
#include "bindings/xla_ffi.h"
#include "bindings/xla_launch.h"
#include "engine/program.h"
#include "simd/dispatch.h"
#include "systems/phases.h"
#include "systems/threads.h"

namespace nb = nanobind;

namespace {

using cellerate::Array;
using cellerate::Call;
using cellerate::Names;
using cellerate::Type;

Type type_of(const nb::dlpack::dtype& type) {
  // NumPy does not have bfloat16, so Python passes its 16 bits as uint16.
  if (type == nb::dtype<uint16_t>()) return Type::kBfloat16;
  return cellerate::type_where([&](const cellerate::TypeRow& row) {
    return type.code == row.dlpack_code && type.bits == row.bits && type.lanes == 1;
  });
}

// The arrays of one call; the ndarrays keep the memory alive.
class Arrays {
 public:
  Arrays(const nb::sequence& objects, Names names, bool writable) {
    arrays_.reserve(names.size());
    held_.reserve(names.size());
    for (const nb::handle object : objects) {
      Array& array = arrays_.emplace_back();
      if (object.is_none()) continue;
      add(array, object, arrays_.size() <= names.size() ? names[arrays_.size() - 1] : "array", writable);
    }
  }
  cellerate::Arrays all() const { return arrays_; }

 private:
  void add(Array& array, nb::handle object, const char* name, bool writable) {
    nb::ndarray<nb::ro, nb::device::cpu> view;
    if (!nb::try_cast(object, view, false)) {
      throw std::invalid_argument(std::string(name) + ": expected a dense array in main memory, got " +
                                  nb::cast<std::string>(nb::str(object.type())));
    }
    int64_t stride = 1;
    for (size_t axis = view.ndim(); axis-- > 0;) {
      if (view.shape(axis) != 1 && view.size() != 0 && view.stride(axis) != stride) {
        throw std::invalid_argument(std::string(name) +
                                    ": expected a C-contiguous array, got one with gaps or another order");
      }
      stride *= static_cast<int64_t>(view.shape(axis));
    }
    if (writable) {
      nb::ndarray<nb::device::cpu> result;
      if (!nb::try_cast(object, result, false))
        throw std::invalid_argument(std::string(name) + ": expected a writable array");
    }
    array.present = true;
    array.data = const_cast<void*>(view.data());
    array.type = type_of(view.dtype());
    array.shape.reserve(view.ndim());
    for (size_t axis = 0; axis < view.ndim(); ++axis)
      array.shape.push_back(static_cast<int64_t>(view.shape(axis)));
    held_.push_back(std::move(view));
  }

  std::vector<Array> arrays_;
  std::vector<nb::ndarray<nb::ro, nb::device::cpu>> held_;
};

using Numbers = std::vector<int64_t>;

void call(std::string_view name, const Numbers& options, const nb::sequence& arguments,
          const nb::sequence& results) {
  const Call& call = cellerate::call_named(name);
  const Arrays in(arguments, call.arguments, false);
  const Arrays out(results, call.results, true);
  const cellerate::Run run = cellerate::prepare(call, options, in.all(), out.all());
  const nb::gil_scoped_release release;
  run();
}

size_t reserve_bytes(std::string_view name, std::string_view dtype, const Numbers& options,
                     const Numbers& sizes) {
  return cellerate::reserve_bytes(cellerate::call_named(name), dtype, options, sizes);
}

nb::tuple tuple_of(Names names) {
  nb::list list;
  for (const char* name : names) list.append(name);
  return nb::tuple(list);
}

nb::list phase_times() {
  nb::list found;
  for (const cellerate::PhaseTimes& each : cellerate::phase_times()) {
    nb::dict seconds;
    for (int phase = 0; phase < cellerate::kPhases; ++phase) {
      seconds[cellerate::kPhaseNames[phase]] = each.seconds[phase];
    }
    found.append(
        nb::make_tuple(each.backward, each.inputs, each.units, each.vocabulary, each.calls, seconds));
  }
  return found;
}

}  // namespace

NB_MODULE(_core, module) {
  // Objects in a framework's caches, such as a model that JAX has compiled, live until the process ends: not a leak.
  nb::set_leak_warnings(false);
  module.doc() = "Cellerate's native core; cellerate.kernels.native is its face.";
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
  module.def(
      "measure_peak",
      [](std::string_view precision, int threads) {
        using cellerate::Precision;
        return cellerate::measure_peak(
            cellerate::named<Precision>("precision", precision, cellerate::kPrecisionNames), threads);
      },
      nb::arg("precision"), nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
      "Operations a second that registers alone allow.");
  module.def("measure_read", &cellerate::measure_read, nb::arg("bytes"), nb::arg("threads"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Bytes a second that threads read of so many bytes again and again.");
  module.def("watch_phases", &cellerate::watch_phases, nb::arg("on"),
             "Begins to time the phases of layers, with nothing seen yet, or ends.");
  module.def("phase_times", &phase_times,
             "Of layers of each size since then: backward, inputs, units, vocabulary, calls, seconds of each "
             "phase.");
  module.def(
      "call", &call, nb::arg("name"), nb::arg("options"), nb::arg("arguments"), nb::arg("results"),
      "Runs one of CALLS, which has the order of its options and arrays; None where an array is absent.");
  module.def("reserve_bytes", &reserve_bytes, nb::arg("name"), nb::arg("dtype"), nb::arg("options"),
             nb::arg("sizes"), "Bytes that a call keeps for backward, for sizes in the order of CALLS.");
  cellerate::bind_texts(module);
  cellerate::bind_programs(module);
  cellerate::bind_training(module);
  nb::dict all;
  for (const Call* each : cellerate::calls()) {
    all[each->name] = nb::make_tuple(tuple_of(each->options), tuple_of(each->arguments),
                                     tuple_of(each->results), tuple_of(each->sizes));
  }
  module.attr("CALLS") = all;
  // The names of options; the index of a name is its code.
  module.attr("ACTIVATIONS") = tuple_of(cellerate::Activation::kNames);
  module.attr("FUNCTIONS") = tuple_of(cellerate::kFunctionNames);
  module.attr("MASKED_OUTPUTS") = tuple_of(cellerate::kMaskedOutputNames);
  nb::list storage_types;
  for (int32_t n = 0; n < static_cast<int32_t>(cellerate::Storage::kCount); ++n) {
    storage_types.append(cellerate::kTypes[n].name);
  }
  module.attr("STORAGE_TYPES") = nb::tuple(storage_types);
  module.def("xla_call", [] { return nb::capsule(cellerate::xla_call()); }, "The XLA handler of all calls.");
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
