#include "engine/text_program.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>

#include "systems/threads.h"

namespace cellerate {
namespace {

// Positions that a call reads: enough to hide its cost, and few enough for all outputs to stay in the cache.
constexpr int64_t kPositionsAtOnce = 192;
constexpr int64_t kLargestTable = int64_t{64} << 20;
// The fewest ids whose time measures the speed of drawing.
constexpr int64_t kTells = 8;

void need(bool right, const char* what) {
  if (!right) throw std::invalid_argument(std::string("a text program needs ") + what);
}

}  // namespace

TextProgram::TextProgram(std::vector<ProgramNode> nodes, std::vector<int32_t> outputs, Precision precision,
                         int threads)
    : program_(std::move(nodes), std::move(outputs), precision,
               {.largest_table = kLargestTable, .static_scales = true, .same_everywhere = true}),
      threads_(threads),
      begins_(program_.count(), 0) {
  need(program_.node(0).op == ProgramOp::kInput && program_.node(0).ids, "ids first");
  size_t state = 1;
  int32_t last = 0;  // the last node of the chain
  for (size_t n = 1; n < program_.count(); ++n) {
    const ProgramNode& node = program_.node(n);
    const auto reads = [&](int32_t input, size_t source) {
      return static_cast<size_t>(node.inputs[input]) == source;
    };
    if (node.op == ProgramOp::kInput || node.op == ProgramOp::kLstmState) continue;
    if (node.op == ProgramOp::kIdsMask) {
      need(reads(0, 0), "a mask of its ids");
      continue;
    }
    const bool first = node.op == ProgramOp::kEmbedding;
    const bool known = first || node.op == ProgramOp::kLstm || node.op == ProgramOp::kDense ||
                       node.op == ProgramOp::kLayerNorm || node.op == ProgramOp::kAffine;
    need(known && first == (last == 0) && node.inputs[0] == last, "a chain that begins with an embedding");
    last = static_cast<int32_t>(n);
    if (first) vocabulary_ = node.rows;
    if (node.op != ProgramOp::kLstm) continue;
    const bool masked = node.inputs[1] >= 0 && node.masked_output == MaskedOutput::kPreviousState;
    need(masked && !node.go_backwards && state + 1 < std::min(program_.inputs(), program_.outputs()),
         "LSTMs with masks and states");
    for (size_t part = 0; part < 2; ++part, ++state) {
      const ProgramNode& output = program_.node(program_.node_of_output(state));
      need(reads(static_cast<int32_t>(2 + part), program_.node_of_input(state)) &&
               output.op == ProgramOp::kLstmState && static_cast<size_t>(output.inputs[0]) == n &&
               output.cell == (part == 1),
           "the states of its LSTMs in order");
      state_size_ += node.columns;
    }
  }
  need(state > 1 && state == program_.inputs() && state == program_.outputs() &&
           program_.node_of_output(0) == static_cast<size_t>(last),
       "logits, and the states of its LSTMs");
  outputs_ = sizes(FirstOutput::kGiven, 1, 1, 1, 1)->shapes[program_.node_of_output(0)].features;
}

// The sizes of calls of `batch` rows and `steps` steps, with `ids_row` elements from row to row of ids. If the logits are
// returned or drawn from, the last LSTM gives only its last step.
std::shared_ptr<const TextProgram::Sizes> TextProgram::sizes(FirstOutput first, int64_t batch, int64_t steps,
                                                             int64_t ids_row, int threads,
                                                             bool together) const {
  const Key key{first, batch, steps, ids_row, threads, together, threads > 0 ? threads : thread_count()};
  const std::lock_guard lock(mutex_);
  if (const auto known = sizes_.find(key); known != sizes_.end()) return known->second;
  auto made = std::make_shared<Sizes>();
  size_t last = program_.count();
  while (program_.node(--last).op != ProgramOp::kLstm) {
  }
  made->input_rows.push_back(ids_row);
  for (size_t n = 0; n < program_.count(); ++n) {
    const ProgramNode& node = program_.node(n);
    const ValueShape read = node.input_count > 0 ? made->shapes[node.inputs[0]] : ValueShape{steps, 1};
    ValueShape shape = read;
    if (node.op == ProgramOp::kInput && n > 0) {
      // A state has the shape of the LSTM that reads it.
      size_t reader = n + 1;
      while (program_.node(reader).op != ProgramOp::kLstm ||
             std::ranges::count(program_.node(reader).inputs + 2, program_.node(reader).inputs + 4,
                                static_cast<int32_t>(n)) == 0)
        ++reader;
      shape = {0, program_.node(reader).columns};
    } else if (node.op == ProgramOp::kEmbedding || node.op == ProgramOp::kDense ||
               node.op == ProgramOp::kLstm) {
      shape.features = node.columns;
    }
    if (node.op == ProgramOp::kLstmState) shape.steps = 0;
    if (n == last && first != FirstOutput::kScored) shape.steps = 0;
    made->shapes.push_back(shape);
  }
  made->input_rows.resize(program_.inputs(), state_size_);
  made->output_rows.assign(program_.outputs(), state_size_);
  made->output_rows[0] = made->shapes[program_.node_of_output(0)].features;
  ProgramCall& call = made->call;
  call.batch = batch;
  call.shapes = made->shapes.data();
  call.begins = begins_.data();
  call.input_rows = made->input_rows.data();
  call.output_rows = made->output_rows.data();
  call.threads = threads;
  call.together = together;
  call.first_output = first;
  made->plan = program_.plan(call);
  constexpr size_t kMost = 64;
  if (sizes_.size() >= kMost) sizes_.clear();
  return sizes_[key] = made;
}

void TextProgram::run(const Sizes& sizes, const int32_t* ids, const float* state, float* new_state,
                      float* first, const TextCall& text) const {
  constexpr size_t kMany = 33;
  const void* few_inputs[kMany];
  float* few_outputs[kMany];
  std::vector<const void*> many_inputs(program_.inputs() > kMany ? program_.inputs() : 0);
  std::vector<float*> many_outputs(many_inputs.size());
  const void** inputs = many_inputs.empty() ? few_inputs : many_inputs.data();
  float** outputs = many_outputs.empty() ? few_outputs : many_outputs.data();
  inputs[0] = ids;
  outputs[0] = first;
  for (size_t n = 1, at = 0; n < program_.inputs(); ++n) {
    inputs[n] = state + at;
    outputs[n] = new_state + at;
    at += static_cast<size_t>(sizes.shapes[program_.node_of_output(n)].features);
  }
  ProgramCall call = sizes.call;
  call.inputs = inputs;
  call.outputs = outputs;
  call.text = &text;
  program_.run(call, sizes.plan);
}

// Checks the arguments of read(). If rows have lengths, returns the ids with -1 after the end of each row.
std::vector<int32_t> TextProgram::checked(const TextIds& text, const float* state) const {
  std::vector<int32_t> read;
  for (int64_t row = 0; row < text.batch; ++row) {
    const int64_t length = text.lengths == nullptr ? text.steps : text.lengths[row];
    if (length < 1 || length > text.steps) {
      throw std::invalid_argument("lengths[" + std::to_string(row) + "] is " + std::to_string(length) +
                                  "; expected 1 to " + std::to_string(text.steps));
    }
    const int32_t* ids = text.ids + row * text.steps;
    const auto wrong =
        std::find_if(ids, ids + length, [&](int32_t id) { return id < 0 || id >= vocabulary_; });
    if (wrong != ids + length) {
      throw std::out_of_range("ids holds " + std::to_string(*wrong) +
                              ", but this model's ids run from 0 to " + std::to_string(vocabulary_ - 1));
    }
    if (text.lengths == nullptr) continue;
    read.insert(read.end(), ids, ids + length);
    read.insert(read.end(), static_cast<size_t>(text.steps - length), -1);
  }
  // NaN or an infinity times zero is NaN. Sixteen sums, because a single one would wait for each addition.
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  const int64_t count = text.batch * state_size_;
  for (int64_t n = 0; n + kSums <= count; n += kSums) {
    for (int64_t each = 0; each < kSums; ++each) sums[each] += state[n + each] * 0.0f;
  }
  for (int64_t n = count / kSums * kSums; n < count; ++n) sums[0] += state[n] * 0.0f;
  if (std::accumulate(sums, sums + kSums, 0.0f) != 0)
    throw std::invalid_argument("state holds a NaN or an infinity; expected finite numbers");
  return read;
}

void TextProgram::read(const TextIds& text, const float* state, float* new_state, float* logits) const {
  run_all(false, text, state, new_state, logits);
}

void TextProgram::score(const TextIds& text, const float* state, float* new_state,
                        float* log_probabilities) const {
  run_all(true, text, state, new_state, log_probabilities);
}

// Reads the ids in parts; each part starts from the last states. `result` gets log probabilities or logits.
void TextProgram::run_all(bool scores, const TextIds& text, const float* state, float* new_state,
                          float* result) const {
  const std::vector<int32_t> read = checked(text, state);
  if (text.batch == 0) return;
  const int32_t* ids = read.empty() ? text.ids : read.data();
  const int64_t most = std::max<int64_t>(1, kPositionsAtOnce / text.batch);
  std::vector<float> between[2];
  for (int64_t begin = 0; begin < text.steps; begin += most) {
    const int64_t steps = std::min(most, text.steps - begin);
    const bool last = begin + steps == text.steps;
    const FirstOutput first = scores ? FirstOutput::kScored : last ? FirstOutput::kGiven : FirstOutput::kNone;
    float* after = new_state;
    if (!last) {
      std::swap(between[0], between[1]);
      between[0].resize(static_cast<size_t>(text.batch * state_size_));
      after = between[0].data();
    }
    TextCall call;
    if (scores) {
      call.next = ids + begin + 1;
      call.next_row = text.steps;
      call.scored = std::min(steps, text.steps - 1 - begin);
      call.log_probabilities = result + begin;
      call.log_probabilities_row = text.steps - 1;
    }
    run(*sizes(first, text.batch, steps, text.steps, threads_), ids + begin, state, after, result, call);
    state = after;
  }
}

// With few rows, the choice is between one thread and all together: each then multiplies its part of the columns, which
// stay in its cache, and all meet after each layer. With more rows, the choice is between all together and rows of its
// own for each thread, which then waits for no other. Measured on two cores with 64 rows and 512 units in int8, all
// together take 0.81 of the time; but while another program holds a core, waiting takes several times the work.
std::vector<TextProgram::Drawn> TextProgram::generate(const std::vector<Draw>& draws, const float* state,
                                                      float* new_state, float* logits) const {
  const auto batch = static_cast<int64_t>(draws.size());
  const int64_t members = sizes(FirstOutput::kDrawn, batch, 1, 1, threads_, true)->plan.members;
  if (threads_ > 0 || members == 1) return generate_on(threads_, true, draws, state, new_state, logits);
  if (batch == 1) return {generate_at_pace(draws[0], state, new_state, logits)};
  const int apart = batch < 2 * members ? 1 : 0;
  std::vector<Drawn> drawn;
  paces_[std::min(kKinds - 1, static_cast<size_t>(std::bit_width(draws.size())))].take(
      [&](bool together, bool) {
        drawn = generate_on(together ? 0 : apart, together, draws, state, new_state, logits);
        return std::ranges::max(drawn, {}, &Drawn::count).count;
      },
      kTells);
  return drawn;
}

std::vector<TextProgram::Drawn> TextProgram::generate_on(int threads, bool together,
                                                         const std::vector<Draw>& draws, const float* state,
                                                         float* new_state, float* logits) const {
  const auto batch = static_cast<int64_t>(draws.size());
  const auto sizes = this->sizes(FirstOutput::kDrawn, batch, 1, 1, threads, together);
  // Logits beyond the vocabulary are not ids.
  Generation generation(draws, program_.exponentials(), std::min(outputs_, vocabulary_),
                        static_cast<int>(sizes->plan.members));
  TextCall call;
  call.generation = &generation;
  run(*sizes, nullptr, state, new_state, logits, call);
  std::vector<Drawn> drawn;
  for (int64_t row = 0; row < batch; ++row)
    drawn.push_back({generation.drawn(row), generation.diverged(row)});
  return drawn;
}

// Draws ids in stretches, each on the number of threads that is fastest at the time.
TextProgram::Drawn TextProgram::generate_at_pace(Draw draw, const float* state, float* new_state,
                                                 float* logits) const {
  constexpr int64_t kStretch = 512, kTrial = 64;
  std::vector<float> before;
  std::vector<int32_t> previous;
  const bool penalised = draw.sampling.repetition_penalty != 1;
  if (penalised) previous.assign(draw.previous.begin(), draw.previous.end());
  Drawn whole{0, false};
  for (int64_t left = draw.count;;) {
    if (penalised) draw.previous = previous;
    Drawn drawn{0, false};
    paces_[1].take(
        [&](bool together, bool trial) {
          draw.count = std::min(left, trial ? kTrial : kStretch);
          drawn = generate_on(together ? 0 : 1, true, {draw}, state, new_state, logits)[0];
          return drawn.count;
        },
        kTells);
    whole.count += drawn.count;
    whole.diverged = drawn.diverged;
    left -= drawn.count;
    if (left == 0 || drawn.count < draw.count) return whole;
    if (penalised) previous.insert(previous.end(), draw.ids, draw.ids + drawn.count);
    draw.ids += drawn.count;
    draw.log_probabilities += drawn.count;
    draw.position += static_cast<uint64_t>(drawn.count);
    before.assign(new_state, new_state + state_size_);
    state = before.data();
  }
}

}  // namespace cellerate
