// Chooses the next token from logits, in double precision and with counter-based random numbers.
//
// It does not depend on a model. cellerate.runtime.text.sampling follows the same rules in NumPy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cellerate {

// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p.
struct Sampling {
  double temperature = 1;  // divides the logits; 0 takes the likeliest id, the lowest of equals
  int64_t top_k = 0;       // keeps this many of the likeliest ids; 0 for all
  double top_p = 1;        // keeps the fewest ids that have this share of the probability left; 1 for all
  double min_p = 0;        // keeps ids with at least this share of the highest probability; 0 for all
  double repetition_penalty =
      1;               // for ids seen before: divides logits above 0, and multiplies logits below 0
  int64_t window = 0;  // how many of the last ids the penalty sees; 0 for all
  uint64_t seed = 0;
  uint64_t stream = 0;  // which of several sequences drawn with one seed
};

// Softmax in double, as a target computes it. All targets compute the same bits, so that a seed draws the same ids on
// all of them.
struct Exponentials {
  // weights = e^((scores - largest) / temperature), for (count) scores of at most `largest`.
  void (*weights)(const double* scores, int64_t count, double largest, double temperature, double* weights);
  // The sum of e^(logits - largest), for (count) logits of at most `largest`.
  double (*sum)(const float* logits, int64_t count, double largest);
};

// Four words of 32 random bits for a counter and a key: Philox4x32-10.
// Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
struct Philox {
  uint32_t word[4];
};
Philox philox(const uint32_t (&counter)[4], const uint32_t (&key)[2]);

// A number in [0, 1) with 53 random bits, for a position in one of a seed's sequences.
double uniform(uint64_t seed, uint64_t stream, uint64_t position);

// Draws tokens one after another. It allocates nothing after construction.
class Sampler {
 public:
  // Args: previous: the ids that the penalty has already seen, oldest first, none negative. more: how many ids may be
  // added. Throws std::bad_alloc.
  Sampler(const Sampling& sampling, const Exponentials& exponentials, int64_t outputs,
          std::span<const int32_t> previous, int64_t more);

  // The token at `position` of the sequence, or -1 if a logit is not finite. Writes ln softmax(logits) of the token to
  // `log_probability`, without penalty, temperature or filters.
  int64_t choose(const float* logits, uint64_t position, float* log_probability);
  // Tells the penalty about an id.
  void add(int32_t id);

 private:
  int64_t filter(double total);

  const Sampling sampling_;
  const Exponentials& exponentials_;
  const int64_t outputs_;
  std::vector<double> scores_, weights_;
  std::vector<int32_t> order_;
  // For the penalty: the count of each id; and with a window, a ring of the last ids and the number of ids so far.
  std::vector<int32_t> times_;
  std::vector<int32_t> ring_;
  size_t came_ = 0;
};

// ln softmax(logits)[id].
double log_softmax(const Exponentials& exponentials, const float* logits, int64_t outputs, int64_t id);

}  // namespace cellerate
