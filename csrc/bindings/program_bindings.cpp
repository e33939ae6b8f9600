// program.h for Python. cellerate.kernels.program.cpu calls it, with shapes and types already checked.
#include "bindings/program_bindings.h"

#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/program_nodes.h"
#include "engine/program.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

using Shapes = std::vector<std::tuple<int64_t, int64_t>>;
using Inputs = std::vector<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Outputs = std::vector<nb::ndarray<float, nb::c_contig, nb::device::cpu>>;
using Times = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const float* data_of(const ProgramWeights& array) { return array ? array->data() : nullptr; }

// The rows and columns of a kernel; of an LSTM its inputs and units, and of factors only columns.
void set_sizes(ProgramNode& node, const ProgramWeights& kernel, const ProgramWeights& recurrent_kernel,
               const ProgramWeights& bias) {
  const ProgramWeights& weights = kernel ? kernel : bias;
  if (!weights) return;
  if (weights->ndim() == 2) node.rows = static_cast<int64_t>(weights->shape(0));
  node.columns = static_cast<int64_t>(recurrent_kernel ? recurrent_kernel->shape(0)
                                                       : weights->shape(weights->ndim() - 1));
}

void make(CompiledProgram* self, const std::vector<PassedNode>& nodes, const std::vector<int32_t>& outputs,
          const std::string& precision, size_t most_bytes) {
  std::vector<ProgramNode> graph = nodes_of(nodes);
  const auto kept = named<Precision>("precision", precision, kPrecisionNames);
  const nb::gil_scoped_release release;
  new (self) CompiledProgram(std::move(graph), outputs, kept, most_bytes);
}

void make_sizes(ProgramSizes* self, const Shapes& shapes, const std::vector<int64_t>& begins) {
  new (self) ProgramSizes;
  self->begins = begins;
  for (const auto& [steps, features] : shapes) self->shapes.push_back({steps, features});
}

void run(const CompiledProgram& program, int64_t batch, const ProgramSizes& sizes, const Inputs& inputs,
         const Outputs& outputs, const std::optional<Times>& seconds) {
  if (sizes.shapes.size() != program.count() || sizes.begins.size() != program.count() ||
      inputs.size() != program.inputs() || outputs.size() != program.outputs() ||
      (seconds && seconds->size() != program.count()))
    throw std::invalid_argument(
        "expected a shape, a begin and a time for each node, and all inputs and outputs");
  std::vector<const void*> from;
  for (const auto& input : inputs) from.push_back(input.data());
  std::vector<float*> to;
  for (const auto& output : outputs) to.push_back(output.data());
  const ProgramCall call{batch,       sizes.shapes.data(), sizes.begins.data(),
                         from.data(), to.data(),           seconds ? seconds->data() : nullptr};
  const nb::gil_scoped_release release;
  program.run(call);
}

// Of each node: whether another one does its work, whether LSTMs look it up, whether it looks ids up in a table, and the
// node that it can run beside, or -1.
std::vector<std::tuple<bool, bool, bool, int32_t>> links(const CompiledProgram& program) {
  std::vector<std::tuple<bool, bool, bool, int32_t>> found;
  for (const ValueLink& link : program.links())
    found.emplace_back(link.nothing, link.looked_up, link.tabled, link.partner);
  return found;
}

}  // namespace

std::vector<PassedNode> passed_nodes(const nb::list& list) { return nb::cast<std::vector<PassedNode>>(list); }

std::vector<ProgramNode> nodes_of(const std::vector<PassedNode>& passed) {
  std::vector<ProgramNode> graph;
  for (const auto& [op, inputs, arrays, codes, flags, number] : passed) {
    ProgramNode& node = graph.emplace_back();
    node.op = program_op_named(op).op;
    node.inputs = inputs.data();
    node.input_count = static_cast<int32_t>(inputs.size());
    const auto& [kernel, recurrent_kernel, bias] = arrays;
    set_sizes(node, kernel, recurrent_kernel, bias);
    node.kernel = data_of(kernel);
    node.recurrent_kernel = data_of(recurrent_kernel);
    node.bias = data_of(bias);
    node.activation = activation_option("activation", std::get<0>(codes));
    node.recurrent_activation = activation_option("recurrent_activation", std::get<1>(codes));
    node.normalizer = named<Normalizer>("activation", std::get<2>(codes), kNormalizerNames);
    node.masked_output = named<MaskedOutput>("masked_output", std::get<3>(codes), kMaskedOutputNames);
    std::tie(node.go_backwards, node.return_sequences, node.ids, node.cell) = flags;
    node.number = number;
  }
  return graph;
}

nb::dict operations_with(bool ProgramOpRow::* flag) {
  nb::dict operations;
  for (const ProgramOpRow& row : kProgramOps) {
    if (!(row.*flag)) continue;
    nb::list inputs;
    for (size_t n = 0; n < row.count_of_inputs(); ++n) inputs.append(row.inputs[n]);
    operations[row.name] =
        nb::make_tuple(nb::tuple(inputs), nb::make_tuple(row.arrays[0], row.arrays[1], row.arrays[2]),
                       row.number, row.shapes);
  }
  return operations;
}

void bind_programs(nb::module_& module) {
  module.attr("PROGRAM_OPERATIONS") = operations_with(&ProgramOpRow::predicts);
  nb::class_<ProgramSizes>(module, "ProgramSizes", "What a call of a packed model has in common with others.")
      .def("__init__", &make_sizes, nb::arg("shapes"), nb::arg("begins"));
  nb::class_<CompiledProgram>(module, "CompiledProgram", "A packed model; see cellerate.kernels.program.cpu.")
      .def("__init__", &make, nb::arg("nodes"), nb::arg("outputs"), nb::arg("precision"),
           nb::arg("most_bytes"))
      .def_prop_ro("packed_bytes", &CompiledProgram::packed_bytes)
      .def_prop_ro("target", [](const CompiledProgram& program) { return std::string(program.target()); })
      .def("links", &links)
      .def(
          "shares_blocks",
          [](const CompiledProgram& program, int64_t batch, const ProgramSizes& sizes) {
            if (sizes.shapes.size() != program.count())
              throw std::invalid_argument("expected a shape for each node");
            return program.shares_blocks({batch, sizes.shapes.data(), sizes.begins.data(), nullptr, nullptr});
          })
      .def("run", &run, nb::arg("batch"), nb::arg("sizes"), nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("seconds") = nb::none());
}

}  // namespace cellerate
