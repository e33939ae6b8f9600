// A packed model's program: every operation and way to divide the work, on every target, without a wrong access.
//
// What it computes is tested from Python (tests/kernels/program); here are threads, memory and refusals.
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "engine/program.h"
#include "naive.h"
#include "simd/dispatch.h"
#include "systems/threads.h"

namespace {

using cellerate::Activation;
using cellerate::CompiledProgram;
using cellerate::Precision;
using cellerate::ProgramCall;
using cellerate::ProgramNode;
using cellerate::ProgramOp;
using cellerate::ValueShape;
using Floats = std::vector<float>;

constexpr size_t kEnough = size_t{1} << 30;

// A graph with its arrays, and the shapes of its values for some steps.
struct Graph {
  std::vector<ProgramNode> nodes;
  std::vector<std::vector<int32_t>> sources;
  std::vector<Floats> arrays;
  std::vector<ValueShape> shapes;
  std::vector<int64_t> begins;
  std::vector<int32_t> outputs;
  std::mt19937 random{7};

  const float* array(int64_t count, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    Floats& values = arrays.emplace_back(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(normal(random));
    return values.data();
  }
  int32_t add(ProgramOp op, std::vector<int32_t> inputs, ValueShape shape) {
    sources.push_back(std::move(inputs));
    ProgramNode& node = nodes.emplace_back();
    node.op = op;
    shapes.push_back(shape);
    begins.push_back(0);
    return static_cast<int32_t>(nodes.size()) - 1;
  }
  int32_t lstm(int32_t x, int64_t D, int64_t H, int32_t mask = -1, int32_t h0 = -1, int32_t c0 = -1) {
    const int32_t made = add(ProgramOp::kLstm, {x, mask, h0, c0}, {shapes[static_cast<size_t>(x)].steps, H});
    ProgramNode& node = nodes.back();
    node.rows = D;
    node.columns = H;
    node.kernel = array(D * 4 * H, 1 / std::sqrt(D));
    node.recurrent_kernel = array(H * 4 * H, 0.7 / std::sqrt(H));
    node.bias = array(4 * H, 0.3);
    node.activation = Activation::kTanh;
    return made;
  }
  int32_t dense(int32_t x, int64_t K, int64_t N) {
    const int32_t made = add(ProgramOp::kDense, {x}, {shapes[static_cast<size_t>(x)].steps, N});
    nodes.back().rows = K;
    nodes.back().columns = N;
    nodes.back().kernel = array(K * N, 1 / std::sqrt(K));
    nodes.back().bias = array(N);
    return made;
  }
  // The program takes copies of nodes, whose inputs lie here.
  CompiledProgram program(Precision precision, size_t most_bytes = kEnough) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      nodes[n].inputs = sources[n].data();
      nodes[n].input_count = static_cast<int32_t>(sources[n].size());
    }
    return CompiledProgram(nodes, outputs, precision, {.most_bytes = most_bytes});
  }
};

// Every operation: ids with a mask, both directions joined, an LSTM that follows another one, states that begin a
// third, and what moves steps.
Graph everything(int64_t T) {
  constexpr int64_t V = 11, E = 6, H = 21;
  Graph graph;
  graph.arrays.reserve(64);
  const int32_t ids = graph.add(ProgramOp::kInput, {}, {T, 1});
  graph.nodes.back().ids = true;
  const int32_t x = graph.add(ProgramOp::kInput, {}, {T, 5});
  const int32_t rows = graph.add(ProgramOp::kEmbedding, {ids}, {T, E});
  graph.nodes.back().rows = V;
  graph.nodes.back().columns = E;
  graph.nodes.back().kernel = graph.array(V * E);
  const int32_t mask = graph.add(ProgramOp::kIdsMask, {ids}, {T, 1});
  const int32_t forward = graph.lstm(rows, E, H, mask);
  const int32_t backward = graph.lstm(rows, E, H, mask);
  graph.nodes.back().go_backwards = true;
  const int32_t flipped = graph.add(ProgramOp::kFlip, {backward}, {T, H});
  graph.nodes.back().number = 1;
  const int32_t both = graph.add(ProgramOp::kConcatenate, {forward, flipped}, {T, 2 * H});
  const int32_t first = graph.lstm(both, 2 * H, H);
  const int32_t second = graph.lstm(first, H, H);
  const int32_t h = graph.add(ProgramOp::kLstmState, {second}, {0, H});
  const int32_t c = graph.add(ProgramOp::kLstmState, {second}, {0, H});
  graph.nodes.back().cell = true;
  const int32_t seen = graph.add(ProgramOp::kFeaturesMask, {x}, {T, 1});
  const int32_t turned = graph.add(ProgramOp::kFlipMask, {seen}, {T, 1});
  const int32_t either = graph.add(ProgramOp::kAnyMask, {seen, turned}, {T, 1});
  const int32_t zeroed = graph.add(ProgramOp::kMasked, {x, turned}, {T, 5});
  const int32_t masked = graph.add(ProgramOp::kWhere, {zeroed, either, x}, {T, 5});
  const int32_t third = graph.lstm(masked, 5, H, seen, h, c);
  graph.nodes.back().activation = Activation::kRelu;
  const int32_t norm = graph.add(ProgramOp::kLayerNorm, {third}, {T, H});
  graph.nodes.back().number = 1e-3f;
  const int32_t affine = graph.add(ProgramOp::kAffine, {norm}, {T, H});
  graph.nodes.back().columns = H;
  graph.nodes.back().kernel = graph.array(H);
  graph.nodes.back().bias = graph.array(H);
  std::vector<int32_t> sums;
  for (const ProgramOp op : {ProgramOp::kAdd, ProgramOp::kSubtract, ProgramOp::kMultiply, ProgramOp::kAverage,
                             ProgramOp::kMaximum, ProgramOp::kMinimum})
    sums.push_back(graph.add(op, {affine, second}, {T, H}));
  const int32_t joined = graph.add(ProgramOp::kConcatenate, sums, {T, 6 * H});
  const int32_t active = graph.add(ProgramOp::kActivation, {joined}, {T, 6 * H});
  graph.nodes.back().activation = Activation::kSigmoid;
  const int32_t last = graph.add(ProgramOp::kCrop, {active}, {1, 6 * H});
  graph.begins.back() = T - 1;
  const int32_t flat = graph.add(ProgramOp::kReshape, {last}, {0, 6 * H});
  const int32_t again = graph.add(ProgramOp::kRepeatVector, {flat}, {3, 6 * H});
  const int32_t head = graph.dense(again, 6 * H, 70);
  graph.nodes.back().normalizer = cellerate::Normalizer::kSoftmax;
  const int32_t mean = graph.add(ProgramOp::kMeanOverTime, {second, mask}, {0, H});
  const int32_t most = graph.add(ProgramOp::kMaxOverTime, {joined}, {0, 6 * H});
  const int32_t restored = graph.add(ProgramOp::kFlip, {active}, {T, 6 * H});
  graph.nodes.back().number = 1;
  graph.outputs = {head, mean, most, restored, h, both};
  return graph;
}

// What looks across steps: windows, pooling, sums along axes, attention; over steps and within each of N.
Graph across_steps(int64_t T) {
  constexpr int64_t D = 5, N = 3;
  Graph graph;
  graph.arrays.reserve(16);
  const auto whole = [&](int64_t first, int64_t second, int64_t third, int64_t begin) {
    ProgramNode& node = graph.nodes.back();
    node.whole[0] = first;
    node.whole[1] = second;
    node.whole[2] = third;
    graph.begins.back() = begin;
  };
  const int32_t x = graph.add(ProgramOp::kInput, {}, {T, D});
  const int32_t windows = graph.add(ProgramOp::kWindows, {x}, {T, 3 * D});
  whole(3, 1, 2, 4);
  const int32_t dense = graph.dense(windows, 3 * D, 24);
  const int32_t pooled = graph.add(ProgramOp::kMaxPool, {dense}, {(T + 1) / 2, 24});
  whole(2, 2, 1, 0);
  const int32_t counts = graph.add(ProgramOp::kFeaturesMask, {x}, {T, 1});
  const int32_t attended = graph.add(ProgramOp::kAttention, {dense, pooled, pooled, -1, counts}, {T, 24});
  whole(3, 1, 0, 0);
  graph.nodes.back().number = 0.5f;
  const int32_t additive =
      graph.add(ProgramOp::kAttention, {pooled, dense, dense, counts, -1}, {(T + 1) / 2, 24});
  whole(1, 0, 1, 0);
  graph.nodes.back().number = 1.0f;
  graph.nodes.back().columns = 24;
  graph.nodes.back().kernel = graph.array(24);
  const int32_t scores = graph.dense(attended, 24, 1);
  const int32_t weights = graph.add(ProgramOp::kSoftmax, {scores}, {T, 1});
  const int32_t context = graph.add(ProgramOp::kMultiply, {attended, weights}, {T, 24});
  const int32_t sum = graph.add(ProgramOp::kSum, {context}, {0, 24});
  const int32_t least = graph.add(ProgramOp::kMin, {context}, {0, T});
  graph.begins.back() = 1;
  const int32_t dot = graph.add(ProgramOp::kDot, {context, pooled}, {T, (T + 1) / 2});
  whole(2, 2, 0, 0);
  const int32_t turned = graph.add(ProgramOp::kTranspose, {dot}, {(T + 1) / 2, T});
  graph.begins.back() = 1;
  const int32_t joined = graph.add(ProgramOp::kConcatenate, {context, pooled}, {T + (T + 1) / 2, 24});
  // N sequences of 2T steps, of the same numbers.
  const int32_t again = graph.add(ProgramOp::kRepeatVector, {sum}, {N, 24});
  const int32_t frames = graph.add(ProgramOp::kReshape, {again}, {N * 12, 2, N});
  const int32_t inside = graph.add(ProgramOp::kWindows, {frames}, {N * 11, 4, N});
  whole(2, 1, 1, 0);
  const int32_t mean = graph.add(ProgramOp::kAveragePool, {inside}, {N * 6, 4, N});
  whole(3, 2, 1, 1);
  const int32_t of_each = graph.add(ProgramOp::kMax, {mean}, {N, 4});
  const int32_t spread = graph.add(ProgramOp::kSoftmax, {mean}, {N * 6, 4, N});
  // (N, 6, 4) as (6, N, 4) and (N, 4, 6).
  const int32_t swapped = graph.add(ProgramOp::kTranspose, {mean}, {N * 6, 4, 6});
  const int32_t across = graph.add(ProgramOp::kTranspose, {mean}, {N * 4, 6, N});
  graph.begins.back() = 1;
  const int32_t divided = graph.add(ProgramOp::kDivide, {mean, spread}, {N * 6, 4, N});
  graph.outputs = {additive, least, turned, joined, of_each, divided, swapped, across};
  return graph;
}

// All outputs of a batch, one after the other.
Floats run(const CompiledProgram& program, const Graph& graph, int64_t B, const std::vector<int32_t>& ids,
           const Floats& x) {
  std::vector<Floats> results;
  std::vector<float*> outputs;
  for (const int32_t output : graph.outputs) {
    const ValueShape& shape = graph.shapes[static_cast<size_t>(output)];
    // NaN, so that what is not written shows.
    results.emplace_back(static_cast<size_t>(B * shape.positions() * shape.features), NAN);
  }
  for (Floats& result : results) outputs.push_back(result.data());
  std::vector<const void*> inputs;
  for (const ProgramNode& node : graph.nodes) {
    if (node.op != ProgramOp::kInput) continue;
    inputs.push_back(node.ids ? static_cast<const void*>(ids.data()) : x.data());
  }
  program.run({B, graph.shapes.data(), graph.begins.data(), inputs.data(), outputs.data()});
  Floats all;
  for (const Floats& result : results) all.insert(all.end(), result.begin(), result.end());
  return all;
}

struct Batch {
  std::vector<int32_t> ids;
  Floats x;
  Batch(int64_t B, int64_t T) : ids(static_cast<size_t>(B * T)), x(static_cast<size_t>(B * T * 5)) {
    for (size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int32_t>((n * 7 + 1) % 11);
    for (size_t n = 0; n < x.size(); ++n) x[n] = n % 7 == 0 ? 0 : std::sin(static_cast<float>(n));
  }
};

void compare(const std::vector<std::string>& targets, Graph (*make)(int64_t)) {
  for (const std::string& target : targets) {
    cellerate::set_target(target);
    for (int precision = 0; precision < 3; ++precision) {
      for (const auto& [B, T] : {std::pair<int64_t, int64_t>{1, 1}, {1, 20}, {3, 5}, {13, 9}}) {
        Graph graph = make(T);
        const CompiledProgram program = graph.program(static_cast<Precision>(precision));
        const Batch batch(B, T);
        cellerate::set_thread_count(1);
        const Floats right = run(program, graph, B, batch.ids, batch.x);
        for (const float each : right) CHECK(std::isfinite(each));
        for (const int threads : {2, 3, 4}) {
          cellerate::set_thread_count(threads);
          const Floats found = run(program, graph, B, batch.ids, batch.x);
          CHECK(std::memcmp(found.data(), right.data(), right.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST(every_operation_is_the_same_on_all_threads_short) {
  compare({cellerate::available_targets().back()}, everything);
}
TEST(every_operation_is_the_same_on_all_threads_and_targets) {
  compare(cellerate::available_targets(), everything);
}
TEST(what_looks_across_steps_is_the_same_on_all_threads_short) {
  compare({cellerate::available_targets().back()}, across_steps);
}
TEST(what_looks_across_steps_is_the_same_on_all_threads_and_targets) {
  compare(cellerate::available_targets(), across_steps);
}

TEST(two_layers_that_follow_each_other_equal_the_naive_ones) {
  constexpr int64_t B = 2, T = 30, D = 5, H = 40;
  Graph graph;
  graph.arrays.reserve(16);
  const int32_t x = graph.add(ProgramOp::kInput, {}, {T, D});
  const int32_t first = graph.lstm(x, D, H);
  graph.outputs = {graph.lstm(first, H, H)};
  const Batch batch(B, T);
  naive::Vector values(batch.x.begin(), batch.x.end());
  for (const int32_t n : {first, graph.outputs[0]}) {
    const ProgramNode& node = graph.nodes[static_cast<size_t>(n)];
    naive::Case layer;
    layer.sizes.batch = B;
    layer.sizes.steps = T;
    layer.sizes.inputs = node.rows;
    layer.sizes.units = H;
    layer.x = values;
    layer.kernel.assign(node.kernel, node.kernel + node.rows * 4 * H);
    layer.recurrent_kernel.assign(node.recurrent_kernel, node.recurrent_kernel + H * 4 * H);
    layer.bias.assign(node.bias, node.bias + 4 * H);
    naive::Results results;
    naive::run(layer, {}, {}, {}, results);
    values = results.outputs;
  }
  for (const std::string& target : cellerate::available_targets()) {
    cellerate::set_target(target);
    cellerate::set_thread_count(2);
    const CompiledProgram program = graph.program(Precision::kFloat32);
    const Floats found = run(program, graph, B, {}, batch.x);
    double off = 0, size = 0;
    for (size_t n = 0; n < found.size(); ++n) {
      off += std::pow(found[n] - values[n], 2);
      size += values[n] * values[n];
    }
    CHECK(std::sqrt(off / size) < 2e-6);
  }
}

TEST(a_last_block_of_fewer_rows_stays_within_its_memory) {
  // A row takes 2.6 MB: blocks of 12 rows, and a last one with fewer, which takes more steps at once.
  constexpr int64_t T = 40, N = 16000;
  Graph graph;
  graph.arrays.reserve(16);
  const int32_t wide = graph.dense(graph.add(ProgramOp::kInput, {}, {T, 5}), 5, N);
  graph.outputs = {graph.lstm(graph.dense(wide, N, 30), 30, 30)};
  cellerate::set_thread_count(2);
  const CompiledProgram program = graph.program(Precision::kFloat32);
  const Batch batch(37, T);
  const Floats found = run(program, graph, 37, {}, batch.x);
  const Floats last(batch.x.end() - T * 5, batch.x.end());
  const Floats alone = run(program, graph, 1, {}, last);
  CHECK(std::memcmp(alone.data(), found.data() + found.size() - alone.size(), alone.size() * sizeof(float)) ==
        0);
}

TEST(what_does_not_fit_is_refused_short) {
  Graph graph = everything(4);
  CHECK_THROWS(std::invalid_argument, graph.program(Precision::kFloat32, 1000));
  const CompiledProgram program = graph.program(Precision::kFloat32);
  Batch batch(2, 4);
  for (const int32_t wrong : {11, -1}) {
    batch.ids[5] = wrong;
    CHECK_THROWS(std::out_of_range, run(program, graph, 2, batch.ids, batch.x));
  }
  batch.ids[5] = 0;
  for (size_t n = 0; n < graph.shapes.size(); ++n) {
    if (graph.nodes[n].op == ProgramOp::kInput) continue;
    ++graph.shapes[n].features;
    CHECK_THROWS(std::invalid_argument, run(program, graph, 2, batch.ids, batch.x));
    --graph.shapes[n].features;
  }
  graph.sources[2][0] = 1;
  CHECK_THROWS(std::invalid_argument, graph.program(Precision::kFloat32));  // an embedding of numbers
  graph.sources[2][0] = 5;
  CHECK_THROWS(std::invalid_argument, graph.program(Precision::kFloat32));  // of what comes after it
  graph.sources[2][0] = 0;
  graph.outputs = {0};
  CHECK_THROWS(std::invalid_argument, graph.program(Precision::kFloat32));  // ids are not an output
  graph.outputs.clear();
  CHECK_THROWS(std::invalid_argument, graph.program(Precision::kFloat32));
}

}  // namespace
