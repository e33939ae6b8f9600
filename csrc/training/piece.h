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
// Zeros, if it is not wanted.
inline void copy_if(bool wanted, const float* from, float* to, int64_t count) {
  if (wanted) return copy(from, to, count);
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
}

// How many numbers of an LSTM are kept in bfloat16, too; none of a layer in float32.
struct NarrowSizes {
  int64_t inputs = 0, outputs = 0, states = 0, first = 0;
};

// Arrays of an LSTM that computes in bfloat16, in that type: its inputs, outputs, last states and first states, or
// their gradients. Null where there are none.
struct NarrowLstm {
  uint16_t *inputs = nullptr, *outputs = nullptr, *last = nullptr, *first = nullptr;

  NarrowLstm() = default;
  NarrowLstm(Layout& layout, const NarrowSizes& sizes);
};

// Where the values of a piece lie, one after another; first without memory, to learn how much is needed.
struct NodeMemory {
  float* value = nullptr;     // (R, T, F); of an embedding whose rows are looked up, those that are read
  uint8_t* mask = nullptr;    // (R, T)
  float* gradient = nullptr;  // of the value
  // What backward needs besides the value: the input of an activation; of a normalisation the mean and the inverse
  // deviation, of each position or of each feature; of attention the weights of the values.
  float* kept = nullptr;
  std::byte* reserve = nullptr;    // of an LSTM
  float* dropped = nullptr;        // of an LSTM: its inputs times the factors of its dropout
  float* input_factors = nullptr;  // of its dropout: (R, D), or (4, R, D)
  float* state_factors = nullptr;  // of its recurrent dropout: (4, R, H)
  float* states = nullptr;         // its last h and c, (2, R, H)
  float* d_states = nullptr;       // their gradients, where a node reads them
  float* d_first = nullptr;        // those of its first states, where it has some
  float* row_bias = nullptr;       // where it reads what is the same at all steps: its products, (R, 4H)
  float* d_row_bias = nullptr;     // their gradients
  NarrowLstm narrow;               // of one that computes in bfloat16
};

struct StepLayout {
  std::vector<NodeMemory> nodes;
  float* spare = nullptr;  // as large as the largest value
  NarrowLstm narrow;       // the gradients of the LSTM that runs, where one computes in bfloat16

  StepLayout(const TrainingProgram& program, const TrainingBatch& batch, int64_t rows, bool training,
             std::byte* memory);
  size_t bytes = 0;
};

// The weights of the layers, packed once for all pieces of a step: for every LSTM a part for forward and one for
// backward. The calls here differ from those of a piece in rows and steps alone.
class PackedLayers {
 public:
  PackedLayers(const TrainingProgram& program, bool training, bool wanted);

  size_t bytes() const { return bytes_; }
  void place(std::byte* memory) { memory_ = memory; }
  // Packs part n of so many.
  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }
  void pack(int64_t n) const;
  // What a node's calls take; null if nothing is packed.
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
  std::vector<Part> parts_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Of a step whose parts are timed, if they are.
class StepClock {
  using Clock = std::chrono::steady_clock;

 public:
  explicit StepClock(bool on) : on_(on), since_(on ? Clock::now() : Clock::time_point()) {}

  // Adds the seconds since it was made or added last.
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
  // Args: gradients: of this piece, or null for the loss alone.
  Piece(const TrainingProgram& program, const TrainingBatch& batch, const PackedLayers& packed,
        const PieceRows& rows, float* gradients, std::byte* memory);

  void run(TrainingResult& result);

 private:
  const ProgramNode& node(int32_t n) const { return program_.nodes_[n]; }
  const ValueShape& shape(int32_t n) const { return batch_.shapes[n]; }
  int32_t source(int32_t n, int32_t input = 0) const { return node(n).inputs[input]; }
  // Of an operation that moves steps: the step that it reads for one of its own; of padding one that is not there.
  int64_t step_read(int32_t n, int64_t own) const;
  // Of a merge: whether an input has fewer positions, which are taken again and again, or one feature for all.
  bool is_stretched(int32_t n, int32_t input) const {
    const ValueShape &own = shape(n), &read = shape(source(n, input));
    return read.positions() != own.positions() || read.features != own.features;
  }
  // The place in such an input that a place of the result reads.
  int64_t place_read(int32_t n, int32_t input, int64_t place) const {
    const int64_t own = shape(n).positions(), read = shape(source(n, input)).positions();
    return place / own * read + place % own % read;
  }
  // Of an input of a concatenation: in how many parts it is copied, their width, and how far apart they come to lie.
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
  // Of an embedding that is looked up: the rows that can be, the place of each position among them, and their number.
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
  // Of a dense node in groups: calls each(place in a kernel without groups, place in its own, numbers there).
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
  // write(to) writes the gradient of a value, which is added to what other readers of the value have given.
  template <class Write>
  void give(int32_t n, const Write& write);

  const TrainingProgram& program_;
  const TrainingBatch& batch_;
  const PackedLayers& packed_;
  const int64_t piece_, first_, rows_;
  float* const gradients_;
  StepLayout layout_;
  std::vector<const void*> inputs_;  // of every node that is one
  std::vector<uint8_t> reached_;     // whether a node's gradient is there
  // Of an LSTM: whether the gradient of its last h and of its last c is there.
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
