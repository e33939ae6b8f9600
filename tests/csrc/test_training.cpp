// A whole training step: every operation and way to divide the rows, on every target, without a wrong access.
//
// What it computes is tested from Python (tests/kernels/training, tests/layers/engine); here are memory, threads,
// equal bits and refusals.
#include <array>
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
using cellerate::HeadBatch;
using cellerate::LossHead;
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
  std::vector<std::vector<int32_t>> gathers;
  std::vector<Floats> arrays;
  std::vector<ValueShape> shapes;
  std::vector<int64_t> begins;
  std::mt19937 random{7};

  Model() {
    sources.reserve(120);
    arrays.reserve(120);
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
    gathers.emplace_back();
    begins.push_back(0);
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
  int32_t lstm(int32_t x, int64_t units, bool backwards, bool sequences, int32_t mask = -1, Rates drops = {},
               std::array<int32_t, 2> first = {-1, -1}) {
    const int64_t inputs = shapes[static_cast<size_t>(x)].features;
    const int32_t made =
        add(ProgramOp::kLstm, {x, mask, first[0], first[1]}, {sequences ? kSteps : 0, units}, drops);
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
  // What looks at so many steps before and behind each.
  int32_t windows(ProgramOp op, int32_t x, int64_t around) {
    ValueShape shape = shapes[static_cast<size_t>(x)];
    if (op == ProgramOp::kWindows) shape.features *= 2 * around + 1;
    const int32_t made = add(op, {x}, shape);
    nodes.back().whole[0] = 2 * around + 1;
    nodes.back().whole[1] = nodes.back().whole[2] = 1;
    begins.back() = around;
    return made;
  }
  int32_t grouped(int32_t x, int64_t outputs, int64_t groups) {
    const int32_t made = dense(x, outputs, Activation::kTanh);
    nodes.back().op = ProgramOp::kGroupedDense;
    nodes.back().rows /= groups;
    nodes.back().kernel = numbers(nodes.back().rows * outputs).data();
    nodes.back().whole[0] = groups;
    nodes.back().whole[1] = 3;
    return made;
  }
  // Attention of a value to itself, by sums of features or in heads.
  int32_t attention(int32_t x, bool additive, int32_t mask, Rates drops) {
    const ValueShape shape = shapes[static_cast<size_t>(x)];
    const int32_t made = add(ProgramOp::kAttention, {x, x, x, mask, additive ? -1 : mask}, shape, drops);
    ProgramNode& node = nodes.back();
    node.number = 0.5f;
    node.whole[0] = additive ? 1 : 2;
    node.whole[1] = node.whole[2] = additive ? 0 : 1;
    if (additive) node.kernel = numbers(shape.features).data();
    if (additive) node.columns = shape.features;
    return made;
  }
  int32_t normalized(int32_t x, ProgramOp op = ProgramOp::kLayerNorm) {
    const ValueShape shape = shapes[static_cast<size_t>(x)];
    std::vector<int32_t> inputs{x};
    if (op == ProgramOp::kBatchNorm) inputs.push_back(-1);  // no mask
    const int32_t made = add(op, inputs, shape);
    nodes.back().columns = shape.features;
    nodes.back().kernel = numbers(shape.features).data();
    nodes.back().bias = numbers(shape.features).data();
    nodes.back().number = 1e-3f;
    return made;
  }
};

// What computes with single numbers, and what adds steps.
int32_t chosen(Model& model, int32_t x) {
  const ValueShape steps{kSteps, 8};
  const int32_t wave = model.add(ProgramOp::kFunction, {x}, steps);
  model.nodes.back().whole[0] = static_cast<int64_t>(cellerate::Function::kSin);
  const int32_t more = model.add(ProgramOp::kCompare, {x, wave}, steps);
  model.nodes.back().whole[0] = static_cast<int64_t>(cellerate::Function::kGreater);
  const int32_t either = model.add(ProgramOp::kChoose, {more, x, wave}, steps);
  const int32_t most = model.add(ProgramOp::kMaximum, {either, model.dense(x, 1)}, steps);
  const int32_t padded = model.add(ProgramOp::kPad, {most}, {kSteps + 3, 8});
  model.begins.back() = 1;
  const int32_t cropped = model.add(ProgramOp::kCrop, {padded}, steps);
  model.begins.back() = 2;
  return cropped;
}

// All operations that look across steps, behind each other.
int32_t across_steps(Model& model, int32_t x, int32_t mask) {
  const ValueShape steps{kSteps, 8}, row{0, 8};
  int32_t now = model.grouped(model.windows(ProgramOp::kWindows, chosen(model, x), 1), 8, 2);
  now = model.windows(ProgramOp::kMaxPool, now, 1);
  now = model.windows(ProgramOp::kAveragePool, now, 1);
  now = model.add(ProgramOp::kGaussianDropout, {now}, steps, {0.1f, 0});
  now = model.add(ProgramOp::kGaussianNoise, {now}, steps, {0.1f, 0});
  now = model.attention(model.attention(now, true, mask, {}), false, mask, {0.1f, 0});
  const int32_t weights = model.add(ProgramOp::kSoftmax, {now}, steps);
  const int32_t products = model.add(ProgramOp::kDot, {weights, now}, {8, 8});
  model.nodes.back().whole[0] = model.nodes.back().whole[1] = 1;
  int32_t all = model.add(ProgramOp::kSum, {products}, row);
  for (const ProgramOp op : {ProgramOp::kMean, ProgramOp::kMax, ProgramOp::kMin})
    all = model.add(ProgramOp::kAdd, {all, model.add(op, {now}, row)}, row);
  const int32_t of_steps = model.add(ProgramOp::kSum, {now}, {0, kSteps});
  model.begins.back() = 1;
  return model.dense(model.add(ProgramOp::kConcatenate, {all, of_steps}, {0, 8 + kSteps}), 8);
}

// LSTMs that read the same vector at all steps: beside other numbers, alone, and added to an embedding.
int32_t told(Model& model, int32_t ids, int32_t vector, int32_t one, int32_t others, int32_t mask) {
  const ValueShape steps{kSteps, 8};
  const int32_t repeated = model.add(ProgramOp::kRepeatVector, {vector}, steps);
  const int32_t both = model.add(ProgramOp::kConcatenate, {repeated, others}, {kSteps, 16});
  const int32_t beside = model.lstm(both, 8, true, true, mask);
  const int32_t alone = model.lstm(repeated, 8, false, true);
  const int32_t sum = model.add(ProgramOp::kAdd, {model.embedding(ids, 8), one}, steps);
  return model.add(ProgramOp::kAdd, {beside, alone, model.lstm(sum, 8, false, true, mask)}, steps);
}

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
  const int32_t h = model.add(ProgramOp::kLstmState, {forward}, {0, 8});
  const int32_t c = model.add(ProgramOp::kLstmState, {forward}, {0, 8});
  model.nodes.back().cell = true;
  const int32_t last = model.lstm(normal, 8, false, false, -1, {}, {model.dense(h, 8), c});
  const int32_t repeated = model.add(ProgramOp::kRepeatVector, {last}, steps);
  const int32_t most = model.add(ProgramOp::kMaxOverTime, {joined}, {0, 16});
  const int32_t average = model.add(ProgramOp::kMeanOverTime, {joined, -1}, {0, 16});
  const int32_t pooled = model.add(ProgramOp::kConcatenate, {most, average, last}, {0, 40});
  const int32_t wide = model.dense(pooled, kSteps * 8, Activation::kGelu);
  const int32_t shaped = model.add(ProgramOp::kReshape, {wide}, steps);
  const int32_t active = model.add(ProgramOp::kActivation, {shaped}, steps);
  model.nodes.back().activation = Activation::kSoftplus;
  const int32_t rarely = model.add(ProgramOp::kStepDropout, {active}, steps, {0.1f, 0});
  // What has one step, or no time at all, is taken at every step.
  const int32_t one = model.add(ProgramOp::kReshape, {h}, {1, 8});
  const int32_t reversed = model.add(ProgramOp::kGather, {rarely}, steps);
  for (int32_t n = 8 * kSteps; n > 0; --n) model.gathers.back().push_back(n - 1);
  const int32_t summed = model.add(ProgramOp::kCumsum, {reversed}, steps);
  const int32_t affine = model.normalized(summed, ProgramOp::kAffine);
  const int32_t both = model.add(ProgramOp::kConcatenate, {affine, affine}, {2 * kSteps, 8});
  const int32_t half = model.add(ProgramOp::kGather, {both}, steps);
  for (int32_t n = 0; n < 8 * kSteps; ++n) model.gathers.back().push_back(2 * n);
  const int32_t scaled = model.add(ProgramOp::kMultiply, {half, one}, steps);
  const int32_t across = across_steps(model, half, mask);
  const int32_t with_vectors = told(model, ids, last, one, less, mask);
  int32_t all = model.add(ProgramOp::kAdd, {scaled, repeated, less, c, across, with_vectors}, steps);
  if (masked) {
    const int32_t any = model.add(ProgramOp::kAnyMask, {mask, mask}, {kSteps, 1});
    all = model.add(ProgramOp::kWhere, {all, any, less}, steps);
  }
  return model.dense(all, 4, Activation::kLinear, Normalizer::kSoftmax);
}

// A way to train.
struct Way {
  bool masked = false, apart = false;
  ClipKind clip = ClipKind::kNone;
  // Whether weights have regularizers, averages and gradients of several steps, and whether there is a second output.
  bool more = false;
  bool narrow = false;  // whether LSTMs compute in bfloat16
};

// Runs some steps, and gives the losses and the weights after them.
Floats trained(const Way& way, int64_t rows, int count) {
  Model model;
  const int32_t output = everything(model, way.masked);
  const int32_t other = model.dense(way.more ? model.normalized(2, ProgramOp::kBatchNorm) : 2, 6);
  std::vector<Floats> slots;
  slots.reserve(5 * model.arrays.size());
  std::vector<TrainedWeight> weights;
  for (Floats& values : model.arrays) {
    TrainedWeight& weight = weights.emplace_back();
    weight.values = values.data();
    weight.count = static_cast<int64_t>(values.size());
    for (float*& slot : weight.slots) slot = slots.emplace_back(values.size()).data();
    if (!way.more) continue;
    weight.accumulated = slots.emplace_back(values.size()).data();
    weight.average = slots.emplace_back(values.size()).data();
    weight.l1 = weight.l2 = 1e-4f;
  }
  Floats moving(16, 1.0f);
  TrainingRules rules;
  LossHead& head = rules.heads.emplace_back();
  head.output = output;
  head.mask = way.masked && !way.more ? 1 : -1;
  head.loss.kind = LossKind::kSparse;
  head.measures = {{MeasureKind::kSparseAccuracy, 0.5f, true, way.apart}};
  if (way.more) {
    LossHead& second = rules.heads.emplace_back();
    second.output = other;
    second.loss.kind = LossKind::kQuantile;
    second.levels = {0.1f, 0.5f, 0.9f};
    second.factor = 0.5;
    rules.copied = {other};
    const int64_t features = model.shapes[static_cast<size_t>(other) - 1].features;
    rules.moments = {{other - 1, moving.data(), moving.data() + features, features, 0.9f}};
  }
  rules.update = way.more ? UpdateKind::kNadam : UpdateKind::kAmsgrad;
  rules.clip = way.clip;
  rules.most = 0.1f;
  rules.rows_apart = way.apart;
  rules.norms = way.more;
  for (size_t n = 0; way.narrow && n < model.nodes.size(); ++n) {
    if (model.nodes[n].op == ProgramOp::kLstm) rules.narrow.push_back(static_cast<int32_t>(n));
  }
  TrainingProgram program(model.nodes, model.rates, weights, rules);
  std::vector<int32_t> ids(static_cast<size_t>(rows * kSteps)), targets(ids.size());
  for (size_t n = 0; n < ids.size(); ++n) {
    ids[n] = static_cast<int32_t>((n * 7) % kVocabulary);
    targets[n] = static_cast<int32_t>(n % 4);
  }
  const Floats row_weights(ids.size(), 0.5f), levels(2 * ids.size(), 0.1f);
  Floats copied(6 * ids.size());
  std::vector<uint64_t> keys(model.nodes.size(), 12345);
  std::vector<const int32_t*> gathers;
  for (const std::vector<int32_t>& each : model.gathers) gathers.push_back(each.data());
  const void* inputs[] = {ids.data()};
  const HeadBatch heads[] = {{kSteps, 4, targets.data(), row_weights.data()}, {kSteps, 6, levels.data()}};
  float* copies[] = {copied.data()};
  TrainingBatch batch;
  batch.rows = rows;
  batch.shapes = model.shapes.data();
  batch.begins = model.begins.data();
  batch.inputs = inputs;
  batch.keys = keys.data();
  batch.gathers = gathers.data();
  batch.heads = heads;
  batch.copies = copies;
  TrainingNumbers numbers{.numbers = {0.01f, 0.1f, 0.001f, 1e-7f}, .decay = 1e-4f};
  if (way.more) numbers = {.numbers = {0.01f, 0.001f, 0.1f, 0.001f, 2, 1e-7f}, .kept = 0.9f};
  Floats found;
  for (int step = 0; step < count; ++step) {
    for (uint64_t& key : keys) key += uint64_t{1} << 32;
    if (way.more) numbers.share = step % 2 == 1 ? 0.5f : 0;
    numbers.averaged = way.more && step == 3;
    const TrainingResult result = program.run(batch, &numbers);
    found.push_back(static_cast<float>(result.loss));
    found.push_back(static_cast<float>(result.heads[0].measures[0].total));
    found.push_back(static_cast<float>(program.run(batch, nullptr).loss));
    CHECK((result.norm > 0) == way.more);
    if (way.more) found.insert(found.end(), copied.begin(), copied.end());
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
      for (const bool more : {false, true}) {
        for (const bool narrow : {false, true}) {
          for (const float value : trained({masked, apart, ClipKind::kNone, more, narrow}, 9, 5))
            CHECK(std::isfinite(value));
        }
      }
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
        const Way way{rows == 3, rows == 33, ClipKind::kGlobalNorm, rows == 33, rows != 1};
        found.push_back(trained(way, rows, 3));
      }
      CHECK(found[0] == found[1]);
      CHECK(found[0] == found[2]);
    }
  });
  cellerate::set_thread_count(before);
}

TEST(steps_in_many_pieces_are_the_same_whoever_takes_them) {
  cellerate::set_sharing(cellerate::Sharing::kAlways);
  const Floats first = trained({true, false, ClipKind::kNorm}, 70, 3);
  for (int run = 0; run < 5; ++run) CHECK(trained({true, false, ClipKind::kNorm}, 70, 3) == first);
  cellerate::set_sharing(cellerate::Sharing::kByWork);
}

TEST(layers_in_bfloat16_err_a_little_where_the_target_has_it) {
  on_every_target([] {
    const Floats exact = trained({}, 33, 1), narrow = trained({.narrow = true}, 33, 1);
    float most = 0;
    for (size_t n = 0; n < exact.size(); ++n) most = std::max(most, std::abs(narrow[n] - exact[n]));
    CHECK((most > 0) == cellerate::target().bfloat16_products);
    CHECK(std::abs(narrow[0] - exact[0]) < 2e-2f);
  });
}

TEST(training_makes_the_loss_smaller) {
  const Floats found = trained({false, false, ClipKind::kValue}, 24, 40);
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
  const auto program_of = [&](int32_t output) {
    TrainingRules rules;
    rules.heads.emplace_back().output = output;
    return TrainingProgram(model.nodes, model.rates, {}, rules);
  };
  model.lstm(table, 8, false, false);
  CHECK_THROWS(std::invalid_argument, TrainingProgram(model.nodes, model.rates, {}, {}));
  CHECK_THROWS(std::invalid_argument, program_of(9));
  TrainingProgram program = program_of(2);
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
  const HeadBatch head{1, 8, targets.data()};
  batch.heads = &head;
  CHECK_THROWS(std::out_of_range, program.run(batch, nullptr));
  const std::vector<ValueShape> shapes(3, ValueShape{kSteps, 3});
  batch.shapes = shapes.data();
  CHECK_THROWS(std::invalid_argument, program.run(batch, nullptr));
  const std::vector<int32_t> right(kSteps);
  inputs[0] = right.data();
  const HeadBatch wide{1, 9, targets.data()};
  batch.shapes = model.shapes.data();
  batch.heads = &wide;
  CHECK_THROWS(std::invalid_argument, program.run(batch, nullptr));
  model.add(ProgramOp::kTake, {table}, {kSteps, 6});
  CHECK_THROWS(std::invalid_argument, program_of(3));
}

}  // namespace
