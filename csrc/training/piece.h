// The rows of a batch that a thread takes through a whole step.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "simd/dispatch.h"
#include "systems/scratch.h"
#include "training/step.h"

namespace cellerate {

inline void copy(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}
// Copies if `copies`, else writes zeros.
inline void copy_if(bool copies, const float* from, float* to, int64_t count) {
  if (copies) return copy(from, to, count);
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
}

// How many numbers of an LSTM are kept in bfloat16, too; 0 for a layer in float32.
struct NarrowSizes {
  int64_t inputs = 0, outputs = 0, states = 0, first = 0;
};

// The bfloat16 arrays of an LSTM that computes in this type: its inputs, outputs, last states and first states, or
// their gradients. Null for each that the LSTM does not have.
struct NarrowLstm {
  uint16_t *inputs = nullptr, *outputs = nullptr, *last = nullptr, *first = nullptr;

  NarrowLstm() = default;
  NarrowLstm(Layout& layout, const NarrowSizes& sizes);
};

// The arrays of a node in a piece of R rows. Those from `reserve` on belong to LSTMs.
struct NodeMemory {
  float* value =
      nullptr;  // (R, T, F); for an embedding with a lookup, the distinct rows that the piece reads
  uint8_t* mask = nullptr;    // (R, T)
  float* gradient = nullptr;  // of the value
  // What backward needs besides the value: for an activation, its input; for a normalisation, the mean and the inverse
  // deviation of each position or feature; for attention, the attention weights.
  float* kept = nullptr;
  std::byte* reserve = nullptr;    // what forward keeps for backward
  float* dropped = nullptr;        // the inputs times the dropout factors
  float* input_factors = nullptr;  // the dropout factors: (R, D), or (4, R, D)
  float* state_factors = nullptr;  // the recurrent dropout factors: (4, R, H)
  float* states = nullptr;         // the last h and c, (2, R, H)
  float* d_states = nullptr;       // the gradients of the last h and c, if a node reads these
  float* d_first = nullptr;        // the gradients of h0 and c0, if the LSTM reads these
  float* row_bias = nullptr;  // the products of inputs that are the same at all steps, plus the bias, (R, 4H)
  float* d_row_bias = nullptr;  // the gradients of row_bias
  NarrowLstm narrow;            // the arrays of an LSTM that computes in bfloat16
};

// The memory of a piece. With `memory` null it only counts `bytes`.
struct StepLayout {
  std::vector<NodeMemory> nodes;
  float* spare = nullptr;  // as large as the largest value
  NarrowLstm narrow;       // bfloat16 gradients of the LSTM that is running

  StepLayout(const TrainingProgram& program, const TrainingBatch& batch, int64_t rows, bool training,
             std::byte* memory);
  size_t bytes = 0;
};

// The weights of the LSTMs, packed once for all pieces of a step: one part for forward and one for backward. The LSTM
// calls here differ from the calls of a piece only in rows and steps.
class PackedLayers {
 public:
  // Args: packs: false to pack nothing.
  PackedLayers(const TrainingProgram& program, bool training, bool packs);

  size_t bytes() const { return bytes_; }
  void place(std::byte* memory) { memory_ = memory; }
  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }
  void pack(int64_t n) const;
  // The packed weights of a node's calls; null if nothing is packed.
  const std::byte* forward(int32_t node) const { return at(node, false); }
  const std::byte* backward(int32_t node) const { return at(node, true); }

 private:
  struct Part {
    int32_t node;
    bool backward;
    size_t offset;
  };
  const std::byte* at(int32_t node, bool backward) const;
  template <class Call>
  Call call_of(int32_t node) const;
  size_t pack_part(const Part& part, std::byte* memory) const;

  const TrainingProgram& program_;
  const bool training_;
  std::vector<Part> parts_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Times the parts of a step, if it is on.
class StepClock {
  using Clock = std::chrono::steady_clock;

 public:
  explicit StepClock(bool on) : on_(on), since_(on ? Clock::now() : Clock::time_point()) {}

  // Adds the seconds since the last call, or since construction.
  void add_to(double& seconds) {
    if (!on_) return;
    const Clock::time_point now = Clock::now();
    seconds += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

 private:
  bool on_;
  Clock::time_point since_;
};

class Piece {
 public:
  // Args: gradients: the memory for the gradients of this piece, or null to compute only the loss.
  Piece(const TrainingProgram& program, const TrainingBatch& batch, const PackedLayers& packed,
        const PieceRows& rows, float* gradients, std::byte* memory);

  void run(TrainingResult& result);

 private:
  const ProgramNode& node(int32_t n) const { return program_.nodes_[n]; }
  const ValueShape& shape(int32_t n) const { return batch_.shapes[n]; }
  int32_t source(int32_t n, int32_t input = 0) const { return node(n).inputs[input]; }
  // For an operation that moves steps: the step of the input that `own` reads; for padding, one outside the input.
  int64_t step_read(int32_t n, int64_t own) const;
  // For a merge: whether an input is broadcast to the result, because it has fewer positions, or one feature for all.
  bool is_stretched(int32_t n, int32_t input) const {
    const ValueShape &own = shape(n), &read = shape(source(n, input));
    return read.positions() != own.positions() || read.features != own.features;
  }
  // The position in a broadcast input that a position of the result reads.
  int64_t place_read(int32_t n, int32_t input, int64_t place) const {
    const int64_t own = shape(n).positions(), read = shape(source(n, input)).positions();
    return place / own * read + place % own % read;
  }
  // How to copy an input of a concatenation: `places` parts of `width` numbers, `stride` apart in the result.
  struct Joined {
    int64_t places, width, stride;
  };
  Joined joined(int32_t n, int32_t input) const;
  const float* stretched(int32_t n, int32_t input, std::vector<float>& buffer) const;
  void gather_stretched(int32_t n, int32_t input, const float* whole, float* to) const;
  void join(const ProgramNode& of, const float* other, float* to, int64_t count) const;
  int64_t positions(int32_t n) const { return rows_ * shape(n).positions(); }
  int64_t size(int32_t n) const { return positions(n) * shape(n).features; }
  const float* value(int32_t n) const;
  const int32_t* ids(int32_t n) const;
  const uint8_t* mask(int32_t n) const;
  float* gradient_of(int32_t n, int array) const;
  // The table that a lookup reads: its rows, the row number that each position reads, and the number of rows.
  struct Table {
    const float* rows;
    const int32_t* places;
    int64_t count;
  };
  Table table(int32_t n) const;
  struct Windows;
  Windows windows(int32_t n) const;
  struct Along;
  Along along(int32_t n) const;
  struct Factor;
  Factor factor(int32_t n, int32_t input) const;
  struct Head;
  template <class Each>
  void for_each_head(int32_t n, const Each& each) const;
  template <class Each>
  void for_each_hidden(int32_t n, const Head& head, const Each& each) const;
  bool drops_weights(int32_t n, const Head& head, std::vector<float>& factors) const;
  // For a grouped dense node: calls each(index in a kernel without groups, index in the node's kernel, count).
  template <class Each>
  void for_each_group(int32_t n, const Each& each) const;
  const float* dense_kernel(int32_t n, std::vector<float>& whole) const;
  Draws draws(int32_t n, int64_t numbers_of_row, uint64_t stream = 0) const;

  void forward(int32_t n);
  void embed(int32_t n);
  void forward_lstm(int32_t n);
  void move(int32_t n);
  void make_mask(int32_t n);
  void merge(int32_t n);
  void over_time(int32_t n);
  double positions_counted(int32_t n) const;
  void take_moments(int32_t n);
  void normalize_batch(int32_t n);
  void gather_windows(int32_t n);
  void pool(int32_t n);
  void reduce(int32_t n);
  void normalize_along(int32_t n, const float* from, const float* d, float* to) const;
  void dot(int32_t n);
  void attend(int32_t n);
  void forward_dense(int32_t n);
  void drop(int32_t n, const float* from, float* to) const;
  void draw_factors(int32_t n);
  void take_losses(TrainingResult& result);
  void take_loss(size_t head, HeadResult& result);

  void backward(int32_t n);
  void backward_lstm(int32_t n);
  void backward_dense(int32_t n);
  void embedding_back(int32_t n, const float* d);
  void merge_back(int32_t n);
  void merged_back(int32_t n, int32_t input, float* to) const;
  void over_time_back(int32_t n);
  void normalize_batch_back(int32_t n);
  void scale_back(int32_t n);
  void move_back(int32_t n, float* to) const;
  void scatter_windows(int32_t n, float* to) const;
  void pool_back(int32_t n, float* to) const;
  void reduce_back(int32_t n, float* to) const;
  void dot_back(int32_t n);
  void attend_back(int32_t n);
  void give_all(int32_t n, const std::vector<float>& d);
  void state_back(int32_t n);
  void clear_gradients(int32_t n);
  void fill_lstm(int32_t n, LstmInputs& call) const;
  void multiply_still(int32_t n) const;
  void still_back(int32_t n);
  void multiply_inputs(int32_t n, const float* from, float* to) const;
  const void* narrowed(const float* from, uint16_t* to, int64_t count) const;
  void widened(const uint16_t* from, float* to, int64_t count) const;
  bool wants_gradient(int32_t n) const { return n >= 0 && program_.differentiable_[n] != 0; }
  // Adds the gradient that write(to) writes to the gradients that other readers of the value have given.
  template <class Write>
  void give(int32_t n, const Write& write);

  const TrainingProgram& program_;
  const TrainingBatch& batch_;
  const PackedLayers& packed_;
  const int64_t piece_, first_, rows_;
  float* const gradients_;
  StepLayout layout_;
  std::vector<const void*> inputs_;  // for every node; null unless it is an input
  std::vector<uint8_t> reached_;     // for every node: whether its gradient has been written
  // For an LSTM: whether the gradients of its last h and of its last c have been written.
  std::vector<std::array<bool, 2>> reached_states_;
};

template <class Each>
void Piece::for_each_group(int32_t n, const Each& each) const {
  const ProgramNode& of = node(n);
  const int64_t groups = of.whole[0], inputs = of.rows / of.whole[1], outputs = of.columns / groups;
  for (int64_t row = 0; row < of.rows; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t in_whole = (row / inputs * groups + group) * inputs + row % inputs;
      each(in_whole * of.columns + group * outputs, row * of.columns + group * outputs, outputs);
    }
  }
}

template <class Write>
void Piece::give(int32_t n, const Write& write) {
  if (!wants_gradient(n)) return;
  float* to = layout_.nodes[n].gradient;
  if (reached_[n] == 0) {
    write(to);
  } else {
    write(layout_.spare);
    program_.target_->training->add(layout_.spare, to, size(n));
  }
  reached_[n] = 1;
}

}  // namespace cellerate
