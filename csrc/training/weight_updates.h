// The end of a step: sums and clips the gradients of all pieces, and updates the weights.
#pragma once

#include <vector>

#include "training/step.h"

namespace cellerate {

class Team;

// Returns the penalty of a weight's regularizer over part [begin, end). Unless `gradient` is null, multiplies it by
// `scale` and adds the gradient of the penalty.
double regularize(const TrainedWeight& weight, float* gradient, float scale, int64_t begin, int64_t end);

class WeightUpdates {
 public:
  // Args: scale: multiplies all gradients. pieces: the number of pieces.
  WeightUpdates(TrainingProgram& program, const TrainingBatch& batch, const TrainingNumbers& numbers,
                double scale, int64_t pieces);

  // Updates the weights. Adds the penalties of the regularizers to the loss of the result, and fills in its norm.
  void run(TrainingResult& result);

 private:
  using Use = TrainingProgram::Use;

  // The part of a weight that a thread updates at once: numbers, or rows of an embedding.
  struct Chunk {
    size_t use;
    int64_t begin, end;
    double squares = 0;  // the sum of the squares of its gradient
    double penalty = 0;  // the penalty of the regularizer
  };
  // Where the gradients of each id lie: id n has places[starts[n]] to places[starts[n + 1] - 1].
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
  // The factor by which a gradient in memory must still be multiplied.
  double scale_of(size_t n) const { return weight_of(n).has_more() ? 1 : scale_; }
  // The numbers in one unit of a chunk: a row of an embedding, or a single number.
  int64_t width(size_t n) const {
    const Use& use = program_.uses_[n];
    return use.by_rows ? program_.nodes_[static_cast<size_t>(use.node)].columns : 1;
  }
  // Whether the gradient of a row of an embedding may differ from zero.
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
  std::vector<Places> places_;  // for every use
  std::vector<const Use*>
      first_;  // for every weight, its first use, to which the gradients of the others are added
  std::vector<double> squares_;  // for every weight
  double all_squares_ = 0;
};

}  // namespace cellerate
