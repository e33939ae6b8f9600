// A next-token model that runs one step at a time: an embedding, LSTMs, and the layers between them and the logits.
//
// Unlike in training, the weights are packed once and never change, there are few rows, and each step waits for the
// one before. step_kernels.h computes the numbers, compiled once per target; here are the model's memory, its checks
// and the choice of threads.
//
// The state of a sequence is h and c of each LSTM, one after another. In float32 every sum runs over its inputs in
// ascending order with fused multiply-adds, starting from the bias, so results depend neither on the target nor on
// the threads. In bfloat16 they may depend on the target, because dot products round in an order of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "cells/lstm.h"
#include "engine/pace.h"
#include "engine/packed_memory.h"
#include "engine/sampler.h"

namespace cellerate {

struct Target;

enum class StepKind : int32_t { kEmbedding, kLstm, kLayerNorm, kAffine, kDense, kCount };
inline constexpr const char* kStepKindNames[] = {"embedding", "lstm", "layer_norm", "affine", "dense"};

// One operation of the chain. Its arrays are read only while the model is made.
struct StepNode {
  StepKind kind = StepKind::kEmbedding;
  int64_t inputs = 0;             // for an embedding, the vocabulary
  int64_t outputs = 0;            // for an LSTM, its units
  const float* kernel = nullptr;  // embeddings (V, E); kernel (D, 4H) or (K, N); gamma or scale (F), or null
  const float* recurrent_kernel = nullptr;  // (H, 4H)
  const float* bias = nullptr;              // (4H), (N); beta or offset (F), or null
  Activation activation = Activation::kLinear;
  Activation recurrent_activation = Activation::kSigmoid;
  float epsilon = 0;
  bool masks_zero = false;  // for the embedding: whether id 0 leaves the state as it is
};

struct StepChain {
  const StepNode* nodes;
  int count;
  Precision precision;
};

// What one sequence of a generation asks for.
struct Draw {
  Sampling sampling;
  std::span<const int32_t> previous;   // for the penalty, oldest first
  int64_t count = 0;                   // how many ids at most
  uint64_t position = 0;               // the position in the sequence of the first id to draw
  std::span<const int32_t> stop_ids;   // end the sequence; neither returned nor read
  const int32_t* cancelled = nullptr;  // not 0 once the caller wants no more, or null
  int32_t* ids = nullptr;              // (count), written up to the last id drawn
  float* log_probabilities = nullptr;  // (count)
};

// Decides the ids of a generation while it runs.
//
// With a single sequence, each thread of the kernel asks for the next id itself, at a place of its own, and all get
// the same answer, so that none has to wait for another. With several sequences, each belongs to one thread.
class Generation {
 public:
  // Args: threads: how many will ask.
  Generation(const std::vector<Draw>& draws, const Exponentials& exponentials, int64_t outputs, int threads);

  // The next id, or -1 if there is none: enough are drawn, a stop id was drawn, the caller wants no more, or the
  // logits are not finite. `place` is the sequence; with a single sequence it is the thread, and then whether the
  // caller wants more is not checked.
  int32_t next(int64_t place, const float* logits);
  // Whether the caller wants no more of a single sequence. Only one thread may ask, because the answer can change at
  // any time.
  bool cancelled() const;

  int64_t drawn(int64_t row) const { return place_of(row).drawn; }
  bool diverged(int64_t row) const { return place_of(row).diverged; }

 private:
  struct alignas(128) Place {
    const Draw& draw;
    Sampler sampler;
    bool writes;
    int64_t drawn = 0;
    bool ended = false, diverged = false;
  };
  const Place& place_of(int64_t row) const { return places_[static_cast<size_t>(row)]; }

  const std::vector<Draw> draws_;
  std::vector<Place> places_;
};

// What a kernel is asked to do: read ids (B, T), or draw them if there is a generation.
struct StepCall {
  int64_t batch = 0, steps = 0;
  const int32_t* ids = nullptr;      // (B, T), checked
  const int32_t* lengths = nullptr;  // (B), each in [1, T], or null if all are T
  const float* state = nullptr;      // (B, S)
  float* new_state = nullptr;        // (B, S); must not be the same memory as `state`
  float* logits = nullptr;  // (B, V') after the last id of each row; a generation reads the first from it
  float* log_probabilities = nullptr;  // (B, T - 1) of each id but the first, 0 where none is read, or null
  Generation* generation = nullptr;
  int threads = 1;
};

// A target's implementation.
struct StepKernels {
  // Packs the weights of a chain into memory and gives how many bytes they take; with null it only counts. Throws
  // std::bad_alloc.
  size_t (*pack)(const StepChain& chain, std::byte* memory);
  // Runs what pack() wrote. Throws std::bad_alloc and what parallel() throws.
  void (*run)(const std::byte* packed, const StepCall& call);
  Exponentials exponentials;
};

// An immutable model; any number of threads may use it at once.
class StepModel {
 public:
  // Args: threads: how many a call uses, or 0 to measure at the first generation what is fastest.
  // Throws std::invalid_argument if the chain is not valid, std::domain_error if a weight is not finite, and
  // std::bad_alloc.
  StepModel(const std::vector<StepNode>& nodes, Precision precision, int threads);

  int64_t vocabulary() const { return vocabulary_; }
  int64_t outputs() const { return outputs_; }
  int64_t state_size() const { return state_size_; }
  size_t packed_bytes() const { return bytes_; }
  const char* target() const;
  const Exponentials& exponentials() const;

  // Runs a call; sets `threads` if the call leaves it at 0. Throws std::out_of_range if an id is not in the
  // vocabulary, std::invalid_argument if a length or the state is not valid, std::bad_alloc, and what parallel()
  // throws.
  void run(StepCall call) const;
  // Draws ids; gives how many each row drew, and throws what run() throws.
  // Args: state, new_state: (B, S). logits: (B, V'), before and after.
  struct Drawn {
    int64_t count;
    bool diverged;  // a logit was not finite
  };
  std::vector<Drawn> generate(const std::vector<Draw>& draws, const float* state, float* new_state,
                              float* logits) const;
  // The number of threads on which one stream runs fastest; measured when first asked, and again while ids are drawn.
  int threads_of_one_stream() const;

 private:
  // How long a step of one stream takes on one thread and on several, as last measured. It changes with what else
  // runs on the machine: threads that wait for each other all stand still while another program has the core of one
  // of them.
  struct Pace {
    std::once_flag measured;
    int several = 1;  // how many threads to use if more than one
    // The better of the last two times, so that a single interrupt changes nothing.
    std::atomic<double> seconds[2] = {0, 0};
    std::atomic<double> last[2] = {0, 0};
    std::atomic<int64_t> due{0};  // when to try the slower of the two again, in nanoseconds

    void note(int threads, double taken) {
      const int place = threads == 1 ? 0 : 1;
      const double before = last[place].exchange(taken, std::memory_order_relaxed);
      seconds[place].store(before > 0 ? std::min(before, taken) : taken, std::memory_order_relaxed);
    }
  };
  void check(const StepCall& call) const;
  std::vector<Drawn> generate_on(int threads, const std::vector<Draw>& draws, const float* state,
                                 float* new_state, float* logits) const;
  Drawn generate_at_pace(Draw draw, const float* state, float* new_state, float* logits) const;
  bool is_trial_due() const;
  void measure() const;
  bool several_are_faster() const;

  const Target* target_;
  int64_t vocabulary_ = 0, outputs_ = 0, state_size_ = 0;
  double products_ = 0;  // multiplications per row and step
  int threads_ = 0;
  size_t bytes_ = 0;
  PackedMemory packed_;
  mutable Pace pace_;
  mutable cellerate::Pace step_pace_;  // of calls of one step
};

}  // namespace cellerate
