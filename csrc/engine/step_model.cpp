#include "engine/step_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>

#include "simd/dispatch.h"
#include "systems/threads.h"

namespace cellerate {
namespace {

using Clock = std::chrono::steady_clock;

// The most inputs for which integer sums of products of bytes stay below 2^31.
constexpr int64_t kMostInputs = 65536;

void check_finite(const float* values, int64_t count, size_t node, const char* name) {
  if (values == nullptr) return;
  float sum = 0;
  for (int64_t n = 0; n < count; ++n) sum += values[n] * 0.0f;
  if (sum != 0) {
    throw std::domain_error("chain[" + std::to_string(node) + "]: " + name +
                            " holds a NaN or an infinity: its training has diverged. Go back to an earlier "
                            "checkpoint, or train with a lower learning rate or gradient clipping.");
  }
}

}  // namespace

Generation::Generation(const std::vector<Draw>& draws, const Exponentials& exponentials, int64_t outputs,
                       int threads)
    : draws_(draws) {
  const bool single = draws_.size() == 1;
  const size_t count = single ? static_cast<size_t>(threads) : draws_.size();
  places_.reserve(count);
  for (size_t place = 0; place < count; ++place) {
    const Draw& draw = draws_[single ? 0 : place];
    places_.push_back({draw, Sampler(draw.sampling, exponentials, outputs, draw.previous, draw.count),
                       !single || place == 0});
  }
}

int32_t Generation::next(int64_t index, const float* logits) {
  Place& place = places_[static_cast<size_t>(index)];
  const Draw& draw = place.draw;
  const bool unwanted = draws_.size() > 1 && draw.cancelled != nullptr &&
                        __atomic_load_n(draw.cancelled, __ATOMIC_RELAXED) != 0;
  if (place.ended || unwanted || place.drawn == draw.count) {
    place.ended = true;
    return -1;
  }
  float log_probability = 0;
  const auto id = static_cast<int32_t>(
      place.sampler.choose(logits, draw.position + static_cast<uint64_t>(place.drawn), &log_probability));
  place.diverged = id < 0;
  place.ended =
      place.diverged || std::find(draw.stop_ids.begin(), draw.stop_ids.end(), id) != draw.stop_ids.end();
  if (place.ended) return -1;
  place.sampler.add(id);
  if (place.writes) {
    draw.ids[place.drawn] = id;
    draw.log_probabilities[place.drawn] = log_probability;
  }
  ++place.drawn;
  return id;
}

bool Generation::cancelled() const {
  const int32_t* flag = draws_[0].cancelled;
  return flag != nullptr && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

StepModel::StepModel(const std::vector<StepNode>& nodes, Precision precision, int threads)
    : target_(&cellerate::target()), threads_(threads) {
  if (nodes.empty() || nodes.front().kind != StepKind::kEmbedding)
    throw std::invalid_argument("chain: expected an embedding first");
  vocabulary_ = nodes.front().inputs;
  int64_t width = nodes.front().outputs;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const StepNode& node = nodes[n];
    const std::string where = "chain[" + std::to_string(n) + "]";
    if (node.inputs < 1 || node.outputs < 1)
      throw std::invalid_argument(where + ": expected sizes of at least 1");
    if (n > 0 && node.kind == StepKind::kEmbedding)
      throw std::invalid_argument(where + ": expected an embedding only at the start");
    if (n > 0 && node.inputs != width) {
      throw std::invalid_argument(where + ": takes " + std::to_string(node.inputs) +
                                  " features, but the node before it gives " + std::to_string(width));
    }
    if (precision == Precision::kInt8 && n > 0 && std::max(node.inputs, node.outputs) > kMostInputs)
      throw std::invalid_argument(where + ": int8 sums hold at most " + std::to_string(kMostInputs) +
                                  " inputs");
    width = node.outputs;
    switch (node.kind) {
      case StepKind::kEmbedding:
        check_finite(node.kernel, node.inputs * node.outputs, n, "embeddings");
        break;
      case StepKind::kLstm:
        check_finite(node.kernel, node.inputs * node.outputs * 4, n, "kernel");
        check_finite(node.recurrent_kernel, node.outputs * node.outputs * 4, n, "recurrent_kernel");
        check_finite(node.bias, node.outputs * 4, n, "bias");
        state_size_ += 2 * node.outputs;
        products_ += 4.0 * static_cast<double>(node.outputs * (node.outputs + (n == 1 ? 0 : node.inputs)));
        break;
      case StepKind::kDense:
        check_finite(node.kernel, node.inputs * node.outputs, n, "kernel");
        check_finite(node.bias, node.outputs, n, "bias");
        products_ += static_cast<double>(node.inputs * node.outputs);
        break;
      default:
        check_finite(node.kernel, node.outputs, n, "weights");
        check_finite(node.bias, node.outputs, n, "weights");
        break;
    }
  }
  if (state_size_ == 0) throw std::invalid_argument("chain: expected at least one lstm");
  outputs_ = width;
  const StepChain chain{nodes.data(), static_cast<int>(nodes.size()), precision};
  bytes_ = target_->steps->pack(chain, nullptr);
  packed_ = packed_memory(bytes_);
  target_->steps->pack(chain, packed_.get());
}

void StepModel::check(const StepCall& call) const {
  for (int64_t row = 0; row < call.batch; ++row) {
    const int64_t length = call.lengths == nullptr ? call.steps : call.lengths[row];
    if (length < 1 || length > call.steps) {
      throw std::invalid_argument("lengths[" + std::to_string(row) + "] is " + std::to_string(length) +
                                  "; expected 1 to " + std::to_string(call.steps));
    }
    for (int64_t step = 0; call.ids != nullptr && step < length; ++step) {
      const int32_t id = call.ids[row * call.steps + step];
      if (id < 0 || id >= vocabulary_) {
        throw std::out_of_range("ids holds " + std::to_string(id) + ", but this model's ids run from 0 to " +
                                std::to_string(vocabulary_ - 1));
      }
    }
  }
  float sum = 0;
  for (int64_t n = 0; n < call.batch * state_size_; ++n) sum += call.state[n] * 0.0f;
  if (sum != 0) throw std::invalid_argument("state holds a NaN or an infinity");
}

void StepModel::run(StepCall call) const {
  if (call.generation == nullptr) check(call);
  if (call.batch == 0) return;
  // With fewer multiplications than this in a call, waking a thread costs more than it saves.
  constexpr double kWorthAThread = 1e6;
  constexpr int64_t kManyRows = 4;
  if (call.threads > 0) {
  } else if (threads_ > 0) {
    call.threads = threads_;
  } else if (products_ * static_cast<double>(call.batch * call.steps) < kWorthAThread) {
    call.threads = 1;
  } else if (call.batch >= kManyRows) {
    call.threads = thread_count();
  } else if (call.steps > 1) {
    call.threads = threads_of_one_stream();
  } else if (const int most = thread_count(); most > 1) {
    return step_pace_.take([&](bool several) {
      call.threads = several ? most : 1;
      target_->steps->run(packed_.get(), call);
    });
  } else {
    call.threads = 1;
  }
  target_->steps->run(packed_.get(), call);
}

const char* StepModel::target() const { return target_->name; }

const Exponentials& StepModel::exponentials() const { return target_->steps->exponentials; }

std::vector<StepModel::Drawn> StepModel::generate(const std::vector<Draw>& draws, const float* state,
                                                  float* new_state, float* logits) const {
  if (draws.size() == 1 && threads_ == 0) return {generate_at_pace(draws[0], state, new_state, logits)};
  return generate_on(threads_, draws, state, new_state, logits);
}

std::vector<StepModel::Drawn> StepModel::generate_on(int threads, const std::vector<Draw>& draws,
                                                     const float* state, float* new_state,
                                                     float* logits) const {
  StepCall call;
  call.batch = static_cast<int64_t>(draws.size());
  for (const Draw& draw : draws) call.steps = std::max(call.steps, draw.count);
  call.state = state;
  call.new_state = new_state;
  call.logits = logits;
  call.threads = threads;
  // Logits beyond the vocabulary are not ids; only measure() draws from a model that has such logits.
  Generation generation(draws, exponentials(), std::min(outputs_, vocabulary_), threads);
  call.generation = &generation;
  run(call);
  std::vector<Drawn> drawn;
  for (int64_t row = 0; row < call.batch; ++row)
    drawn.push_back({generation.drawn(row), generation.diverged(row)});
  return drawn;
}

// Draws ids in stretches, each on as many threads as are fastest at the time.
StepModel::Drawn StepModel::generate_at_pace(Draw draw, const float* state, float* new_state,
                                             float* logits) const {
  constexpr int64_t kStretch = 512, kTrial = 64;
  // With fewer than kTells ids, a time says nothing. If every call wakes threads, that belongs to the pace of the
  // calls. If only a trial wakes them, it does not; so the trial first draws kWaking ids, after which the threads are
  // awake.
  constexpr int64_t kTells = 8, kWaking = 4;
  std::vector<float> before;
  std::vector<int32_t> previous;
  const bool penalised = draw.sampling.repetition_penalty != 1;
  if (penalised) previous.assign(draw.previous.begin(), draw.previous.end());
  Drawn whole{0, false};
  bool awake = false;
  for (int64_t left = draw.count;;) {
    const bool trial = awake || is_trial_due();
    const int usual = threads_of_one_stream();
    const int threads = !trial ? usual : usual == 1 ? pace_.several : 1;
    const bool waking = trial && threads > 1 && !awake;
    draw.count = std::min(left, waking ? kWaking : trial ? kTrial : kStretch);
    awake = waking;
    draw.previous = penalised ? std::span<const int32_t>(previous) : draw.previous;
    const auto start = Clock::now();
    const Drawn drawn = generate_on(threads, {draw}, state, new_state, logits)[0];
    if (drawn.count >= kTells) {
      pace_.note(threads, std::chrono::duration<double>(Clock::now() - start).count() /
                              static_cast<double>(drawn.count));
    }
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

// Whether it is time to check if the number of threads that is not in use is still slower.
bool StepModel::is_trial_due() const {
  constexpr int64_t kTryAgain = 500'000'000;  // nanoseconds
  const int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  int64_t due = pace_.due.load(std::memory_order_relaxed);
  return now > due && pace_.due.compare_exchange_strong(due, now + kTryAgain) && due > 0;
}

int StepModel::threads_of_one_stream() const {
  if (threads_ > 0) return threads_;
  std::call_once(pace_.measured, [this] { measure(); });
  return several_are_faster() ? pace_.several : 1;
}

bool StepModel::several_are_faster() const {
  // More threads must be clearly faster, because they take cores from other programs.
  constexpr double kWorth = 0.9;
  return pace_.several > 1 && pace_.seconds[1].load(std::memory_order_relaxed) <
                                  kWorth * pace_.seconds[0].load(std::memory_order_relaxed);
}

void StepModel::measure() const {
  const int most = thread_count();
  if (most == 1) return;
  // Enough multiplications to make the waking of threads negligible.
  const auto steps = static_cast<int64_t>(std::clamp(2e7 / products_, 32.0, 256.0));
  std::vector<float> state(static_cast<size_t>(state_size_)), after(state.size());
  std::vector<float> logits(static_cast<size_t>(outputs_));
  std::vector<int32_t> ids(static_cast<size_t>(steps));
  std::vector<float> log_probabilities(ids.size());
  for (int threads = 1;; threads = std::min(2 * threads, most)) {
    double least = 0;
    for (int round = 0; round < 3; ++round) {
      std::fill(logits.begin(), logits.end(), 0.0f);
      Draw draw;
      draw.count = steps;
      draw.ids = ids.data();
      draw.log_probabilities = log_probabilities.data();
      const auto start = Clock::now();
      generate_on(threads, {draw}, state.data(), after.data(), logits.data());
      const double taken =
          std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(steps);
      if (round == 0 || taken < least) least = taken;
    }
    std::atomic<double>& seconds = pace_.seconds[threads == 1 ? 0 : 1];
    if (threads <= 2 || least < seconds.load()) {
      seconds.store(least);
      pace_.several = threads;
    }
    if (threads == most) return;
  }
}

}  // namespace cellerate
