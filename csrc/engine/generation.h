// Draws the ids of a generation while a kernel runs, and decides when a sequence ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace cellerate {

// The request for one sequence of a generation.
struct Draw {
  Sampling sampling;
  std::span<const int32_t> previous;   // for the penalty, oldest first
  int64_t count = 0;                   // the most ids to draw
  uint64_t position = 0;               // the position in the sequence of the first id to draw
  std::span<const int32_t> stop_ids;   // end the sequence; neither returned nor read
  const int32_t* cancelled = nullptr;  // becomes nonzero when the caller cancels; or null
  int32_t* ids = nullptr;              // (count), written up to the last id drawn
  float* log_probabilities = nullptr;  // (count)
};

// Draws the ids of a generation while it runs.
//
// With a single sequence, each thread of the kernel draws every id itself, in a slot of its own. All threads draw the
// same id, so none waits for another. With several sequences, each belongs to one thread.
class Generation {
 public:
  // Args: threads: how many threads will call next().
  Generation(const std::vector<Draw>& draws, const Exponentials& exponentials, int64_t outputs, int threads);

  // The next id, or -1 at the end: `count` ids are drawn, a stop id is drawn, the caller has cancelled, or the logits
  // are not finite. `place` is the sequence; with a single sequence it is the thread, and cancelling is not checked.
  int32_t next(int64_t place, const float* logits);
  // Whether the caller has cancelled a single sequence. Only one thread may ask, because the answer can change.
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

}  // namespace cellerate
