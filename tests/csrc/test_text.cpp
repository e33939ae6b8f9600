// The next-token chain on every target against itself written out in double precision.
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "engine/text_program.h"
#include "naive.h"
#include "simd/dispatch.h"
#include "systems/threads.h"

namespace {

using cellerate::Activation;
using cellerate::Draw;
using cellerate::Precision;
using cellerate::ProgramNode;
using cellerate::ProgramOp;
using cellerate::TextProgram;
using Floats = std::vector<float>;

// A chain with its arrays; its nodes have no inputs.
struct Chain {
  std::vector<ProgramNode> nodes;
  std::vector<std::vector<float>> arrays;
  bool masks_zero = false;
  std::mt19937 random{7};

  explicit Chain(size_t most) { arrays.reserve(most); }
  const float* array(int64_t count, double scale) {
    std::normal_distribution<double> normal(0, scale);
    std::vector<float>& values = arrays.emplace_back(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(normal(random));
    return values.data();
  }
  ProgramNode& add(ProgramOp op, int64_t rows, int64_t columns) {
    ProgramNode& node = nodes.emplace_back();
    node.op = op;
    node.rows = rows;
    node.columns = columns;
    return node;
  }
  void embedding(int64_t V, int64_t E) { add(ProgramOp::kEmbedding, V, E).kernel = array(V * E, 1); }
  void lstm(int64_t D, int64_t H, Activation activation = Activation::kTanh) {
    ProgramNode& node = add(ProgramOp::kLstm, D, H);
    node.kernel = array(D * 4 * H, 1 / std::sqrt(D));
    node.recurrent_kernel = array(H * 4 * H, 0.7 / std::sqrt(H));
    node.bias = array(4 * H, 0.3);
    node.activation = activation;
    node.masked_output = cellerate::MaskedOutput::kPreviousState;
  }
  void layer_norm(int64_t F) {
    affine(F);
    nodes.back().op = ProgramOp::kLayerNorm;
    nodes.back().number = 1e-3f;
  }
  void affine(int64_t F) {
    ProgramNode& node = add(ProgramOp::kAffine, F, F);
    node.kernel = array(F, 1);
    node.bias = array(F, 0.5);
  }
  void dense(int64_t K, int64_t N, Activation activation = Activation::kLinear) {
    ProgramNode& node = add(ProgramOp::kDense, K, N);
    node.kernel = array(K * N, 1 / std::sqrt(K));
    node.bias = array(N, 0.3);
    node.activation = activation;
  }

  // As cellerate.kernels.decoder.cpu makes it.
  TextProgram model(Precision precision, int threads) const {
    std::vector<ProgramNode> graph;
    std::vector<std::vector<int32_t>> sources;
    const auto add = [&](ProgramNode node, std::vector<int32_t> inputs) {
      sources.push_back(std::move(inputs));
      graph.push_back(node);
      return static_cast<int32_t>(graph.size()) - 1;
    };
    ProgramNode ids;
    ids.ids = true;
    add(ids, {});
    for (const ProgramNode& node : nodes) {
      for (int state = 0; node.op == ProgramOp::kLstm && state < 2; ++state) add({}, {});
    }
    ProgramNode mask;
    mask.op = ProgramOp::kIdsMask;
    mask.number = masks_zero ? 0 : -1;
    const int32_t live = add(mask, {0});
    int32_t last = 0, state = 1;
    std::vector<int32_t> outputs(1);
    for (const ProgramNode& node : nodes) {
      const bool lstm = node.op == ProgramOp::kLstm;
      last = add(node, lstm ? std::vector{last, live, state, state + 1} : std::vector{last});
      for (int part = 0; lstm && part < 2; ++part, ++state) {
        ProgramNode given;
        given.op = ProgramOp::kLstmState;
        given.cell = part == 1;
        outputs.push_back(add(given, {last}));
      }
    }
    outputs[0] = last;
    for (size_t n = 0; n < graph.size(); ++n) {
      graph[n].inputs = sources[n].data();
      graph[n].input_count = static_cast<int32_t>(sources[n].size());
    }
    return TextProgram(graph, outputs, precision, threads);
  }
};

// Two chains: the table of an LSTM right behind the embedding, and every node there is.
Chain plain_chain() {
  Chain chain(16);
  chain.embedding(11, 9);
  chain.lstm(9, 37);
  chain.dense(37, 11);
  return chain;
}
Chain long_chain() {
  Chain chain(32);
  chain.embedding(11, 10);
  chain.affine(10);
  chain.dense(10, 21, Activation::kRelu);
  chain.lstm(21, 70);
  chain.lstm(70, 18, Activation::kRelu);
  chain.layer_norm(18);
  chain.dense(18, 13, Activation::kTanh);
  chain.dense(13, 11);
  return chain;
}

// The logits of all steps (B, T, V') in double, from a state of zeros.
naive::Vector expected(const Chain& chain, int64_t B, int64_t T, const std::vector<int32_t>& ids) {
  naive::Vector x;
  for (const ProgramNode& node : chain.nodes) {
    const int64_t in = node.rows, out = node.columns, rows = B * T;
    naive::Vector y(static_cast<size_t>(rows * out));
    switch (node.op) {
      case ProgramOp::kEmbedding:
        for (int64_t n = 0; n < rows * out; ++n) y[n] = node.kernel[ids[n / out] * out + n % out];
        break;
      case ProgramOp::kLstm: {
        naive::Case layer;
        layer.sizes.batch = B;
        layer.sizes.steps = T;
        layer.sizes.inputs = in;
        layer.sizes.units = out;
        layer.sizes.activation = node.activation;
        layer.x = x;
        layer.kernel.assign(node.kernel, node.kernel + in * 4 * out);
        layer.recurrent_kernel.assign(node.recurrent_kernel, node.recurrent_kernel + out * 4 * out);
        layer.bias.assign(node.bias, node.bias + 4 * out);
        naive::Results results;
        naive::run(layer, {}, {}, {}, results);
        y = results.outputs;
        break;
      }
      case ProgramOp::kLayerNorm:
        for (int64_t row = 0; row < rows; ++row) {
          double mean = 0, square = 0;
          for (int64_t i = 0; i < out; ++i) mean += x[row * out + i] / static_cast<double>(out);
          for (int64_t i = 0; i < out; ++i)
            square += std::pow(x[row * out + i] - mean, 2) / static_cast<double>(out);
          for (int64_t i = 0; i < out; ++i)
            y[row * out + i] =
                (x[row * out + i] - mean) / std::sqrt(square + node.number) * node.kernel[i] + node.bias[i];
        }
        break;
      case ProgramOp::kAffine:
        for (int64_t n = 0; n < rows * out; ++n) y[n] = x[n] * node.kernel[n % out] + node.bias[n % out];
        break;
      default:
        for (int64_t n = 0; n < rows * out; ++n) {
          double sum = node.bias[n % out];
          for (int64_t k = 0; k < in; ++k) sum += x[n / out * in + k] * node.kernel[k * out + n % out];
          y[n] = node.activation == Activation::kLinear ? sum : naive::value(node.activation, sum);
        }
        break;
    }
    x = y;
  }
  return x;
}

// What reading ids (B, T) gives: the new state, then the logits.
Floats read(const TextProgram& model, int64_t B, int64_t T, const std::vector<int32_t>& ids,
            Floats state = {}, const int32_t* lengths = nullptr) {
  const auto S = static_cast<size_t>(B * model.state_size());
  if (state.empty()) state.assign(S, 0.0f);
  // NaN, so that what is not written shows.
  Floats result(S + static_cast<size_t>(B * model.outputs()), NAN);
  model.read({B, T, ids.data(), lengths}, state.data(), result.data(), result.data() + S);
  return result;
}

// The root mean square of an error, as a share of that of what is wanted; NaN if anything is.
double error(const Floats& got, size_t from, const naive::Vector& wanted, int64_t T, int64_t width) {
  double off = 0, size = 0;
  for (size_t n = 0; n < got.size() - from; ++n) {
    const auto row = static_cast<int64_t>(n) / width, column = static_cast<int64_t>(n) % width;
    const double want = wanted[static_cast<size_t>(((row + 1) * T - 1) * width + column)];
    off += std::pow(got[from + n] - want, 2);
    size += want * want;
  }
  return std::sqrt(off / size);
}

void compare(const Chain& chain, const char* name, double products) {
  constexpr int64_t kRows[] = {1, 7}, T = 6;
  for (const int64_t B : kRows) {
    std::vector<int32_t> ids(static_cast<size_t>(B * T));
    for (size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int32_t>(n * 7 % 11);
    const naive::Vector wanted = expected(chain, B, T, ids);
    // As tests/support/rounding.py derives it, for both factors of each product, sums of up to 70 terms and four steps.
    const double spread = std::sqrt(2 * products * 4 / 3.0);
    const double limits[] = {spread * std::sqrt(70) * std::pow(2, -24), spread * std::pow(2, -9),
                             spread * std::sqrt(2 * std::log(70)) / 254,
                             spread * std::sqrt(2 * std::log(32)) / 16};
    Floats first[4];
    for (const std::string& target : cellerate::available_targets()) {
      cellerate::set_target(target);
      for (int precision = 0; precision < 4; ++precision) {
        Floats same;
        for (const int threads : {1, 2, 3}) {
          const TextProgram model = chain.model(static_cast<Precision>(precision), threads);
          const Floats got = read(model, B, T, ids);
          const auto S = static_cast<size_t>(B * model.state_size());
          const double off = error(got, S, wanted, T, model.outputs());
          if (!(off <= limits[precision]))
            std::fprintf(stderr, "%s, %s, precision %d, %d threads, B%d: off by %.2g\n", name, target.c_str(),
                         precision, threads, static_cast<int>(B), off);
          CHECK(off <= limits[precision]);
          // A step after the other, and threads, change no bit.
          Floats state(S), step;
          for (int64_t t = 0; t < T; ++t) {
            std::vector<int32_t> one(static_cast<size_t>(B));
            for (int64_t b = 0; b < B; ++b) one[static_cast<size_t>(b)] = ids[static_cast<size_t>(b * T + t)];
            step = read(model, B, 1, one, state);
            state.assign(step.begin(), step.begin() + static_cast<int64_t>(S));
          }
          CHECK(std::memcmp(step.data(), got.data(), got.size() * 4) == 0);
          if (same.empty()) same = got;
          CHECK(std::memcmp(same.data(), got.data(), got.size() * 4) == 0);
        }
        // In float32, int8 and int4 no target changes a bit either.
        if (precision == static_cast<int>(Precision::kBfloat16)) continue;
        if (first[precision].empty()) first[precision] = same;
        CHECK(std::memcmp(first[precision].data(), same.data(), same.size() * 4) == 0);
      }
    }
  }
}

TEST(every_target_equals_the_naive_chain_short) { compare(plain_chain(), "plain", 3); }
TEST(every_target_equals_the_naive_chain_of_all_nodes) { compare(long_chain(), "long", 7); }

TEST(rows_of_other_lengths_are_read_as_if_alone_short) {
  const Chain chain = plain_chain();
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, -1, 99, 2, 6, 5, 99};
  const int32_t lengths[] = {4, 2, 3};
  for (int precision = 0; precision < 4; ++precision) {
    const TextProgram model = chain.model(static_cast<Precision>(precision), 2);
    const Floats all = read(model, 3, 4, ids, {}, lengths);
    const int64_t S = model.state_size(), V = model.outputs();
    for (int64_t b = 0; b < 3; ++b) {
      const std::vector<int32_t> own(ids.begin() + b * 4, ids.begin() + b * 4 + lengths[b]);
      const Floats alone = read(model, 1, lengths[b], own);
      CHECK(std::memcmp(alone.data(), all.data() + b * S, static_cast<size_t>(S) * 4) == 0);
      CHECK(std::memcmp(alone.data() + S, all.data() + 3 * S + b * V, static_cast<size_t>(V) * 4) == 0);
    }
  }
}

TEST(products_of_bytes_are_exact_at_the_ends_of_their_range) {
  // Weights of +-127 times a scale that is a power of two, and h at +-1: the sum is a whole number times the scale.
  constexpr int64_t H = 8, K = 512;
  Chain chain(16);
  chain.embedding(2, 4);
  chain.lstm(4, H);
  ProgramNode& wide = chain.add(ProgramOp::kAffine, H, H);
  wide.kernel = chain.arrays.emplace_back(H, 0.0f).data();
  wide.bias = chain.arrays.emplace_back(H, 1.0f).data();
  ProgramNode& spread = chain.add(ProgramOp::kDense, H, K);
  spread.kernel = chain.arrays.emplace_back(H * K, 0.0f).data();
  Floats& signs = chain.arrays.emplace_back(K);
  for (int64_t k = 0; k < K; ++k) signs[static_cast<size_t>(k)] = k % 5 == 0 ? -127.0f : 127.0f;
  spread.bias = signs.data();
  ProgramNode& dense = chain.add(ProgramOp::kDense, K, 2);
  Floats& weights = chain.arrays.emplace_back(2 * K);
  double same = 0, other = 0;
  for (int64_t k = 0; k < K; ++k) {
    weights[static_cast<size_t>(2 * k)] = 127 * 0.5f;
    weights[static_cast<size_t>(2 * k + 1)] = k % 3 == 0 ? -127 * 0.5f : 127 * 0.5f;
    same += signs[static_cast<size_t>(k)] * 63.5;
    other += signs[static_cast<size_t>(k)] * (k % 3 == 0 ? -63.5 : 63.5);
  }
  dense.kernel = weights.data();
  for (const std::string& target : cellerate::available_targets()) {
    cellerate::set_target(target);
    const TextProgram model = chain.model(Precision::kInt8, 1);
    const Floats got = read(model, 1, 1, {1});
    CHECK(got[got.size() - 2] == same);
    CHECK(got[got.size() - 1] == other);
  }
}

// Draws `count` ids.
std::vector<int32_t> draw(const TextProgram& model, int64_t count, uint64_t position, Floats& state,
                          Floats& logits, const std::vector<int32_t>& stops = {},
                          const int32_t* cancelled = nullptr) {
  cellerate::Sampling sampling;
  sampling.seed = 5;
  sampling.top_k = 7;
  std::vector<int32_t> ids(static_cast<size_t>(count));
  Floats log_probabilities(ids.size());
  const Draw draw{sampling, {}, count, position, stops, cancelled, ids.data(), log_probabilities.data()};
  Floats after(state.size(), NAN);
  const auto drawn = model.generate({draw}, state.data(), after.data(), logits.data());
  state = after;
  ids.resize(static_cast<size_t>(drawn[0].count));
  return ids;
}

// A chain that ends with its LSTM, whose outputs are the logits.
Chain short_chain() {
  Chain chain(16);
  chain.embedding(11, 9);
  chain.masks_zero = true;
  chain.lstm(9, 11);
  return chain;
}

TEST(a_generation_is_the_same_for_all_threads_and_can_go_on_short) {
  for (const Chain& chain : {plain_chain(), long_chain(), short_chain()}) {
    for (int precision = 0; precision < 3; ++precision) {
      std::vector<int32_t> first;
      for (const int threads : {1, 2, 3}) {
        const TextProgram model = chain.model(static_cast<Precision>(precision), threads);
        const auto S = static_cast<int64_t>(model.state_size());
        const Floats start = read(model, 1, 1, {1});
        const Floats state0(start.begin(), start.begin() + S), logits0(start.begin() + S, start.end());
        Floats state = state0, logits = logits0;
        const std::vector<int32_t> whole = draw(model, 20, 0, state, logits);
        CHECK(whole.size() == 20);
        if (first.empty()) first = whole;
        CHECK(whole == first);
        const Floats read_state = read(model, 1, 20, whole, state0);
        CHECK(std::memcmp(read_state.data(), state.data(), state.size() * 4) == 0);
        CHECK(std::memcmp(read_state.data() + S, logits.data(), logits.size() * 4) == 0);

        Floats part_state = state0, part_logits = logits0;
        std::vector<int32_t> parts = draw(model, 8, 0, part_state, part_logits);
        for (const int32_t id : draw(model, 12, 8, part_state, part_logits)) parts.push_back(id);
        CHECK(parts == whole);

        Floats stopped_state = state0, stopped_logits = logits0;
        const std::vector<int32_t> stopped = draw(model, 20, 0, stopped_state, stopped_logits, {whole[6]});
        CHECK(stopped.size() <= 6);
        const int32_t cancelled = 1;
        Floats cancelled_state = state0, cancelled_logits = logits0;
        CHECK(draw(model, 20, 0, cancelled_state, cancelled_logits, {}, &cancelled).size() == 1);
      }
    }
  }
}

TEST(rows_are_drawn_as_if_alone_short) {
  const Chain chain = long_chain();
  const int64_t counts[] = {9, 0, 20, 1};
  constexpr int64_t kRows = 4, kMost = 20;
  for (int precision = 0; precision < 3; ++precision) {
    for (const int threads : {1, 2, 3}) {
      const TextProgram model = chain.model(static_cast<Precision>(precision), threads);
      const int64_t S = model.state_size(), V = model.outputs();
      const Floats start = read(model, kRows, 1, {1, 5, 3, 10});
      const auto draws_of = [&](std::vector<int32_t>& ids, Floats& log_probabilities) {
        ids.assign(kRows * kMost, -1);
        log_probabilities.assign(kRows * kMost, NAN);
        std::vector<Draw> draws(kRows);
        for (int64_t row = 0; row < kRows; ++row) {
          Draw& draw = draws[static_cast<size_t>(row)];
          draw.sampling.stream = static_cast<uint64_t>(row);
          draw.count = counts[row];
          draw.ids = ids.data() + row * kMost;
          draw.log_probabilities = log_probabilities.data() + row * kMost;
        }
        return draws;
      };
      std::vector<int32_t> ids, alone_ids;
      Floats scores, alone_scores, state(static_cast<size_t>(kRows * S), NAN),
          logits(start.begin() + kRows * S, start.end());
      const std::vector<Draw> draws = draws_of(ids, scores);
      const auto drawn = model.generate(draws, start.data(), state.data(), logits.data());
      const std::vector<Draw> alone = draws_of(alone_ids, alone_scores);
      for (int64_t row = 0; row < kRows; ++row) {
        CHECK(drawn[static_cast<size_t>(row)].count == counts[row]);
        Floats after(static_cast<size_t>(S), NAN),
            following(start.begin() + kRows * S + row * V, start.begin() + kRows * S + (row + 1) * V);
        model.generate({alone[static_cast<size_t>(row)]}, start.data() + row * S, after.data(),
                       following.data());
        CHECK(std::memcmp(after.data(), state.data() + row * S, after.size() * 4) == 0);
        CHECK(std::memcmp(following.data(), logits.data() + row * V, following.size() * 4) == 0);
      }
      CHECK(ids == alone_ids);
      CHECK(std::memcmp(scores.data(), alone_scores.data(), scores.size() * 4) == 0);
    }
  }
}

TEST(stretches_of_a_long_generation_are_one_sequence) {
  const Chain chain = plain_chain();
  constexpr int64_t kCount = 1300;
  const TextProgram fixed = chain.model(Precision::kFloat32, 1), free = chain.model(Precision::kFloat32, 0);
  const Floats start = read(fixed, 1, 1, {1});
  const std::vector<int32_t> previous = {1, 4};
  for (const double penalty : {1.0, 1.3}) {
    std::vector<int32_t> ids[2];
    Floats states[2], logits[2], scores[2];
    for (int way = 0; way < 2; ++way) {
      ids[way].resize(kCount);
      scores[way].resize(kCount);
      states[way].resize(static_cast<size_t>(fixed.state_size()));
      logits[way].assign(start.begin() + fixed.state_size(), start.end());
      Draw draw;
      draw.sampling.repetition_penalty = penalty;
      draw.sampling.window = 40;
      draw.previous = previous;
      draw.position = 7;
      draw.count = kCount;
      draw.ids = ids[way].data();
      draw.log_probabilities = scores[way].data();
      const auto drawn =
          (way == 0 ? fixed : free).generate({draw}, start.data(), states[way].data(), logits[way].data());
      CHECK(drawn[0].count == kCount);
    }
    CHECK(ids[0] == ids[1]);
    CHECK(scores[0] == scores[1]);
    CHECK(states[0] == states[1]);
    CHECK(logits[0] == logits[1]);
  }
}

TEST(scores_are_those_of_the_logits_step_after_step_short) {
  const Chain chain = long_chain();
  constexpr int64_t kRows = 3, kSteps = 200;  // read in several parts
  std::vector<int32_t> ids(kRows * kSteps);
  for (size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int32_t>(n * n % 11);
  const int32_t lengths[] = {200, 1, 150};
  for (int precision = 0; precision < 3; ++precision) {
    const TextProgram model = chain.model(static_cast<Precision>(precision), 2);
    const int64_t S = model.state_size(), V = model.outputs();
    const Floats zeros(static_cast<size_t>(kRows * S));
    Floats after(zeros.size(), NAN), scores(kRows * (kSteps - 1), NAN);
    model.score({kRows, kSteps, ids.data(), lengths}, zeros.data(), after.data(), scores.data());
    for (int64_t row = 0; row < kRows; ++row) {
      Floats state(zeros.begin(), zeros.begin() + S);
      for (int64_t t = 0; t < lengths[row]; ++t) {
        const int32_t* id = ids.data() + row * kSteps + t;
        const Floats step = read(model, 1, 1, {*id}, state);
        state.assign(step.begin(), step.begin() + S);
        if (t + 1 == kSteps) continue;
        const float score = scores[static_cast<size_t>(row * (kSteps - 1) + t)];
        const double want = cellerate::log_softmax(model.program().exponentials(), step.data() + S, V, id[1]);
        CHECK(score == (t + 1 < lengths[row] ? static_cast<float>(want) : 0.0f));
      }
      CHECK(std::memcmp(state.data(), after.data() + row * S, static_cast<size_t>(S) * 4) == 0);
    }
  }
}

TEST(an_id_of_zero_leaves_the_state_as_it_is_short) {
  Chain chain = plain_chain();
  chain.masks_zero = true;
  const TextProgram model = chain.model(Precision::kFloat32, 2);
  const Floats some = read(model, 2, 3, {4, 0, 7, 0, 4, 7}), without = read(model, 2, 2, {4, 7, 4, 7});
  CHECK(some == without);
}

TEST(wrong_models_and_calls_are_errors_short) {
  Chain chain = plain_chain();
  const TextProgram model = chain.model(Precision::kFloat32, 1);
  CHECK(CHECK_THROWS(std::out_of_range, read(model, 1, 1, {11})).find("11") != std::string::npos);
  CHECK_THROWS(std::out_of_range, read(model, 1, 2, {0, -1}));
  CHECK_THROWS(std::invalid_argument, read(model, 1, 0, {}));
  const int32_t lengths[] = {2};
  CHECK_THROWS(std::invalid_argument, read(model, 1, 1, {0}, {}, lengths));
  CHECK_THROWS(std::invalid_argument,
               read(model, 1, 1, {0}, Floats(static_cast<size_t>(model.state_size()), NAN)));
  chain.nodes.back().rows = 36;
  CHECK_THROWS(std::invalid_argument, chain.model(Precision::kFloat32, 1));
  chain = plain_chain();
  chain.nodes[1].masked_output = cellerate::MaskedOutput::kZero;
  CHECK_THROWS(std::invalid_argument, chain.model(Precision::kFloat32, 1));
  chain = plain_chain();
  chain.nodes.erase(chain.nodes.begin() + 1, chain.nodes.end());
  CHECK_THROWS(std::invalid_argument, chain.model(Precision::kFloat32, 1));
}

}  // namespace
