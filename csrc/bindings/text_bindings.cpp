// text_program.h for Python. cellerate.kernels.decoder.cpu calls it, with shapes and types already checked.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/module.h"
#include "bindings/passed.h"
#include "engine/text_program.h"
#include "simd/dispatch.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Rules = std::tuple<double, int64_t, double, double, double, int64_t, uint64_t, uint64_t>;
using Request = std::tuple<Rules, In<int32_t>, uint64_t, int64_t, In<int32_t>, std::optional<In<int32_t>>>;

template <class Array>
auto* data_of(const std::optional<Array>& array) {
  return array ? array->data() : nullptr;
}

Sampling sampling_of(const Rules& rules) {
  return std::apply([](auto... each) { return Sampling{each...}; }, rules);
}

std::tuple<int64_t, float> sample(const In<float>& logits, const Rules& rules, const In<int32_t>& previous,
                                  uint64_t position) {
  Sampler sampler(sampling_of(rules), target().programs->exponentials, static_cast<int64_t>(logits.size()),
                  {previous.data(), previous.size()}, 0);
  float log_probability = 0;
  const int64_t id = sampler.choose(logits.data(), position, &log_probability);
  return {id, log_probability};
}

void make_text(TextProgram* self, const std::vector<PassedNode>& nodes, const std::vector<int32_t>& outputs,
               const std::string& precision, int threads) {
  std::vector<ProgramNode> graph = nodes_of(nodes);
  const auto kept = named<Precision>("precision", precision, kPrecisionNames);
  const nb::gil_scoped_release release;
  new (self) TextProgram(std::move(graph), outputs, kept, threads);
}

// Reads ids with TextProgram::read or score.
template <auto kRead>
void read_text(const TextProgram& model, const In<int32_t>& ids, const std::optional<In<int32_t>>& lengths,
               const In<float>& state, const Out<float>& new_state, const Out<float>& result) {
  const TextIds text{static_cast<int64_t>(ids.shape(0)), static_cast<int64_t>(ids.shape(1)), ids.data(),
                     data_of(lengths)};
  const nb::gil_scoped_release release;
  (model.*kRead)(text, state.data(), new_state.data(), result.data());
}

// Reads one id of each sequence, from arrays that Python has not checked: state (B, S); ids (B), int32 or int64.
// Returns false and does nothing if an array does not fit; the caller's full checks then raise the error.
bool step_text(const TextProgram& model, nb::handle state, nb::handle ids, nb::handle new_state,
               nb::handle logits) {
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
  const TextIds text{batch, 1, wide ? narrowed.data() : read.data<int32_t>()};
  const nb::gil_scoped_release release;
  model.read(text, from.data<float>(), to.data<float>(), result.data<float>());
  return true;
}

// Writes the ids and their log probabilities, (B, N) with N the largest count. Returns for each row the number of ids,
// and whether a logit was not finite.
std::vector<std::tuple<int64_t, bool>> draw_text(const TextProgram& model, const In<float>& state,
                                                 const Out<float>& new_state, const Out<float>& logits,
                                                 const std::vector<Request>& requests,
                                                 const Out<int32_t>& ids,
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
  for (const TextProgram::Drawn& drawn : model.generate(draws, state.data(), new_state.data(), logits.data()))
    result.emplace_back(drawn.count, drawn.diverged);
  return result;
}

}  // namespace

void bind_texts(nb::module_& module) {
  nb::class_<TextProgram>(module, "TextProgram", "A next-token model; see cellerate.kernels.decoder.cpu.")
      .def("__init__", &make_text, nb::arg("nodes"), nb::arg("outputs"), nb::arg("precision"),
           nb::arg("threads"))
      .def_prop_ro("vocabulary", &TextProgram::vocabulary)
      .def_prop_ro("outputs", &TextProgram::outputs)
      .def_prop_ro("state_size", &TextProgram::state_size)
      .def_prop_ro("packed_bytes", [](const TextProgram& model) { return model.program().packed_bytes(); })
      .def_prop_ro("target", [](const TextProgram& model) { return std::string(model.program().target()); })
      .def("read", &read_text<&TextProgram::read>, nb::arg("ids"), nb::arg("lengths").none(),
           nb::arg("state"), nb::arg("new_state").noconvert(), nb::arg("logits").noconvert())
      .def("score", &read_text<&TextProgram::score>, nb::arg("ids"), nb::arg("lengths").none(),
           nb::arg("state"), nb::arg("new_state").noconvert(), nb::arg("log_probabilities").noconvert())
      .def("step", &step_text, nb::arg("state"), nb::arg("ids").none(), nb::arg("new_state"),
           nb::arg("logits"))
      .def("generate", &draw_text, nb::arg("state"), nb::arg("new_state").noconvert(),
           nb::arg("logits").noconvert(), nb::arg("requests"), nb::arg("ids").noconvert(),
           nb::arg("log_probabilities").noconvert());
  module.def("sample", &sample, nb::arg("logits"), nb::arg("rules"), nb::arg("previous"), nb::arg("position"),
             "Draws one token: its id, or -1 if a logit is not finite, and its log probability.");
}

}  // namespace cellerate
