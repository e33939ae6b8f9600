// The end of a step: the gradients of all pieces summed, clipped, and given to the weights.
#pragma once

#include <vector>

#include "training/step.h"

namespace cellerate {

class WeightUpdates {
 public:
  // Args: scale: of all gradients. pieces: how many have them.
  WeightUpdates(TrainingProgram& program, const TrainingBatch& batch, const TrainingNumbers& numbers,
                double scale, int64_t pieces);

  void run();

 private:
  using Use = TrainingProgram::Use;

  // A part of a weight that a thread takes at once: numbers, or rows of an embedding.
  struct Chunk {
    size_t use;
    int64_t begin, end;
    double squares;  // the sum of the squares of its gradient
  };
  // The places of each id in a batch, in order: those of id n are places[starts[n]] up to places[starts[n + 1]].
  struct Places {
    std::vector<int32_t> starts, places;
  };

  void index_rows(size_t n);
  void cut(size_t n);
  void sum(const Chunk& chunk);
  void sum_rows(const Chunk& chunk);
  double squares_of(const Chunk& chunk) const;
  void add_to_first(const Chunk& chunk);
  void change(const Chunk& chunk);
  void change_rows(const Chunk& chunk);
  UpdateRows rows_of(const Use& use) const;
  float* outputs(const Use& use) const { return program_.row_gradients_ + use.offset; }
  float* sums(size_t n) const;
  // Whether the batch reads a row of an embedding.
  bool is_read(size_t n, int64_t id) const {
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
