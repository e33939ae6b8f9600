// A next-token model: a program with one LSTM state after another, which reads ids, scores them and draws them.
//
// The state of a sequence is h and c of each LSTM, one after another. In float32 every sum runs over its inputs in
// ascending order with fused multiply-adds, starting from the bias, so results depend neither on the target nor on
// the threads. In bfloat16 they may depend on the target, because dot products round in an order of their own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "engine/generation.h"
#include "engine/pace.h"
#include "engine/program.h"

namespace cellerate {

// The ids of a call.
struct TextIds {
  int64_t batch = 0, steps = 0;
  const int32_t* ids = nullptr;      // (B, T)
  const int32_t* lengths = nullptr;  // (B), each in [1, T], or null if all are T
};

// An immutable model; any number of threads may use it at once.
class TextProgram {
 public:
  // Args: nodes: a chain from an embedding to the logits; its inputs are the ids, and h and c of each LSTM. Each LSTM
  // has a mask of the ids and leaves its state as it is where they are masked. outputs: the logits, and h and c of each
  // LSTM.
  // threads: how many a call uses, or 0 for as many as are fastest.
  // Throws std::invalid_argument if the graph differs from this, and std::bad_alloc.
  TextProgram(std::vector<ProgramNode> nodes, std::vector<int32_t> outputs, Precision precision, int threads);

  int64_t vocabulary() const { return vocabulary_; }
  int64_t outputs() const { return outputs_; }
  int64_t state_size() const { return state_size_; }
  const CompiledProgram& program() const { return program_; }

  // Reads ids. Throws std::out_of_range if an id is not in the vocabulary, std::invalid_argument if a length or the
  // state is not valid, std::bad_alloc, and what parallel() throws.
  // Args: state, new_state: (B, S), in different memory. logits: (B, V') after the last id of each row.
  void read(const TextIds& text, const float* state, float* new_state, float* logits) const;
  // Reads ids, and writes the log probability (B, T - 1) of each id after the first; 0 after the end of a row. Throws
  // like read().
  void score(const TextIds& text, const float* state, float* new_state, float* log_probabilities) const;

  // Draws ids; returns the count of each row. Throws like read(), but does not check the state.
  // Args: state, new_state: (B, S). logits: (B, V'), read at the start and written at the end.
  struct Drawn {
    int64_t count;
    bool diverged;  // a logit was not finite
  };
  std::vector<Drawn> generate(const std::vector<Draw>& draws, const float* state, float* new_state,
                              float* logits) const;

 private:
  // The parts that calls of the same sizes share.
  struct Sizes {
    std::vector<ValueShape> shapes;
    std::vector<int64_t> input_rows, output_rows;
    ProgramCall call;  // without its arrays
    ProgramPlan plan;
  };
  using Key = std::tuple<FirstOutput, int64_t, int64_t, int64_t, int, bool, int>;

  std::shared_ptr<const Sizes> sizes(FirstOutput first, int64_t batch, int64_t steps, int64_t ids_row,
                                     int threads, bool together = false) const;
  void run(const Sizes& sizes, const int32_t* ids, const float* state, float* new_state, float* first,
           const TextCall& text) const;
  void run_all(bool scores, const TextIds& text, const float* state, float* new_state, float* result) const;
  std::vector<int32_t> checked(const TextIds& text, const float* state) const;
  std::vector<Drawn> generate_on(int threads, bool together, const std::vector<Draw>& draws,
                                 const float* state, float* new_state, float* logits) const;
  Drawn generate_at_pace(Draw draw, const float* state, float* new_state, float* logits) const;

  const CompiledProgram program_;
  const int threads_;
  int64_t vocabulary_ = 0, outputs_ = 0, state_size_ = 0;
  std::vector<int64_t> begins_;  // zeros, for each node
  mutable std::mutex mutex_;     // guards sizes_
  mutable std::map<Key, std::shared_ptr<const Sizes>> sizes_;
  static constexpr size_t kKinds = 16;
  mutable Pace paces_[kKinds];  // of generations, by the logarithm of their rows
};

}  // namespace cellerate
