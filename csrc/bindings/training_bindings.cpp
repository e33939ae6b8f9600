// training/step.h for Python. cellerate.kernels.training.cpu calls it, with shapes and types already checked.
#include <algorithm>
#include <stdexcept>

#include "bindings/arguments.h"
#include "bindings/module.h"
#include "bindings/passed.h"
#include "training/step.h"

namespace nb = nanobind;

namespace cellerate {
namespace {

using Weight = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
// The values; the slots; the accumulated gradients and the moving average; whether it decays; l1, l2 and the slope of
// |w| at 0.
using PassedWeight = std::tuple<Weight, std::vector<std::optional<Weight>>,
                                std::tuple<std::optional<Weight>, std::optional<Weight>>, bool,
                                std::tuple<float, float, float>>;
// The members of `Kinks`, in order.
using PassedKinks = std::tuple<float, float, float, float, float, float, bool>;
// The name; from_logits; Loss::numbers; label_smoothing and the least probability; the kinks; the quantile levels.
using PassedLoss = std::tuple<std::string, bool, std::vector<float>, std::tuple<float, float>, PassedKinks,
                              std::vector<float>>;
// The name, the threshold, and whether the measure is masked and weighted.
using PassedMeasures = std::vector<std::tuple<std::string, float, bool, bool>>;
// The nodes of the output, its mask and its logits; the loss; LossHead::mean, by_weight and factor; the measures.
using PassedHead = std::tuple<int32_t, int32_t, int32_t, PassedLoss, bool, bool, double, PassedMeasures>;
// For a batch normalisation: its node; the moving mean and variance; their momentum.
using PassedMoments = std::tuple<int32_t, Weight, Weight, float>;
// The members of TrainingRules: update, clip, most, rows_apart, norms, copied, moments and narrow.
using PassedRules = std::tuple<std::string, std::string, float, bool, bool, std::vector<int32_t>,
                               std::vector<PassedMoments>, std::vector<int32_t>>;
using Inputs = std::vector<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Given = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Factors = std::optional<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>;
// For each node: if it is a gather, the index in a row of its input of each number of its own row.
using Gathers = std::vector<std::optional<nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>>>;
// Receives the seconds of all nodes forward, all nodes backward, the losses, the packing and the update.
using Seconds = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
// For an output: the positions and features of a row; the targets; the sample weights.
using PassedTargets = std::tuple<int64_t, int64_t, Given, Factors>;
// The members of TrainingNumbers: numbers, decay, share, kept and averaged.
using PassedNumbers = std::optional<std::tuple<std::vector<float>, float, float, float, bool>>;
// The loss and the norm; for each output the loss, and the total and count of each measure.
using Found =
    std::tuple<double, double, std::vector<std::tuple<double, std::vector<std::tuple<double, double>>>>>;

LossHead head_of(const PassedHead& passed) {
  const auto& [output, mask, logits, loss, mean, by_weight, factor, measures] = passed;
  LossHead head;
  head.output = output;
  head.mask = mask;
  head.logits = logits;
  const auto& [name, from_logits, numbers, common, kinks, levels] = loss;
  head.loss.kind = named<LossKind>("loss", name, kLossNames);
  head.loss.from_logits = from_logits;
  if (numbers.size() > kMostLossNumbers)
    throw std::invalid_argument("expected at most " + std::to_string(kMostLossNumbers) +
                                " numbers of a loss");
  std::copy(numbers.begin(), numbers.end(), head.loss.numbers);
  std::tie(head.loss.label_smoothing, head.loss.least) = common;
  Kinks& at = head.loss.kinks;
  std::tie(at.size_at_zero, at.size_at_nan, at.maximum_at_tie, at.maximum_at_nan, at.clip_at_end,
           at.inverse_root_at_zero, at.selects) = kinks;
  head.levels = levels;
  head.mean = mean;
  head.by_weight = by_weight;
  head.factor = factor;
  for (const auto& [measure, threshold, masked, weighted] : measures)
    head.measures.push_back(
        {named<MeasureKind>("measure", measure, kMeasureNames), threshold, masked, weighted});
  return head;
}

TrainedWeight weight_of(const PassedWeight& passed) {
  const auto& [values, slots, others, decays, penalties] = passed;
  const auto data = [&](const std::optional<Weight>& array) -> float* {
    if (!array) return nullptr;
    if (array->size() != values.size())
      throw std::invalid_argument("expected slots of the same size as their weight");
    return array->data();
  };
  TrainedWeight weight;
  weight.values = values.data();
  weight.count = static_cast<int64_t>(values.size());
  weight.decays = decays;
  if (slots.size() != kMostSlots)
    throw std::invalid_argument("expected three slots for each weight, None for an absent one");
  for (size_t n = 0; n < slots.size(); ++n) weight.slots[n] = data(slots[n]);
  weight.accumulated = data(std::get<0>(others));
  weight.average = data(std::get<1>(others));
  std::tie(weight.l1, weight.l2, weight.slope_at_zero) = penalties;
  return weight;
}

void make(TrainingProgram* self, const nb::list& list, const std::vector<std::tuple<float, float>>& rates,
          const std::vector<PassedWeight>& weights, const std::vector<PassedHead>& heads,
          const PassedRules& passed) {
  const std::vector<PassedNode> nodes = passed_nodes(list);
  std::vector<Rates> drops;
  for (const auto& [inputs, state] : rates) drops.push_back({inputs, state});
  std::vector<TrainedWeight> trained;
  for (const PassedWeight& weight : weights) trained.push_back(weight_of(weight));
  TrainingRules rules;
  for (const PassedHead& head : heads) rules.heads.push_back(head_of(head));
  rules.update = named<UpdateKind>("update", std::get<0>(passed), kUpdateNames);
  rules.clip = named<ClipKind>("clip", std::get<1>(passed), kClipNames);
  rules.most = std::get<2>(passed);
  rules.rows_apart = std::get<3>(passed);
  rules.norms = std::get<4>(passed);
  rules.copied = std::get<5>(passed);
  for (const auto& [node, mean, variance, momentum] : std::get<6>(passed)) {
    const auto features = static_cast<int64_t>(std::min(mean.size(), variance.size()));
    rules.moments.push_back({node, mean.data(), variance.data(), features, momentum});
  }
  rules.narrow = std::get<7>(passed);
  new (self) TrainingProgram(nodes_of(nodes), std::move(drops), std::move(trained), std::move(rules));
}

// Checks the inputs of a call and returns their addresses.
std::vector<const void*> inputs_of(const TrainingProgram& program, int64_t rows, const ProgramSizes& sizes,
                                   const Inputs& inputs) {
  std::vector<const void*> from;
  for (size_t n = 0, input = 0; n < program.count(); ++n) {
    if (program.node(n).op != ProgramOp::kInput) continue;
    const Given& array = inputs[input++];
    const ValueShape& shape = sizes.shapes[n];
    const bool right_type =
        program.node(n).ids ? array.dtype() == nb::dtype<int32_t>() : array.dtype() == nb::dtype<float>();
    if (!right_type || static_cast<int64_t>(array.size()) != rows * shape.positions() * shape.features)
      throw std::invalid_argument("expected inputs with the type and size of their nodes");
    from.push_back(array.data());
  }
  return from;
}

HeadBatch part_of(const LossHead& head, int64_t rows, const PassedTargets& passed) {
  const auto& [positions, features, targets, weights] = passed;
  const int64_t places = rows * positions;
  if (targets.dtype() != (head.takes_ids() ? nb::dtype<int32_t>() : nb::dtype<float>()) ||
      static_cast<int64_t>(targets.size()) != places * head.target_features(features))
    throw std::invalid_argument("expected targets with the type and size that the loss needs");
  if (weights && static_cast<int64_t>(weights->size()) != places)
    throw std::invalid_argument("expected a sample weight for each position of the output");
  return {positions, features, targets.data(), weights ? weights->data() : nullptr};
}

Found run(TrainingProgram& program, int64_t rows, const ProgramSizes& sizes, const Inputs& inputs,
          const std::vector<uint64_t>& keys, const Gathers& gathers,
          const std::vector<PassedTargets>& targets, const std::vector<Weight>& copies,
          const PassedNumbers& passed, const std::optional<Seconds>& timed) {
  if (sizes.shapes.size() != program.count() || sizes.begins.size() != program.count() ||
      keys.size() != program.count() || gathers.size() != program.count() ||
      inputs.size() != program.inputs() || targets.size() != program.heads().size() ||
      copies.size() != program.copied().size())
    throw std::invalid_argument(
        "expected all inputs, targets and copies, and a shape, begin, key and gather per node");
  std::vector<const int32_t*> places;
  for (size_t n = 0; n < gathers.size(); ++n) {
    const ValueShape& shape = sizes.shapes[n];
    const bool gathers_here = program.node(n).op == ProgramOp::kGather;
    if (gathers_here != gathers[n].has_value() ||
        (gathers_here && static_cast<int64_t>(gathers[n]->size()) != shape.positions() * shape.features))
      throw std::invalid_argument("expected an index for each number of a gather");
    places.push_back(gathers_here ? gathers[n]->data() : nullptr);
  }
  std::vector<float*> to;
  for (size_t n = 0; n < copies.size(); ++n) {
    const ValueShape& shape = sizes.shapes[static_cast<size_t>(program.copied()[n])];
    if (static_cast<int64_t>(copies[n].size()) != rows * shape.positions() * shape.features)
      throw std::invalid_argument("expected copies of the same size as their nodes");
    to.push_back(copies[n].data());
  }
  const std::vector<const void*> from = inputs_of(program, rows, sizes, inputs);
  std::vector<HeadBatch> heads;
  for (size_t n = 0; n < targets.size(); ++n) heads.push_back(part_of(program.heads()[n], rows, targets[n]));
  TrainingBatch batch;
  batch.rows = rows;
  batch.shapes = sizes.shapes.data();
  batch.begins = sizes.begins.data();
  batch.inputs = from.data();
  batch.keys = keys.data();
  batch.gathers = places.data();
  batch.heads = heads.data();
  batch.copies = to.data();
  TrainingNumbers numbers;
  if (passed) {
    const std::vector<float>& each = std::get<0>(*passed);
    if (each.size() > kMostNumbers)
      throw std::invalid_argument("expected at most " + std::to_string(kMostNumbers) +
                                  " numbers of an update");
    std::copy(each.begin(), each.end(), numbers.numbers);
    std::tie(std::ignore, numbers.decay, numbers.share, numbers.kept, numbers.averaged) = *passed;
  }
  StepSeconds spent;
  if (timed && timed->size() != 2 * program.count() + 3)
    throw std::invalid_argument("expected room for two times per node and three more");
  batch.seconds = timed ? &spent : nullptr;
  TrainingResult result;
  {
    const nb::gil_scoped_release release;
    result = program.run(batch, passed ? &numbers : nullptr);
  }
  if (timed) {
    double* to = timed->data();
    for (const double each : spent.forward) *to++ += each;
    for (const double each : spent.backward) *to++ += each;
    for (const double each : {spent.losses, spent.packing, spent.update}) *to++ += each;
  }
  Found found{result.loss, result.norm, {}};
  for (const HeadResult& head : result.heads) {
    auto& [loss, measures] =
        std::get<2>(found).emplace_back(head.loss, std::vector<std::tuple<double, double>>{});
    for (const MeasureSums& sums : head.measures) measures.emplace_back(sums.total, sums.count);
  }
  return found;
}

}  // namespace

void bind_training(nb::module_& module) {
  nb::class_<TrainingProgram>(module, "TrainingProgram",
                              "A whole training step; see cellerate.kernels.training.cpu.")
      .def("__init__", &make, nb::arg("nodes"), nb::arg("rates"), nb::arg("weights"), nb::arg("heads"),
           nb::arg("rules"))
      .def("run", &run, nb::arg("rows"), nb::arg("sizes"), nb::arg("inputs"), nb::arg("keys"),
           nb::arg("gathers"), nb::arg("targets"), nb::arg("copies"), nb::arg("numbers") = nb::none(),
           nb::arg("seconds") = nb::none());
  module.attr("TRAINING_OPERATIONS") = operations_with(&ProgramOpRow::trains);
}

}  // namespace cellerate
