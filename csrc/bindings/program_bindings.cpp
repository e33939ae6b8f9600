// program.h for Python. cellerate.kernels.program.cpu calls it, with shapes and types already checked.
#include <chrono>
#include <memory>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/module.h"
#include "bindings/passed.h"
#include "engine/program.h"
#include "systems/threads.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

using Shapes = std::vector<std::tuple<int64_t, int64_t, int64_t>>;  // steps, features, sequences
using Times = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const float* data_of(const ProgramWeights& array) { return array ? array->data() : nullptr; }

// Sets the rows and columns of a kernel: for an LSTM its inputs and units; for a vector only the columns.
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
  new (self) CompiledProgram(std::move(graph), outputs, kept, {.most_bytes = most_bytes});
}

void make_sizes(ProgramSizes* self, const Shapes& shapes, const std::vector<int64_t>& begins) {
  new (self) ProgramSizes;
  self->begins = begins;
  for (const auto& [steps, features, sequences] : shapes)
    self->shapes.push_back({steps, features, sequences});
}

std::vector<Buffer> buffers_of(const nb::sequence& arrays, Buffer::Access access) {
  std::vector<Buffer> found;
  for (const nb::handle array : arrays) {
    if (!found.emplace_back(array, access)) throw std::invalid_argument("expected C-contiguous arrays");
  }
  return found;
}

void check_sizes(const CompiledProgram& program, const ProgramSizes& sizes) {
  if (sizes.shapes.size() != program.count() || sizes.begins.size() != program.count())
    throw std::invalid_argument("expected a shape and a begin for each node");
}

void run(const CompiledProgram& program, int64_t batch, const ProgramSizes& sizes, const nb::sequence& inputs,
         const nb::sequence& outputs, const std::optional<Times>& seconds) {
  check_sizes(program, sizes);
  const std::vector<Buffer> given = buffers_of(inputs, Buffer::Access::kRead),
                            wanted = buffers_of(outputs, Buffer::Access::kWrite);
  if (given.size() != program.inputs() || wanted.size() != program.outputs() ||
      (seconds && seconds->size() != program.count()))
    throw std::invalid_argument("expected all inputs and outputs, and a time for each node");
  std::vector<const void*> from;
  for (const Buffer& input : given) from.push_back(input.data<void>());
  std::vector<float*> to;
  for (const Buffer& output : wanted) to.push_back(output.data<float>());
  const ProgramCall call{batch,       sizes.shapes.data(), sizes.begins.data(),
                         from.data(), to.data(),           seconds ? seconds->data() : nullptr};
  const nb::gil_scoped_release release;
  program.run(call);
}

// Repeated calls of a program with one input and one output of the same sizes, planned once. States pass from call to
// call, each in two arrays that take turns.
class PreparedRun {
 public:
  // The index of a state among the program's inputs and outputs, and its two arrays; the first holds the initial state.
  using State = std::tuple<size_t, size_t, nb::object, nb::object>;

  PreparedRun(const CompiledProgram& program, int64_t batch, const ProgramSizes& sizes, size_t input,
              size_t output, const std::vector<State>& states)
      : program_(program), sizes_(sizes), batch_(batch), input_(input), output_(output) {
    check_sizes(program, sizes);
    const size_t others = states.size() + 1;
    if (program.inputs() != others || program.outputs() != others || input >= others || output >= others)
      throw std::invalid_argument("expected one input, one output, and otherwise only states");
    for (size_t side = 0; side < 2; ++side) {
      inputs_[side].resize(others);
      outputs_[side].resize(others);
    }
    for (const auto& [from, to, first, second] : states) {
      if (from >= others || to >= others)
        throw std::invalid_argument("expected states that are inputs and outputs of the program");
      for (const nb::object& array : {first, second}) {
        if (!held_.emplace_back(array, Buffer::Access::kWrite).is(shape_of(program.node_of_input(from)), 'f'))
          throw std::invalid_argument(
              "expected the arrays of a state in float32 and in the shape of the state");
      }
      float* const arrays[] = {held_[held_.size() - 2].data<float>(), held_.back().data<float>()};
      for (size_t side = 0; side < 2; ++side) {
        inputs_[side][from] = arrays[side];
        outputs_[side][to] = arrays[1 - side];
      }
    }
    type_ = program.is_ids(program.node_of_input(input)) ? 'i' : 'f';
    shape_ = shape_of(program.node_of_input(input));
    result_shape_ = shape_of(program.node_of_output(output));
    plan_ = std::make_shared<const ProgramPlan>(program.plan(call()));
  }

  PreparedRun(const PreparedRun&) = delete;

  // Returns false and does nothing if an array has another shape or type than planned, or if they share memory.
  bool run(nb::handle x, nb::handle result) {
    const Buffer from(x, Buffer::Access::kRead), to(result, Buffer::Access::kWrite);
    if (!fits(from, to)) return false;
    const std::shared_ptr<const ProgramPlan> plan = plan_now();
    const nb::gil_scoped_release release;
    run_on(*plan, from, to);
    return true;
  }

  // The seconds of each of `count` calls, without the overhead of Python.
  std::vector<double> time(nb::handle x, nb::handle result, int64_t count) {
    using Clock = std::chrono::steady_clock;
    const Buffer from(x, Buffer::Access::kRead), to(result, Buffer::Access::kWrite);
    if (!fits(from, to))
      throw std::invalid_argument("expected arrays in the shapes and types that the calls are planned for");
    const std::shared_ptr<const ProgramPlan> plan = plan_now();
    std::vector<double> seconds;
    const nb::gil_scoped_release release;
    for (int64_t call = 0; call < count; ++call) {
      const auto start = Clock::now();
      run_on(*plan, from, to);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return seconds;
  }

 private:
  bool fits(const Buffer& from, const Buffer& to) const {
    return from.is(shape_, type_) && to.is(result_shape_, 'f') && !from.overlaps(to);
  }

  // Without states, several threads may run it at once.
  std::shared_ptr<const ProgramPlan> plan_now() {
    if (plan_->threads != thread_count()) plan_ = std::make_shared<const ProgramPlan>(program_.plan(call()));
    return plan_;
  }

  void run_on(const ProgramPlan& plan, const Buffer& from, const Buffer& to) {
    std::vector<const void*> inputs = inputs_[side_];
    std::vector<float*> outputs = outputs_[side_];
    inputs[input_] = from.data<void>();
    outputs[output_] = to.data<float>();
    ProgramCall now = call();
    now.inputs = inputs.data();
    now.outputs = outputs.data();
    program_.run(now, plan);
    if (!held_.empty()) side_ = 1 - side_;
  }

  ProgramCall call() const { return {batch_, sizes_.shapes.data(), sizes_.begins.data(), nullptr, nullptr}; }
  // The shape of a node's value for a whole batch.
  std::vector<int64_t> shape_of(size_t node) const {
    const auto [steps, features, sequences] = sizes_.shapes[node];
    std::vector<int64_t> shape{batch_};
    if (sequences > 0) shape.push_back(sequences);
    if (steps > 0) shape.push_back(sequences > 0 ? steps / sequences : steps);
    if (!program_.is_ids(node)) shape.push_back(features);
    return shape;
  }

  const CompiledProgram& program_;
  const ProgramSizes& sizes_;
  const int64_t batch_;
  const size_t input_, output_;
  std::vector<int64_t> shape_, result_shape_;
  char type_;
  std::vector<Buffer> held_;
  std::vector<const void*> inputs_[2];
  std::vector<float*> outputs_[2];
  size_t side_ = 0;  // which arrays hold the states
  std::shared_ptr<const ProgramPlan> plan_;
};

// For each node: ValueLink::nothing, looked_up and tabled.
std::vector<std::tuple<bool, bool, bool>> links(const CompiledProgram& program) {
  std::vector<std::tuple<bool, bool, bool>> found;
  for (const ValueLink& link : program.links()) found.emplace_back(link.nothing, link.looked_up, link.tabled);
  return found;
}

}  // namespace

std::vector<PassedNode> passed_nodes(const nb::list& list) { return nb::cast<std::vector<PassedNode>>(list); }

std::vector<ProgramNode> nodes_of(const std::vector<PassedNode>& passed) {
  std::vector<ProgramNode> graph;
  for (const auto& [op, inputs, arrays, codes, flags, number, whole] : passed) {
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
    if (node.op == ProgramOp::kTake) node.taken = whole;
    std::copy_n(whole.begin(), std::min(whole.size(), std::size(node.whole)), node.whole);
  }
  return graph;
}

nb::dict operations_with(bool ProgramOpRow::* flag) {
  nb::dict operations;
  for (const ProgramOpRow& row : kProgramOps) {
    if (!(row.*flag)) continue;
    nb::list inputs;
    for (size_t n = 0; n < row.count_of_inputs(); ++n) inputs.append(row.inputs[n]);
    nb::list whole;
    for (const char* name : row.whole) {
      if (name != nullptr) whole.append(name);
    }
    operations[row.name] =
        nb::make_tuple(nb::tuple(inputs), nb::make_tuple(row.arrays[0], row.arrays[1], row.arrays[2]),
                       row.number, nb::tuple(whole), row.shapes);
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
      .def("partners",
           [](const CompiledProgram& program, int64_t batch, const ProgramSizes& sizes) {
             check_sizes(program, sizes);
             return program.partners({batch, sizes.shapes.data(), sizes.begins.data(), nullptr, nullptr});
           })
      .def("run", &run, nb::arg("batch"), nb::arg("sizes"), nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("seconds") = nb::none());
  nb::class_<PreparedRun>(module, "PreparedRun",
                          "Calls of the same sizes; see cellerate.kernels.program.cpu.")
      .def(nb::init<const CompiledProgram&, int64_t, const ProgramSizes&, size_t, size_t,
                    const std::vector<PreparedRun::State>&>(),
           nb::arg("program"), nb::arg("batch"), nb::arg("sizes"), nb::arg("input"), nb::arg("output"),
           nb::arg("states"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def("run", &PreparedRun::run, nb::arg("x").none(), nb::arg("result").none())
      .def("time", &PreparedRun::time, nb::arg("x"), nb::arg("result"), nb::arg("count"));
}

}  // namespace cellerate
