#include "engine/generation.h"

#include <algorithm>

namespace cellerate {

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

}  // namespace cellerate
