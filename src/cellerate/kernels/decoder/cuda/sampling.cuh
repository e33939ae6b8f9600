// One warp chooses the next token of a row from its logits, with the rules and the random numbers of
// csrc/engine/sampler.cpp.
//
// If the rules need the likeliest tokens first, a small vocabulary is sorted; in a large one the cut is found by
// bisecting the range of scores. Weights are float and their sums double, so the token differs from
// csrc/engine/sampler.cpp's only if the random number is within the weights' rounding of the border between two tokens.
#pragma once

#include "device.cuh"

namespace cellerate::gpu {

// As in csrc/engine/sampler.h, with some numbers in a form that suits the kernel.
struct Sampling {
  double top_p;  // 1 for all
  unsigned long long seed, stream;
  float inverse_temperature;  // at most the largest float; 0 makes all ids equally likely
  float min_p;                // 0 for all
  float penalty;              // of repetition, 1 for none; neither zero nor an infinity
  int top_k;                  // the number of logits for all
  int greedy;                 // not 0 if the temperature is 0: draws the likeliest id, the lowest of equals
};

constexpr float kLargestFloat = 3.402823466e38f;

// A number in [0, 1) with 53 random bits: Philox4x32-10 with the seed as key, and position and stream as counter.
// Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
CELLERATE_DEVICE double uniform(unsigned long long seed, unsigned long long stream,
                                unsigned long long position) {
  using Word = unsigned;
  using Wide = unsigned long long;
  Word c0 = static_cast<Word>(position), c1 = static_cast<Word>(position >> 32);
  Word c2 = static_cast<Word>(stream), c3 = static_cast<Word>(stream >> 32);
  Word k0 = static_cast<Word>(seed), k1 = static_cast<Word>(seed >> 32);
  CELLERATE_UNROLL
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = Wide{0xD2511F53u} * c0, p1 = Wide{0xCD9E8D57u} * c2;
    c0 = static_cast<Word>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<Word>(p1);
    c2 = static_cast<Word>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<Word>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((Wide{c1} << 32 | c0) >> 11) * 0x1p-53;
}

// The logits of a row in memory: 16 are contiguous, and the next 16 are `stride` further on.
struct Logits {
  const float* first;
  int stride;
  CELLERATE_DEVICE float operator[](int id) const { return first[id / 16 * stride + id % 16]; }
};

// One row of `outputs` logits. All lanes of a warp must construct it, and call each function, together.
template <int outputs>
class RowSampler {
  // Lane n has the ids n, n + 32, n + 64 and so on. The scores of a small vocabulary stay in registers; for a large
  // one, each use reads the logits again.
  static constexpr int kChunks = (outputs + 31) / 32;
  static constexpr int kGroup = kChunks < 8 ? kChunks : 8;  // chunks added up at once
  static constexpr bool kHeld = kChunks == kGroup;

  struct Item {
    unsigned key;  // ordered like the scores; 0 stands for none, and is below all keys
    float weight;  // e^((score - largest) / temperature), of at most 1
  };
  // The last item that stays, in the order of the likeliest first and the lower id of equals.
  struct Cut {
    unsigned key;
    int id;
  };

 public:
  // `times` has the penalty's count of each id, or is null if there is no penalty.
  CELLERATE_DEVICE RowSampler(Logits logits, const int* times, const Sampling& rules)
      : logits_(logits), times_(rules.penalty == 1.0f ? nullptr : times), rules_(rules) {
    float largest = -kLargestFloat;
    bool bad = false;
    for_chunks([&]([[maybe_unused]] int chunk, int id) {
      const float logit = id < outputs ? logits_[id] : -kLargestFloat;
      // Written so that it is also true for a NaN.
      bad |= !(fabsf(logit) <= kLargestFloat);
      largest = fmaxf(logit, largest);
      if constexpr (kHeld) scores_[chunk] = logit;
    });
    finite_ = lanes_where(bad) == 0;
    largest_ = value_of(largest_in_warp(key_of(largest)));
    top_ = largest_;
    if (times_ != nullptr) penalise();
  }

  // Whether all logits are finite.
  CELLERATE_DEVICE bool finite() const { return finite_; }

  // ln softmax(logits)[id], without the rules; a NaN if the logits are not finite. May be called before or after an id
  // is drawn.
  CELLERATE_DEVICE float log_probability(int id) {
    if (!finite_) return from_bits(0x7fffffffu);
    if (model_sum_ == 0) model_sum_ = model_sum();
    return logits_[id] - largest_ - logf(static_cast<float>(model_sum_));
  }

  // Draws an id with a random number in [0, 1). `reported` says whether the caller asks for its log probability later.
  CELLERATE_DEVICE int choose(double random, bool reported) {
    if (rules_.greedy == 0 && rules_.top_k >= outputs && rules_.top_p >= 1) {
      const bool plain = rules_.inverse_temperature == 1 && times_ == nullptr && rules_.min_p == 0;
      return kHeld && reported && !plain ? walk<true>(random, plain) : walk<false>(random, plain);
    }
    if constexpr (kHeld) {
      return rules_.greedy != 0 ? first_of_largest() : choose_in_order(random);
    } else {
      return rules_.greedy != 0 ? one_of(key_of(top_), 1) : choose_by_halves(random);
    }
  }

 private:
  template <class Work>
  CELLERATE_DEVICE static void for_chunks(const Work& work) {
    const int lane = thread_index() % 32;
    if constexpr (kHeld) {
      CELLERATE_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) work(chunk, chunk * 32 + lane);
    } else {
      for (int chunk = 0; chunk < kChunks; ++chunk) work(chunk, chunk * 32 + lane);
    }
  }

  // Maps floats to unsigned integers in the same order; both zeros become the same.
  CELLERATE_DEVICE static unsigned key_of(float x) {
    const unsigned bits = bits_of(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  CELLERATE_DEVICE static float value_of(unsigned key) {
    return from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
  }

  CELLERATE_DEVICE void penalise() {
    float top = -kLargestFloat;
    for_chunks([&]([[maybe_unused]] int chunk, int id) {
      if (id >= outputs) return;
      const float score = penalised(logits_[id], id);
      top = fmaxf(score, top);
      if constexpr (kHeld) scores_[chunk] = score;
    });
    top_ = value_of(largest_in_warp(key_of(top)));
  }
  CELLERATE_DEVICE float penalised(float logit, int id) const {
    if (times_ == nullptr || times_[id] == 0) return logit;
    const float score = logit > 0 ? logit / rules_.penalty : logit * rules_.penalty;
    return fminf(fmaxf(score, -kLargestFloat), kLargestFloat);
  }
  CELLERATE_DEVICE float weight_of(float score) const {
    // An infinity times zero would be a NaN.
    return expf(fmaxf(score - top_, -kLargestFloat) * rules_.inverse_temperature);
  }
  CELLERATE_DEVICE float score(int chunk, int id) const {
    if constexpr (kHeld) return scores_[chunk];
    return penalised(logits_[id], id);
  }

  // The id of the largest score, and the lowest id of equals.
  CELLERATE_DEVICE int first_of_largest() const {
    int found = -1;
    for_chunks([&](int chunk, int id) {
      const unsigned lanes = lanes_where(id < outputs && scores_[chunk] == top_);
      if (found < 0 && lanes != 0) found = chunk * 32 + lowest_bit(lanes);
    });
    return found;
  }

  // Draws an id after sorting all ids, the likeliest first and the lower id of equals. Lane n then has kEach of them
  // from n * kEach on.
  // Source of the sorting network: Batcher, "Sorting networks and their applications", 1968.
  CELLERATE_DEVICE int choose_in_order(double random) const {
    constexpr int kEach = kChunks <= 1 ? 1 : kChunks <= 2 ? 2 : kChunks <= 4 ? 4 : 8;
    const int lane = thread_index() % 32;
    unsigned long long items[kEach];  // the score's key, and the id's complement; zero for none
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int id = n * 32 + lane;
      const bool there = n < kChunks && id < outputs;
      const unsigned key = there ? key_of(scores_[n < kChunks ? n : 0]) : 0;
      items[n] = there ? static_cast<unsigned long long>(key) << 32 | ~static_cast<unsigned>(id) : 0;
    }
    sort<kEach, 2, 1>(items);

    // Each rule keeps the ids up to some index.
    float weights[kEach];
    double running[kEach], sum = 0;
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const bool there = items[n] != 0 && lane * kEach + n < rules_.top_k;
      weights[n] = there ? weight_of(value_of(static_cast<unsigned>(items[n] >> 32))) : 0.0f;
      sum += weights[n];
      running[n] = sum;
    }
    const double inside = running_sum_in_warp(sum), before = inside - sum;
    const double mass = rules_.top_p * from_lane(inside, 31);
    unsigned count = 0;
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) {
      // An id stays if the mass before it is less than top_p. So the id that reaches top_p stays, and always the
      // first.
      const bool short_of = before + (n == 0 ? 0.0 : running[n - 1 < 0 ? 0 : n - 1]) < mass;
      const bool first = lane * kEach + n == 0;
      count += weights[n] > 0 && weights[n] >= rules_.min_p && (rules_.top_p >= 1 || short_of || first);
    }
    const int left = static_cast<int>(sum_in_warp(count));
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) running[n] += before;
    const double place = place_of(random, nth<kEach>(running, left - 1));
    count = 0;
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) count += lane * kEach + n < left && running[n] <= place;
    const int above = static_cast<int>(sum_in_warp(count));
    unsigned ids[kEach];
    CELLERATE_UNROLL
    for (int n = 0; n < kEach; ++n) ids[n] = ~static_cast<unsigned>(items[n]);
    return static_cast<int>(nth<kEach>(ids, above < left ? above : left - 1));
  }
  // Sorts numbers in descending order, in pieces of `size`, by passes of strides size / 2, size / 4 and so on.
  template <int count, int size, int stride>
  CELLERATE_DEVICE static void sort(unsigned long long (&numbers)[count]) {
    CELLERATE_UNROLL
    for (int n = 0; n < count; ++n) {
      const int place = thread_index() % 32 * count + n;
      const bool descends = (place & size) == 0;
      if constexpr (stride >= count) {
        const unsigned long long other = from_lane_xor(numbers[n], stride / count);
        const bool wants_larger = ((place & stride) == 0) == descends;
        numbers[n] = (numbers[n] > other) == wants_larger ? numbers[n] : other;
      } else if ((n & stride) == 0) {
        const unsigned long long low = numbers[n], high = numbers[n + stride];
        const bool stays = (low > high) == descends;
        numbers[n] = stays ? low : high;
        numbers[n + stride] = stays ? high : low;
      }
    }
    if constexpr (stride > 1) {
      sort<count, size, stride / 2>(numbers);
    } else if constexpr (size < 32 * count) {
      sort<count, 2 * size, size>(numbers);
    }
  }
  // The number at an index; lane n has `count` numbers, from index n * count on.
  template <int count, class T>
  CELLERATE_DEVICE static T nth(const T (&numbers)[count], int place) {
    T found = numbers[0];
    // Comparing n == place % count would let the compiler index the numbers, and put them into memory.
    CELLERATE_UNROLL
    for (int n = 1; n < count; ++n) found = n <= place % count ? numbers[n] : found;
    return from_lane(found, place / count);
  }

  // Draws the same id if there are too many ids to sort: finds each cut by bisecting the range of scores.
  CELLERATE_DEVICE int choose_by_halves(double random) {
    if (rules_.top_k < outputs) cut_ = cut_at(rules_.top_k, true, false);
    if (rules_.top_p < 1) cut_ = cut_at(rules_.top_p * total(), false, false);
    // min-p comes last, because top-p counts ids that min-p rules out. The likeliest id has weight 1.
    least_ = rules_.min_p;
    return cut_at(place_of(random, total()), false, true).id;
  }
  // An item of this lane, if the rules applied so far keep it.
  CELLERATE_DEVICE Item at(int id) const {
    if (id >= outputs) return {0, 0};
    const float mine = score(0, id), weight = weight_of(mine);
    const unsigned key = key_of(mine);
    const bool stays = key > cut_.key || (key == cut_.key && id <= cut_.id);
    // Ids that can never be drawn are not counted.
    return stays && weight > 0 && weight >= least_ ? Item{key, weight} : Item{0, 0};
  }

  CELLERATE_DEVICE double total() const {
    double sum = 0;
    for_chunks([&](int, int id) { sum += at(id).weight; });
    return sum_in_warp(sum);
  }
  CELLERATE_DEVICE double model_sum() const {
    double sum = 0;
    for_chunks([&](int, int id) { sum += id < outputs ? expf(logits_[id] - largest_) : 0.0f; });
    return sum_in_warp(sum);
  }
  // A random place in the sum of weights, always below the whole sum, so that the running sum exceeds it somewhere.
  CELLERATE_DEVICE static double place_of(double random, double all) {
    const double product = random * all;
    return product < all ? product : all * (1 - 0x1p-52);
  }

  // The weight of an id if only min-p rules ids out.
  CELLERATE_DEVICE float unordered_weight(int chunk, int id) const {
    if (chunk >= kChunks || id >= outputs) return 0;
    const float weight = weight_of(score(chunk, id));
    return weight >= rules_.min_p ? weight : 0.0f;
  }

  // The first id, in ascending order, at which the sum of the weights exceeds a random place. Unless the rules are
  // `plain`, a log probability needs a different sum, which costs little along with this one.
  template <bool reported>
  CELLERATE_DEVICE int walk(double random, bool plain) {
    const int lane = thread_index() % 32;
    float weights[kGroup];
    double running[kGroup];
    if constexpr (kHeld) {
      double before = 0;
      // All sums together, because each of them waits for other lanes.
      CELLERATE_UNROLL
      for (int n = 0; n < kChunks; ++n) {
        weights[n] = unordered_weight(n, n * 32 + lane);
        running[n] = running_sum_in_warp(static_cast<double>(weights[n]));
      }
      if constexpr (reported) model_sum_ = model_sum();
      CELLERATE_UNROLL
      for (int n = 0; n < kChunks; ++n) {
        const double all = from_lane(running[n], 31);
        running[n] += before;
        before += all;
      }
      if (plain) model_sum_ = before;
      return first_above(weights, running, 0, place_of(random, before)).id;
    } else {
      double sum = 0, before = 0;
      for_chunks([&](int chunk, int id) { sum += unordered_weight(chunk, id); });
      const double place = place_of(random, sum_in_warp(sum));
      int last = 0;
      for (int group = 0; group < kChunks; group += kGroup) {
        sum = 0;
        CELLERATE_UNROLL
        for (int n = 0; n < kGroup; ++n) {
          weights[n] = unordered_weight(group + n, (group + n) * 32 + lane);
          sum += weights[n];
        }
        const double after = before + sum_in_warp(sum);
        if (after > place) {
          CELLERATE_UNROLL
          for (int n = 0; n < kGroup; ++n) {
            running[n] = before + running_sum_in_warp(static_cast<double>(weights[n]));
            before = from_lane(running[n], 31);
          }
          const Found found = first_above(weights, running, group, place);
          if (found.above) return found.id;
          last = found.id;
        }
        before = after;
      }
      return last;
    }
  }

  struct Found {
    bool above;
    int id;
  };
  // The first id of some chunks whose running sum is above a place. Sums in another order differ slightly, so for a
  // place close to the end there may be no such id; then the result is the last id that has a weight.
  CELLERATE_DEVICE static Found first_above(const float (&weights)[kGroup], const double (&running)[kGroup],
                                            int first_chunk, double place) {
    int id = -1, last = 0;
    CELLERATE_UNROLL
    for (int n = 0; n < kGroup; ++n) {
      const int first = (first_chunk + n) * 32;
      const unsigned some = lanes_where(weights[n] > 0);
      const unsigned above = some & lanes_where(running[n] > place);
      if (id < 0 && above != 0) id = first + lowest_bit(above);
      if (some != 0) last = first + highest_bit(some);
    }
    return {id >= 0, id >= 0 ? id : last};
  }

  // The item, the likeliest first and the lower id of equals, at which the sum of the weights (`counted`: the number of
  // items) reaches `target` (`above`: exceeds it). If none does, the last item.
  CELLERATE_DEVICE Cut cut_at(double target, bool counted, bool above) const {
    const auto reaches = [&](double sum) { return above ? sum > target : sum >= target; };
    unsigned low = ~0u, high = 0;
    for_chunks([&](int, int id) {
      const unsigned key = at(id).key;
      low = key != 0 && key < low ? key : low;
      high = key > high ? key : high;
    });
    low = smallest_in_warp(low);
    high = largest_in_warp(high);
    // Finds the largest key for which the items with that key or a larger one reach the target. `low` and `high` are
    // always keys that occur.
    while (low < high) {
      const unsigned middle = low + (high - low) / 2 + 1;
      double sum = 0;
      unsigned up = ~0u, down = 0;
      for_chunks([&](int, int id) {
        const Item item = at(id);
        if (item.key >= middle) {
          sum += counted ? 1.0 : item.weight;
          up = item.key < up ? item.key : up;
        } else {
          down = item.key > down ? item.key : down;
        }
      });
      if (reaches(sum_in_warp(sum))) {
        low = smallest_in_warp(up);
      } else {
        high = largest_in_warp(down);
      }
    }
    // Of several items with this key, takes as many as are needed.
    double before = 0;
    unsigned ties = 0;
    for_chunks([&](int, int id) {
      const Item item = at(id);
      if (item.key > low) before += counted ? 1.0 : item.weight;
      ties += item.key == low;
    });
    before = sum_in_warp(before);
    ties = sum_in_warp(ties);
    unsigned taken = 1;
    if (ties > 1) {
      const double each = counted ? 1.0 : weight_of(value_of(low));
      const double quotient = (target - before) / each;
      taken = quotient >= ties ? ties : quotient > 1 ? static_cast<unsigned>(quotient) : 1;
      while (taken < ties && !reaches(before + taken * each)) ++taken;
      while (taken > 1 && reaches(before + (taken - 1) * each)) --taken;
    }
    return {low, one_of(low, taken)};
  }

  // The `number`-th item with a key, counted from 1.
  CELLERATE_DEVICE int one_of(unsigned key, unsigned number) const {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      unsigned lanes = lanes_where(at(chunk * 32 + thread_index() % 32).key == key);
      const unsigned here = static_cast<unsigned>(count_bits(lanes));
      if (here < number) {
        number -= here;
        continue;
      }
      for (; number > 1; --number) lanes &= lanes - 1;
      return chunk * 32 + lowest_bit(lanes);
    }
    return 0;
  }

  const Logits logits_;
  const int* const times_;
  const Sampling& rules_;
  bool finite_;
  float largest_, top_;  // of the logits, and of the scores
  float scores_[kHeld ? kChunks : 1];
  Cut cut_{0, outputs};
  float least_ = 0;
  double model_sum_ = 0;  // of e^(logit - largest); 0 while it is not known
};

}  // namespace cellerate::gpu
