// step_model.h for Python. cellerate.kernels.decoder.cpu calls it, with shapes and types already checked.
#include "bindings/step_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/passed.h"
#include "engine/step_model.h"
#include "simd/dispatch.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Node = std::tuple<std::string, int64_t, int64_t, std::optional<In<float>>, std::optional<In<float>>,
                        std::optional<In<float>>, ActivationCodes, ActivationCodes, float, bool>;
using Rules = std::tuple<double, int64_t, double, double, double, int64_t, uint64_t, uint64_t>;
using Request = std::tuple<Rules, In<int32_t>, uint64_t, int64_t, In<int32_t>, std::optional<In<int32_t>>>;

template <class Array>
auto* data_of(const std::optional<Array>& array) {
  return array ? array->data() : nullptr;
}

void make(StepModel* self, const std::vector<Node>& nodes, const std::string& precision, int threads) {
  std::vector<StepNode> chain;
  for (const Node& from : nodes) {
    StepNode& node = chain.emplace_back();
    node.kind = named<StepKind>("op", std::get<0>(from), kStepKindNames);
    node.inputs = std::get<1>(from);
    node.outputs = std::get<2>(from);
    node.kernel = data_of(std::get<3>(from));
    node.recurrent_kernel = data_of(std::get<4>(from));
    node.bias = data_of(std::get<5>(from));
    node.activation = activation_option("activation", std::get<6>(from));
    node.recurrent_activation = activation_option("recurrent_activation", std::get<7>(from));
    node.epsilon = std::get<8>(from);
    node.masks_zero = std::get<9>(from);
  }
  const auto kept = named<Precision>("precision", precision, kPrecisionNames);
  try {
    const nb::gil_scoped_release release;
    new (self) StepModel(chain, kept, threads);
    return;
  } catch (const std::domain_error& error) {
    // A weight is not finite. The type of the error lets Python distinguish this from a wrong argument.
    PyErr_SetString(PyExc_ArithmeticError, error.what());
  }
  throw nb::python_error();
}

void run(const StepModel& model, int64_t batch, int64_t steps, const In<int32_t>& ids,
         const std::optional<In<int32_t>>& lengths, const In<float>& state, const Out<float>& new_state,
         const std::optional<Out<float>>& logits, const std::optional<Out<float>>& log_probabilities) {
  StepCall call;
  call.batch = batch;
  call.steps = steps;
  call.ids = ids.data();
  call.lengths = data_of(lengths);
  call.state = state.data();
  call.new_state = new_state.data();
  call.logits = data_of(logits);
  call.log_probabilities = data_of(log_probabilities);
  call.threads = 0;
  const nb::gil_scoped_release release;
  model.run(call);
}

// A step of some sequences, whose arrays Python has not looked at: state (B, S), ids (B), int32 or int64. False, and
// nothing done, if something does not fit; then the full checks say what.
bool step(const StepModel& model, nb::handle state, nb::handle ids, nb::handle new_state, nb::handle logits) {
  const Buffer from(state, Buffer::Access::kRead), read(ids, Buffer::Access::kRead);
  const Buffer to(new_state, Buffer::Access::kWrite), result(logits, Buffer::Access::kWrite);
  const int64_t batch = to.rows(), states[] = {batch, model.state_size()},
                outputs[] = {batch, model.outputs()};
  const bool wide = read.is({&batch, 1}, 'l');
  if (batch < 1 || !from.is(states, 'f') || !to.is(states, 'f') || !result.is(outputs, 'f')) return false;
  if (!wide && !read.is({&batch, 1}, 'i')) return false;
  std::vector<int32_t> narrowed;
  for (int64_t row = 0; wide && row < batch; ++row) {
    const int64_t id = read.data<int64_t>()[row];
    if (id < 0 || id >= model.vocabulary()) return false;
    narrowed.push_back(static_cast<int32_t>(id));
  }
  StepCall call;
  call.batch = batch;
  call.steps = 1;
  call.ids = wide ? narrowed.data() : read.data<int32_t>();
  call.state = from.data<float>();
  call.new_state = to.data<float>();
  call.logits = result.data<float>();
  call.threads = 0;
  const nb::gil_scoped_release release;
  model.run(call);
  return true;
}

Sampling sampling_of(const Rules& rules) {
  return {std::get<0>(rules), std::get<1>(rules), std::get<2>(rules), std::get<3>(rules),
          std::get<4>(rules), std::get<5>(rules), std::get<6>(rules), std::get<7>(rules)};
}

// Writes the ids and their log probabilities, (B, N) with N the largest count. Gives for each row how many there are,
// and whether a logit was not finite.
std::vector<std::tuple<int64_t, bool>> generate(const StepModel& model, const In<float>& state,
                                                const Out<float>& new_state, const Out<float>& logits,
                                                const std::vector<Request>& requests, const Out<int32_t>& ids,
                                                const Out<float>& log_probabilities) {
  const auto width = static_cast<int64_t>(ids.size() / requests.size());
  std::vector<Draw> draws;
  for (const auto& [rules, previous, position, count, stop_ids, cancelled] : requests) {
    const auto row = static_cast<int64_t>(draws.size());
    draws.push_back({sampling_of(rules),
                     {previous.data(), previous.size()},
                     count,
                     position,
                     {stop_ids.data(), stop_ids.size()},
                     data_of(cancelled),
                     ids.data() + row * width,
                     log_probabilities.data() + row * width});
  }
  std::vector<std::tuple<int64_t, bool>> result;
  const nb::gil_scoped_release release;
  for (const StepModel::Drawn& drawn : model.generate(draws, state.data(), new_state.data(), logits.data()))
    result.emplace_back(drawn.count, drawn.diverged);
  return result;
}

std::tuple<int64_t, float> sample(const In<float>& logits, const Rules& rules, const In<int32_t>& previous,
                                  uint64_t position) {
  Sampler sampler(sampling_of(rules), target().steps->exponentials, static_cast<int64_t>(logits.size()),
                  {previous.data(), previous.size()}, 0);
  float log_probability = 0;
  const int64_t id = sampler.choose(logits.data(), position, &log_probability);
  return {id, log_probability};
}

}  // namespace

void bind_steps(nb::module_& module) {
  nb::class_<StepModel>(module, "StepModel", "A next-token chain; see cellerate.kernels.decoder.cpu.")
      .def("__init__", &make, nb::arg("nodes"), nb::arg("precision"), nb::arg("threads"))
      .def_prop_ro("vocabulary", &StepModel::vocabulary)
      .def_prop_ro("outputs", &StepModel::outputs)
      .def_prop_ro("state_size", &StepModel::state_size)
      .def_prop_ro("packed_bytes", &StepModel::packed_bytes)
      .def_prop_ro("target", [](const StepModel& model) { return std::string(model.target()); })
      .def("threads_of_one_stream", &StepModel::threads_of_one_stream,
           nb::call_guard<nb::gil_scoped_release>())
      .def("run", &run, nb::arg("batch"), nb::arg("steps"), nb::arg("ids"), nb::arg("lengths").none(),
           nb::arg("state"), nb::arg("new_state").noconvert(), nb::arg("logits").none().noconvert(),
           nb::arg("log_probabilities").none().noconvert())
      .def("step", &step, nb::arg("state"), nb::arg("ids").none(), nb::arg("new_state"), nb::arg("logits"))
      .def("generate", &generate, nb::arg("state"), nb::arg("new_state").noconvert(),
           nb::arg("logits").noconvert(), nb::arg("requests"), nb::arg("ids").noconvert(),
           nb::arg("log_probabilities").noconvert());
  module.def("sample", &sample, nb::arg("logits"), nb::arg("rules"), nb::arg("previous"), nb::arg("position"),
             "Draws one token: its id, or -1 if a logit is not finite, and its log probability.");
}

}  // namespace cellerate
