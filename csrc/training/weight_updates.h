// The end of a step: the gradients of all pieces summed, clipped, and given to the weights.
#pragma once

#include <vector>

#include "training/step.h"

namespace cellerate {

class Team;

// What the regularizer of part [begin, end) of a weight adds to the loss; its gradient is added to `gradient` times
// `scale`, unless that is null.
double regularize(const TrainedWeight& weight, float* gradient, float scale, int64_t begin, int64_t end);

class WeightUpdates {
 public:
  // Args: scale: of all gradients. pieces: how many have them.
  WeightUpdates(TrainingProgram& program, const TrainingBatch& batch, const TrainingNumbers& numbers,
                double scale, int64_t pieces);

  // Changes the weights, and adds to the result what their regularizers add to the loss, and the norm if it is wanted.
  void run(TrainingResult& result);

 private:
  using Use = TrainingProgram::Use;

  // A part of a weight that a thread takes at once: numbers, or rows of an embedding.
  struct Chunk {
    size_t use;
    int64_t begin, end;
    double squares = 0;  // the sum of the squares of its gradient
    double penalty = 0;  // what the regularizer of the weight adds to the loss
  };
  // The places of the gradients of each id, in order: those of id n are places[starts[n]] up to places[starts[n + 1]].
  struct Places {
    std::vector<int32_t> starts, places;
  };

  template <class Visit>
  void each_row(const Use& use, const Visit& visit) const;
  void index_rows(size_t n);
  void cut(size_t n);
  void sum(const Chunk& chunk);
  void sum_rows(const Chunk& chunk);
  void complete(Chunk& chunk);
  void accumulate(const Chunk& chunk);
  double sum_squares(Team& team);
  double squares_of(const Chunk& chunk) const;
  void add_to_first(const Chunk& chunk);
  void change(const Chunk& chunk);
  void change_rows(const Chunk& chunk);
  UpdateRows rows_of(const Use& use) const;
  const float* squares_apart(const Use& use, const float* gradient) const;
  float* outputs(const Use& use) const { return program_.row_gradients_ + use.offset; }
  float* sums(size_t n) const;
  const TrainedWeight& weight_of(size_t n) const {
    return program_.weights_[static_cast<size_t>(program_.uses_[n].weight)];
  }
  bool is_first(const Chunk& chunk) const {
    const Use& use = program_.uses_[chunk.use];
    return first_[static_cast<size_t>(use.weight)] == &use;
  }
  // Of a gradient as it lies in memory now.
  double scale_of(size_t n) const { return weight_of(n).has_more() ? 1 : scale_; }
  // The numbers of a weight that a part is of.
  int64_t width(size_t n) const {
    const Use& use = program_.uses_[n];
    return use.by_rows ? program_.nodes_[static_cast<size_t>(use.node)].columns : 1;
  }
  // Whether the gradient of a row of an embedding is anything but zero.
  bool is_read(size_t n, int64_t id) const {
    if (weight_of(n).has_more()) return true;
    const auto at = places_[n].starts.begin() + id;
    return at[0] != at[1];
  }

  TrainingProgram& program_;
  const TrainingBatch& batch_;
  const TrainingNumbers& numbers_;
  const double scale_;
  const int64_t pieces_;
  std::vector<Chunk> chunks_;
  std::vector<Places> places_;     // of every use
  std::vector<const Use*> first_;  // of every weight, the use that gets the sum of all
  std::vector<double> squares_;    // of every weight
  double all_squares_ = 0;
};

}  // namespace cellerate
