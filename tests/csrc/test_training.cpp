// A whole training step: every operation and way to divide the rows, on every target, without a wrong access.
//
// What it computes is tested from Python (tests/kernels/training, tests/layers/engine); here are memory, threads,
// equal bits and refusals.
#include <atomic>
#include <cmath>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "simd/dispatch.h"
#include "systems/threads.h"
#include "training/crew.h"
#include "training/step.h"

namespace {

using cellerate::Activation;
using cellerate::ClipKind;
using cellerate::LossKind;
using cellerate::MeasureKind;
using cellerate::Normalizer;
using cellerate::ProgramNode;
using cellerate::ProgramOp;
using cellerate::Rates;
using cellerate::TrainedWeight;
using cellerate::TrainingBatch;
using cellerate::TrainingNumbers;
using cellerate::TrainingProgram;
using cellerate::TrainingResult;
using cellerate::TrainingRules;
using cellerate::UpdateKind;
using cellerate::ValueShape;
using Floats = std::vector<float>;

constexpr int64_t kVocabulary = 13, kSteps = 5;

// A graph with the weights that it trains.
struct Model {
  std::vector<ProgramNode> nodes;
  std::vector<std::vector<int32_t>> sources;
  std::vector<Rates> rates;
  std::vector<Floats> arrays;
  std::vector<ValueShape> shapes;
  std::mt19937 random{7};

  Model() {
    sources.reserve(64);
    arrays.reserve(64);
  }
  Floats& numbers(int64_t count) {
    std::normal_distribution<float> normal(0, 0.3f);
    Floats& values = arrays.emplace_back(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  }
  int32_t add(ProgramOp op, std::vector<int32_t> inputs, ValueShape shape, Rates drops = {}) {
    ProgramNode& node = nodes.emplace_back();
    sources.push_back(std::move(inputs));
    node.op = op;
    node.inputs = sources.back().data();
    node.input_count = static_cast<int32_t>(sources.back().size());
    shapes.push_back(shape);
    rates.push_back(drops);
    return static_cast<int32_t>(nodes.size()) - 1;
  }
  int32_t input(ValueShape shape, bool ids) {
    const int32_t made = add(ProgramOp::kInput, {}, shape);
    nodes.back().ids = ids;
    return made;
  }
  int32_t embedding(int32_t ids, int64_t width) {
    const int32_t made = add(ProgramOp::kEmbedding, {ids}, {kSteps, width});
    nodes.back().rows = kVocabulary;
    nodes.back().columns = width;
    nodes.back().kernel = numbers(kVocabulary * width).data();
    return made;
  }
  int32_t lstm(int32_t x, int64_t units, bool backwards, bool sequences, int32_t mask = -1,
               Rates drops = {}) {
    const int64_t inputs = shapes[static_cast<size_t>(x)].features;
    const int32_t made = add(ProgramOp::kLstm, {x, mask, -1, -1}, {sequences ? kSteps : 0, units}, drops);
    ProgramNode& node = nodes.back();
    node.rows = inputs;
    node.columns = units;
    node.kernel = numbers(inputs * 4 * units).data();
    node.recurrent_kernel = numbers(units * 4 * units).data();
    node.bias = numbers(4 * units).data();
    node.activation = Activation::kTanh;
    node.go_backwards = backwards;
    node.return_sequences = sequences;
    return made;
  }
  int32_t dense(int32_t x, int64_t outputs, Activation activation = Activation::kLinear,
                Normalizer normalizer = Normalizer::kNone) {
    const ValueShape from = shapes[static_cast<size_t>(x)];
    const int32_t made = add(ProgramOp::kDense, {x}, {from.steps, outputs});
    ProgramNode& node = nodes.back();
    node.rows = from.features;
    node.columns = outputs;
    node.kernel = numbers(from.features * outputs).data();
    node.bias = numbers(outputs).data();
    node.activation = activation;
    node.normalizer = normalizer;
    return made;
  }
  int32_t normalized(int32_t x) {
    const ValueShape shape = shapes[static_cast<size_t>(x)];
    const int32_t made = add(ProgramOp::kLayerNorm, {x}, shape);
    nodes.back().columns = shape.features;
    nodes.back().kernel = numbers(shape.features).data();
    nodes.back().bias = numbers(shape.features).data();
    nodes.back().number = 1e-3f;
    return made;
  }
};

// All operations between ids and a distribution at every step.
int32_t everything(Model& model, bool masked) {
  const ValueShape steps{kSteps, 8};
  const int32_t ids = model.input({kSteps, 1}, true);
  const int32_t mask = masked ? model.add(ProgramOp::kIdsMask, {ids}, {kSteps, 1}) : -1;
  const int32_t table = model.embedding(ids, 6);
  const int32_t forward = model.lstm(table, 8, false, true, mask, {0.2f, 0.1f});
  const int32_t back = model.lstm(table, 8, true, true, mask, {0.2f, 0});
  const int32_t turned = model.add(ProgramOp::kFlip, {back}, steps);
  const int32_t dropped = model.add(ProgramOp::kDropout, {turned}, steps, {0.3f, 0});
  const int32_t spread = model.add(ProgramOp::kSpatialDropout, {forward}, steps, {0.3f, 0});
  const int32_t sum = model.add(ProgramOp::kAdd, {dropped, spread, forward}, steps);
  const int32_t product = model.add(ProgramOp::kMultiply, {sum, dropped}, steps);
  const int32_t mean = model.add(ProgramOp::kAverage, {sum, product}, steps);
  const int32_t less = model.add(ProgramOp::kSubtract, {mean, forward}, steps);
  const int32_t joined = model.add(ProgramOp::kConcatenate, {less, sum}, {kSteps, 16});
  const int32_t normal = model.normalized(joined);
  const int32_t last = model.lstm(normal, 8, false, false);
  const int32_t repeated = model.add(ProgramOp::kRepeatVector, {last}, steps);
  const int32_t most = model.add(ProgramOp::kMaxOverTime, {joined}, {0, 16});
  const int32_t average = model.add(ProgramOp::kMeanOverTime, {joined, -1}, {0, 16});
  const int32_t pooled = model.add(ProgramOp::kConcatenate, {most, average, last}, {0, 40});
  const int32_t wide = model.dense(pooled, kSteps * 8, Activation::kGelu);
  const int32_t shaped = model.add(ProgramOp::kReshape, {wide}, steps);
  const int32_t active = model.add(ProgramOp::kActivation, {shaped}, steps);
  model.nodes.back().activation = Activation::kSoftplus;
  const int32_t all = model.add(ProgramOp::kAdd, {active, repeated, less}, steps);
  return model.dense(all, 4, Activation::kLinear, Normalizer::kSoftmax);
}

// Runs some steps, and gives the losses and the weights after them.
Floats trained(bool masked, bool apart, ClipKind clip, int64_t rows, int count) {
  Model model;
  const int32_t output = everything(model, masked);
  std::vector<Floats> slots;
  slots.reserve(3 * model.arrays.size());
  std::vector<TrainedWeight> weights;
  for (Floats& values : model.arrays) {
    TrainedWeight& weight = weights.emplace_back();
    weight.values = values.data();
    weight.count = static_cast<int64_t>(values.size());
    for (float*& slot : weight.slots) slot = slots.emplace_back(values.size()).data();
  }
  TrainingRules rules;
  rules.loss.kind = LossKind::kSparse;
  rules.measures = {{MeasureKind::kSparseAccuracy, 0.5f, true}};
  rules.update = UpdateKind::kAmsgrad;
  rules.clip = clip;
  rules.most = 0.1f;
  rules.rows_apart = apart;
  TrainingProgram program(model.nodes, model.rates, output, masked ? 1 : -1, weights, rules);
  std::vector<int32_t> ids(static_cast<size_t>(rows * kSteps)), targets(ids.size());
  for (size_t n = 0; n < ids.size(); ++n) {
    ids[n] = static_cast<int32_t>((n * 7) % kVocabulary);
    targets[n] = static_cast<int32_t>(n % 4);
  }
  const Floats row_weights(ids.size(), 0.5f);
  const std::vector<int64_t> begins(model.nodes.size());
  std::vector<uint64_t> keys(model.nodes.size(), 12345);
  const void* inputs[] = {ids.data()};
  TrainingBatch batch;
  batch.rows = rows;
  batch.shapes = model.shapes.data();
  batch.begins = begins.data();
  batch.inputs = inputs;
  batch.keys = keys.data();
  batch.targets = targets.data();
  batch.weights = row_weights.data();
  TrainingNumbers numbers;
  numbers.numbers[0] = 0.01f;
  numbers.numbers[1] = 0.1f;
  numbers.numbers[2] = 0.001f;
  numbers.numbers[3] = 1e-7f;
  numbers.decay = 1e-4f;
  numbers.scale = 1.0 / static_cast<double>(rows * kSteps);
  Floats found;
  for (int step = 0; step < count; ++step) {
    for (uint64_t& key : keys) key += uint64_t{1} << 32;
    const TrainingResult result = program.run(batch, &numbers);
    found.push_back(static_cast<float>(result.loss));
    found.push_back(static_cast<float>(result.measures[0]));
    found.push_back(static_cast<float>(program.run(batch, nullptr).loss));
  }
  for (const Floats& values : model.arrays) found.insert(found.end(), values.begin(), values.end());
  return found;
}

template <class Body>
void on_every_target(const Body& body) {
  const std::string before = cellerate::target().name;
  for (const std::string& name : cellerate::available_targets()) {
    cellerate::set_target(name);
    body();
  }
  cellerate::set_target(before);
}

TEST(short_steps_of_all_operations_are_finite) {
  for (const bool masked : {false, true}) {
    for (const bool apart : {false, true}) {
      for (const float value : trained(masked, apart, ClipKind::kNone, 9, 2)) CHECK(std::isfinite(value));
    }
  }
}

TEST(steps_are_the_same_for_any_number_of_threads) {
  const int before = cellerate::thread_count();
  on_every_target([&] {
    for (const int64_t rows : {1, 3, 33}) {
      std::vector<Floats> found;
      for (const int threads : {1, 2, 4}) {
        cellerate::set_thread_count(threads);
        found.push_back(trained(rows == 3, rows == 33, ClipKind::kGlobalNorm, rows, 3));
      }
      CHECK(found[0] == found[1]);
      CHECK(found[0] == found[2]);
    }
  });
  cellerate::set_thread_count(before);
}

TEST(steps_in_many_pieces_are_the_same_whoever_takes_them) {
  cellerate::set_sharing(cellerate::Sharing::kAlways);
  const Floats first = trained(true, false, ClipKind::kNorm, 70, 3);
  for (int run = 0; run < 5; ++run) CHECK(trained(true, false, ClipKind::kNorm, 70, 3) == first);
  cellerate::set_sharing(cellerate::Sharing::kByWork);
}

TEST(training_makes_the_loss_smaller) {
  const Floats found = trained(false, false, ClipKind::kValue, 24, 40);
  CHECK(found[3 * 39 + 2] < 0.8f * found[2]);
}

TEST(an_error_of_a_part_is_thrown_and_leaves_the_threads_as_they_were) {
  for (const int threads : {1, 2}) {
    std::atomic<int> ran{0};
    const auto lead = [&](cellerate::Team& team) {
      team.each(8, [&](int n) {
        ++ran;
        if (n == 3) throw std::bad_alloc();
      });
    };
    CHECK_THROWS(std::bad_alloc, cellerate::with_team(threads, lead));
    CHECK(ran >= 1 && ran <= 8);
    ran = 0;
    cellerate::with_team(threads, [&](cellerate::Team& team) { team.each(8, [&](int) { ++ran; }); });
    CHECK(ran == 8);
  }
}

TEST(graphs_and_ids_that_do_not_fit_are_refused) {
  Model model;
  const int32_t ids = model.input({kSteps, 1}, true);
  const int32_t table = model.embedding(ids, 6);
  const auto program_of = [&] {
    return TrainingProgram(model.nodes, model.rates, static_cast<int32_t>(model.nodes.size()) - 1, -1, {},
                           {});
  };
  model.lstm(table, 8, false, false);
  CHECK_THROWS(std::invalid_argument, TrainingProgram(model.nodes, {}, 2, -1, {}, {}));
  CHECK_THROWS(std::invalid_argument, TrainingProgram(model.nodes, model.rates, 9, -1, {}, {}));
  TrainingProgram program = program_of();
  const std::vector<int32_t> wrong(kSteps, kVocabulary);
  const Floats targets(8);
  const std::vector<int64_t> begins(3);
  const std::vector<uint64_t> keys(3);
  const void* inputs[] = {wrong.data()};
  TrainingBatch batch;
  batch.rows = 1;
  batch.shapes = model.shapes.data();
  batch.begins = begins.data();
  batch.inputs = inputs;
  batch.keys = keys.data();
  batch.targets = targets.data();
  CHECK_THROWS(std::out_of_range, program.run(batch, nullptr));
  const std::vector<ValueShape> shapes(3, ValueShape{kSteps, 3});
  batch.shapes = shapes.data();
  CHECK_THROWS(std::invalid_argument, program.run(batch, nullptr));
  model.add(ProgramOp::kWhere, {table, -1, table}, {kSteps, 6});
  CHECK_THROWS(std::invalid_argument, program_of());
}

}  // namespace
