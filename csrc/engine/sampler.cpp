#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cellerate {

Philox philox(const uint32_t (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

double uniform(uint64_t seed, uint64_t stream, uint64_t position) {
  const Philox random = philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                                static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{random.word[1]} << 32 | random.word[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double log_softmax(const Exponentials& exponentials, const float* logits, int64_t outputs, int64_t id) {
  const double largest = *std::max_element(logits, logits + outputs);
  return logits[id] - largest - std::log(exponentials.sum(logits, outputs, largest));
}

Sampler::Sampler(const Sampling& sampling, const Exponentials& exponentials, int64_t outputs,
                 std::span<const int32_t> previous, int64_t more)
    : sampling_(sampling),
      exponentials_(exponentials),
      outputs_(outputs),
      scores_(static_cast<size_t>(outputs)),
      weights_(static_cast<size_t>(outputs)),
      order_(static_cast<size_t>(outputs)) {
  if (sampling_.repetition_penalty == 1) return;
  times_.resize(static_cast<size_t>(outputs));
  // A window with room for all ids needs no ring.
  const int64_t all = static_cast<int64_t>(previous.size()) + more;
  if (sampling_.window > 0 && sampling_.window < all) ring_.resize(static_cast<size_t>(sampling_.window));
  for (const int32_t id : previous) add(id);
}

void Sampler::add(int32_t id) {
  if (times_.empty()) return;
  // An id that only the embeddings know has no logit.
  if (id < outputs_) ++times_[static_cast<size_t>(id)];
  if (ring_.empty()) return;
  int32_t& place = ring_[came_ % ring_.size()];
  if (came_ >= ring_.size() && place < outputs_) --times_[static_cast<size_t>(place)];
  place = id;
  ++came_;
}

int64_t Sampler::choose(const float* logits, uint64_t position, float* log_probability) {
  // NaN or an infinity times zero is NaN, and makes the sum NaN. Sixteen sums, because one would wait for each addition.
  constexpr int kSums = 16;
  float checks[kSums] = {}, tops[kSums];
  std::fill_n(tops, kSums, logits[0]);
  int64_t first = 0;
  const auto look = [&](int count) {
    for (int n = 0; n < count; ++n) {
      const float logit = logits[first + n];
      checks[n] += logit * 0.0f;
      tops[n] = tops[n] < logit ? logit : tops[n];
    }
  };
  for (; first + kSums <= outputs_; first += kSums) look(kSums);
  look(static_cast<int>(outputs_ - first));
  if (std::accumulate(checks, checks + kSums, 0.0f) != 0) return -1;
  const float top = *std::max_element(tops, tops + kSums);

  const double model_largest = top;
  double largest = model_largest;
  for (int64_t n = 0; n < outputs_; ++n) scores_[n] = logits[n];
  const bool penalised = !times_.empty();
  if (penalised) {
    for (int64_t n = 0; n < outputs_; ++n) {
      if (times_[n] == 0) continue;
      const double score = scores_[n] > 0 ? scores_[n] / sampling_.repetition_penalty
                                          : scores_[n] * sampling_.repetition_penalty;
      // The difference of two infinities would be NaN.
      constexpr double kMost = std::numeric_limits<double>::max();
      scores_[n] = std::clamp(score, -kMost, kMost);
    }
    largest = *std::max_element(scores_.begin(), scores_.end());
  }
  const auto report = [&](int64_t id, double weights) {
    *log_probability = static_cast<float>(logits[id] - model_largest - std::log(weights));
    return id;
  };
  if (sampling_.temperature == 0) {
    const auto id = std::max_element(scores_.begin(), scores_.end()) - scores_.begin();
    return report(id, exponentials_.sum(logits, outputs_, model_largest));
  }
  exponentials_.weights(scores_.data(), outputs_, largest, sampling_.temperature, weights_.data());
  double total = 0;
  for (int64_t n = 0; n < outputs_; ++n) total += weights_[n];
  const bool plain = sampling_.temperature == 1 && !penalised;
  const double model_weights = plain ? total : exponentials_.sum(logits, outputs_, model_largest);

  const bool ordered = (sampling_.top_k > 0 && sampling_.top_k < outputs_) || sampling_.top_p < 1;
  int64_t left = outputs_;
  if (ordered) {
    left = filter(total);
  } else if (sampling_.min_p > 0) {
    // The likeliest has weight 1.
    for (double& weight : weights_) weight = weight >= sampling_.min_p ? weight : 0;
  }
  if (ordered || sampling_.min_p > 0) {
    total = 0;
    for (int64_t n = 0; n < left; ++n) total += weights_[n];
  }
  // Inverts the distribution function: takes the first id at which the sum goes above `place`. `place` is below the
  // total, so there is such an id, and its weight is not zero.
  const double place =
      std::min(uniform(sampling_.seed, sampling_.stream, position) * total, std::nextafter(total, 0.0));
  double sum = 0;
  int64_t chosen = 0;
  for (; chosen < left; ++chosen) {
    sum += weights_[chosen];
    if (sum > place) break;
  }
  return report(ordered ? order_[chosen] : chosen, model_weights);
}

// Sorts the weights in descending order, the lower id of equals first, and returns how many to keep.
int64_t Sampler::filter(double total) {
  const auto before = [&](int32_t a, int32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  };
  const auto order = order_.begin();
  int64_t left = outputs_;
  if (sampling_.top_k > 0 && sampling_.top_k < outputs_) {
    left = sampling_.top_k;
    std::iota(order, order_.end(), 0);
    std::nth_element(order, order + left, order_.end(), before);
  } else {
    // Skip weights so small that all of them together are less than top_p leaves out; half of it, as sums are rounded.
    const double least = (1 - sampling_.top_p) * total / (2 * static_cast<double>(outputs_));
    left = 0;
    for (int64_t n = 0; n < outputs_; ++n) {
      if (weights_[n] >= least) order_[left++] = static_cast<int32_t>(n);
    }
  }
  std::sort(order, order + left, before);
  for (int64_t n = 0; n < left; ++n) scores_[n] = weights_[order_[n]];
  for (int64_t n = 0; n < left; ++n) weights_[n] = scores_[n];
  if (sampling_.top_p < 1) {
    if (sampling_.top_k > 0 && sampling_.top_k < outputs_) {
      total = 0;
      for (int64_t n = 0; n < left; ++n) total += weights_[n];
    }
    // A token stays if the mass before it is short of top_p, so the token that reaches top_p stays too.
    double mass = 0;
    int64_t n = 0;
    for (; n < left && mass < sampling_.top_p * total; ++n) mass += weights_[n];
    left = std::max<int64_t>(n, 1);
  }
  while (left > 1 && weights_[left - 1] < sampling_.min_p) --left;
  return left;
}

}  // namespace cellerate
