// training/step.h for Python. cellerate.kernels.training.cpu calls it, with shapes and types already checked.
#include "bindings/training_bindings.h"

#include <algorithm>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/program_nodes.h"
#include "training/step.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

using Weight = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
// The values, the slots, and whether it decays.
using PassedWeight = std::tuple<Weight, std::vector<std::optional<Weight>>, bool>;
// Its name, from_logits; delta, label_smoothing, the least probability.
using PassedLoss = std::tuple<std::string, bool, std::tuple<float, float, float>>;
// Its name, threshold, and whether it is masked.
using PassedMeasures = std::vector<std::tuple<std::string, float, bool>>;
// The update; the clip and its size; whether rows are apart; whether the loss is a mean.
using PassedRules = std::tuple<std::string, std::string, float, bool, bool>;
using Inputs = std::vector<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Given = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Factors = std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>;
// The numbers of the update, the decay, and the scale of the loss.
using PassedNumbers = std::optional<std::tuple<std::vector<float>, float, double>>;

TrainingRules rules_of(const PassedLoss& loss, const PassedMeasures& measures, const PassedRules& passed) {
  TrainingRules rules;
  rules.loss.kind = named<LossKind>("loss", std::get<0>(loss), kLossNames);
  rules.loss.from_logits = std::get<1>(loss);
  std::tie(rules.loss.delta, rules.loss.label_smoothing, rules.loss.least) = std::get<2>(loss);
  for (const auto& [name, threshold, masked] : measures)
    rules.measures.push_back({named<MeasureKind>("measure", name, kMeasureNames), threshold, masked});
  rules.update = named<UpdateKind>("update", std::get<0>(passed), kUpdateNames);
  rules.clip = named<ClipKind>("clip", std::get<1>(passed), kClipNames);
  rules.most = std::get<2>(passed);
  rules.rows_apart = std::get<3>(passed);
  rules.mean = std::get<4>(passed);
  return rules;
}

void make(TrainingProgram* self, const std::vector<PassedNode>& nodes,
          const std::vector<std::tuple<float, float>>& rates, int32_t output, int32_t mask,
          const std::vector<PassedWeight>& weights, const PassedLoss& loss, const PassedMeasures& measures,
          const PassedRules& rules) {
  std::vector<Rates> drops;
  for (const auto& [inputs, state] : rates) drops.push_back({inputs, state});
  std::vector<TrainedWeight> trained;
  for (const auto& [values, slots, decays] : weights) {
    TrainedWeight& weight = trained.emplace_back();
    weight.values = values.data();
    weight.count = static_cast<int64_t>(values.size());
    weight.decays = decays;
    if (slots.size() != kMostSlots) throw std::invalid_argument("expected three slots, or None for one");
    for (size_t n = 0; n < slots.size(); ++n) {
      if (!slots[n]) continue;
      if (slots[n]->size() != values.size())
        throw std::invalid_argument("a slot has another size than its weight");
      weight.slots[n] = slots[n]->data();
    }
  }
  new (self) TrainingProgram(nodes_of(nodes), std::move(drops), output, mask, std::move(trained),
                             rules_of(loss, measures, rules));
}

// The sum of the loss, the positions that count, and the sums of the measures.
std::tuple<double, double, std::vector<double>> run(TrainingProgram& program, int64_t rows,
                                                    const ProgramSizes& sizes, const Inputs& inputs,
                                                    const std::vector<uint64_t>& keys, const Given& targets,
                                                    const Factors& weights, const PassedNumbers& passed) {
  const auto fits = [&](const Given& array, int64_t node, int64_t features) {
    return static_cast<int64_t>(array.size()) == rows * sizes.shapes[node].positions() * features;
  };
  if (sizes.shapes.size() != program.count() || sizes.begins.size() != program.count() ||
      keys.size() != program.count() || inputs.size() != program.inputs())
    throw std::invalid_argument("expected a shape, a begin and a key for each node, and all inputs");
  TrainingBatch batch;
  std::vector<const void*> from;
  for (size_t n = 0, input = 0; n < program.count(); ++n) {
    if (program.node(n).op != ProgramOp::kInput) continue;
    const Given& array = inputs[input++];
    const bool right_type =
        program.node(n).ids ? array.dtype() == nb::dtype<int32_t>() : array.dtype() == nb::dtype<float>();
    if (!right_type || !fits(array, static_cast<int64_t>(n), sizes.shapes[n].features))
      throw std::invalid_argument("an input has another type or size than its node");
    from.push_back(array.data());
  }
  const int32_t out = program.output();
  const bool ids = program.takes_ids();
  if (targets.dtype() != (ids ? nb::dtype<int32_t>() : nb::dtype<float>()) ||
      !fits(targets, out, ids ? 1 : sizes.shapes[out].features))
    throw std::invalid_argument("the targets have another type or size than the output");
  if (weights && static_cast<int64_t>(weights->size()) != rows * sizes.shapes[out].positions())
    throw std::invalid_argument("expected a weight for each position of the output");
  batch.rows = rows;
  batch.shapes = sizes.shapes.data();
  batch.begins = sizes.begins.data();
  batch.inputs = from.data();
  batch.keys = keys.data();
  batch.targets = targets.data();
  batch.weights = weights ? weights->data() : nullptr;
  TrainingNumbers numbers;
  if (passed) {
    const auto& [each, decay, scale] = *passed;
    if (each.size() > kMostNumbers) throw std::invalid_argument("too many numbers of an update");
    std::copy(each.begin(), each.end(), numbers.numbers);
    numbers.decay = decay;
    numbers.scale = scale;
  }
  TrainingResult result;
  {
    const nb::gil_scoped_release release;
    result = program.run(batch, passed ? &numbers : nullptr);
  }
  return {result.loss, result.counted, result.measures};
}

}  // namespace

void bind_training(nb::module_& module) {
  nb::class_<TrainingProgram>(module, "TrainingProgram",
                              "A whole training step; see cellerate.kernels.training.cpu.")
      .def("__init__", &make, nb::arg("nodes"), nb::arg("rates"), nb::arg("output"), nb::arg("mask"),
           nb::arg("weights"), nb::arg("loss"), nb::arg("measures"), nb::arg("rules"))
      .def("run", &run, nb::arg("rows"), nb::arg("sizes"), nb::arg("inputs"), nb::arg("keys"),
           nb::arg("targets"), nb::arg("weights") = nb::none(), nb::arg("numbers") = nb::none());
  module.attr("TRAINING_OPERATIONS") = operations_with(&ProgramOpRow::trains);
}

}  // namespace cellerate
