// The sampler: its random numbers, its rules, and that they draw as often as they should.
#include <cmath>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "engine/program.h"
#include "engine/sampler.h"
#include "simd/dispatch.h"

namespace {

using cellerate::Draw;
using cellerate::Sampling;
using Floats = std::vector<float>;

TEST(philox_gives_the_known_answers) {
  // Source: kat_vectors of Random123 1.14.
  struct Known {
    uint32_t counter[4], key[2], answer[4];
  };
  constexpr Known kKnown[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Known& known : kKnown) {
    const cellerate::Philox got = cellerate::philox(known.counter, known.key);
    for (int n = 0; n < 4; ++n) CHECK(got.word[n] == known.answer[n]);
  }
}

int64_t first_choice(const Sampling& sampling, const Floats& logits,
                     const std::vector<int32_t>& previous = {}) {
  cellerate::Sampler sampler(sampling, cellerate::target().programs->exponentials,
                             static_cast<int64_t>(logits.size()), previous, 0);
  float log_probability = NAN;
  return sampler.choose(logits.data(), 0, &log_probability);
}

TEST(a_temperature_of_zero_takes_the_likeliest_and_the_lowest_of_equals) {
  Sampling sampling;
  sampling.temperature = 0;
  CHECK(first_choice(sampling, {1, 3, 2, 3}) == 1);
  // 3 / 2 is below 2, and -1 times 2 below -1.5.
  sampling.repetition_penalty = 2;
  CHECK(first_choice(sampling, {1, 3, 2, 1}, {1}) == 2);
  CHECK(first_choice(sampling, {-1, -1.5f}, {0}) == 1);
  sampling.window = 1;
  CHECK(first_choice(sampling, {1, 3, 2, 1}, {1, 0}) == 1);
}

// How often each id is drawn at 20,000 positions.
std::vector<double> shares(const Sampling& sampling, const Floats& logits) {
  constexpr int kDraws = 20'000;
  cellerate::Sampler sampler(sampling, cellerate::target().programs->exponentials,
                             static_cast<int64_t>(logits.size()), {}, 0);
  std::vector<double> found(logits.size());
  float log_probability;
  for (uint64_t position = 0; position < kDraws; ++position) {
    found[static_cast<size_t>(sampler.choose(logits.data(), position, &log_probability))] += 1.0 / kDraws;
  }
  return found;
}

// Whether the ids that may be drawn, and no others, are drawn as often as their weights say.
bool drawn_by(const Sampling& sampling, const Floats& logits, const std::vector<double>& weights) {
  const std::vector<double> found = shares(sampling, logits);
  double total = 0;
  for (const double weight : weights) total += weight;
  for (size_t id = 0; id < found.size(); ++id) {
    // Five standard deviations of 20,000 draws are at most 0.018.
    if ((weights[id] == 0) != (found[id] == 0) || std::abs(found[id] - weights[id] / total) > 0.018)
      return false;
  }
  return true;
}

TEST(rules_of_sampling_leave_the_ids_they_should) {
  // Probabilities 0.1, 0.4, 0.2, 0.05 and 0.25.
  const std::vector<double> p{0.1, 0.4, 0.2, 0.05, 0.25};
  Floats logits;
  for (const double each : p) logits.push_back(static_cast<float>(std::log(each)));
  Sampling sampling;
  CHECK(drawn_by(sampling, logits, p));
  // The id that reaches top_p stays: 0.4 < 0.41 <= 0.4 + 0.25.
  sampling.top_p = 0.39;
  CHECK(drawn_by(sampling, logits, {0, 1, 0, 0, 0}));
  sampling.top_p = 0.41;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.top_p = 0.64;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.top_p = 0.66;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0.2, 0, 0.25}));
  sampling.top_p = 0.96;
  CHECK(drawn_by(sampling, logits, p));
  // top_p is a share of what top_k left: 0.4 / 0.65 is short of 0.62, and beyond 0.61.
  sampling.top_k = 2;
  sampling.top_p = 0.61;
  CHECK(drawn_by(sampling, logits, {0, 1, 0, 0, 0}));
  sampling.top_p = 0.62;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.top_p = 1;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.top_k = 4;
  CHECK(drawn_by(sampling, logits, {0.1, 0.4, 0.2, 0, 0.25}));
  // min_p is a share of the likeliest, with and without a rule that sorts: 0.25 / 0.4 = 0.625, 0.2 / 0.4 = 0.5.
  sampling.min_p = 0.51;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.top_k = 0;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0, 0, 0.25}));
  sampling.min_p = 0.49;
  CHECK(drawn_by(sampling, logits, {0, 0.4, 0.2, 0, 0.25}));
  // A temperature of 2 takes the square roots of the probabilities.
  sampling.min_p = 0;
  sampling.temperature = 2;
  std::vector<double> roots;
  for (const double each : p) roots.push_back(std::sqrt(each));
  CHECK(drawn_by(sampling, logits, roots));
}

TEST(equal_ids_are_ranked_by_their_number) {
  Sampling sampling;
  sampling.top_k = 2;
  CHECK(drawn_by(sampling, {0, 0, 0, 0}, {1, 1, 0, 0}));
  sampling.top_k = 0;
  sampling.top_p = 0.6;
  CHECK(drawn_by(sampling, {0, 0, 0, 0}, {1, 1, 1, 0}));
}

TEST(a_logit_that_is_not_finite_is_not_drawn_from) {
  CHECK(first_choice(Sampling(), {1, NAN, 0}) == -1);
  CHECK(first_choice(Sampling(), {INFINITY, 1, 0}) == -1);
  CHECK(first_choice(Sampling(), {1, -INFINITY, 0}) == -1);
}

TEST(every_target_has_the_same_exponentials) {
  constexpr int64_t kCount = 37;
  double scores[kCount], wanted[kCount] = {};
  float logits[kCount];
  for (int64_t n = 0; n < kCount; ++n) {
    logits[n] = -0.37f * static_cast<float>(n * n);
    scores[n] = logits[n];
  }
  scores[kCount - 1] = -1e300;
  double wanted_sum = 0;
  for (const std::string& target : cellerate::available_targets()) {
    cellerate::set_target(target);
    const cellerate::Exponentials& exponentials = cellerate::target().programs->exponentials;
    double weights[kCount];
    exponentials.weights(scores, kCount, 0, 0.9, weights);
    const double sum = exponentials.sum(logits, kCount, 0);
    if (wanted_sum == 0) {
      wanted_sum = sum;
      std::memcpy(wanted, weights, sizeof wanted);
      for (int64_t n = 0; n < kCount; ++n) {
        const double want = std::exp(scores[n] / 0.9);
        CHECK(std::fabs(weights[n] - want) <= 3e-16 * want);
      }
    }
    CHECK(sum == wanted_sum);
    CHECK(std::memcmp(wanted, weights, sizeof wanted) == 0);
  }
}

}  // namespace
