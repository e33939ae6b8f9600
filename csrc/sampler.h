// Choosing the next token from logits, in double precision: the rules of cellerate.runtime.sampling, with min-p, a
// repetition penalty and counter-based random numbers besides.
//
// A module of its own because it knows nothing of models: logits in, a token out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cellerate {

// Applied in this order: repetition penalty, temperature, top-k, top-p, min-p.
struct Sampling {
  double temperature = 1;  // the logits are divided by it; 0 takes the likeliest, of equals the lowest id
  int64_t top_k = 0;       // only so many of the likeliest; 0 for all
  double top_p = 1;        // only the fewest likeliest with this share of what is left; 1 for all
  double min_p = 0;        // only those at least this share as likely as the likeliest; 0 for all
  double repetition_penalty = 1;  // a logit above 0 of an id seen is divided by it, one below 0 multiplied
  int64_t window = 0;             // the penalty sees the last so many ids; 0 for all
  uint64_t seed = 0;
  uint64_t stream = 0;  // which of several sequences drawn with one seed
};

// Softmax in double, as a target computes it. All targets compute the same bits, so that a seed draws the same ids
// on every one of them.
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

// A number in [0, 1) of 53 random bits for a place in one of a seed's sequences.
double uniform(uint64_t seed, uint64_t stream, uint64_t position);

// Draws tokens one after another. Nothing is allocated after construction.
class Sampler {
 public:
  // Args: previous: the ids that the penalty has seen already, oldest first, none negative; `more` ids may be
  // added. Throws std::bad_alloc.
  Sampler(const Sampling& sampling, const Exponentials& exponentials, int64_t outputs,
          std::span<const int32_t> previous, int64_t more);

  // The token at `position` of the sequence, or -1 if a logit is not finite. `log_probability` is that of the model
  // itself: ln softmax(logits), without any of the rules.
  int64_t choose(const float* logits, uint64_t position, float* log_probability);
  // Tells the penalty of an id.
  void add(int32_t id);

 private:
  int64_t filter(double total);

  const Sampling sampling_;
  const Exponentials& exponentials_;
  const int64_t outputs_;
  std::vector<double> scores_, weights_;
  std::vector<int32_t> order_;
  // For the penalty: how often each id is seen, and where it forgets, the ids seen in a ring and how many came.
  std::vector<int32_t> times_;
  std::vector<int32_t> ring_;
  size_t came_ = 0;
};

// ln softmax(logits)[id].
double log_softmax(const Exponentials& exponentials, const float* logits, int64_t outputs, int64_t id);

}  // namespace cellerate
