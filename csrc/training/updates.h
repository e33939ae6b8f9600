// Sums of gradients, and the updates of Keras's optimizers.
#pragma once

#include <utility>

#include "training/losses.h"

namespace cellerate::CELLERATE_TARGET {

inline void sum_gradients(float* first, Index stride, Index count, Index begin, Index end) {
  for (Index from = begin; from < end; from += kLanes) {
    const Index to = smaller(from + kLanes, end);
    F sum = load_at(first, from, to);
    for (Index n = 1; n < count; ++n) sum = Simd::add(sum, load_at(first + n * stride, from, to));
    store_at(first, sum, from, to);
  }
}

// -1, 0 or 1.
inline F sign_of(F x) {
  const F zero = set(0.0f), one = set(1.0f);
  return Simd::sub(Simd::where_greater(x, zero, one, zero), Simd::where_greater(zero, x, one, zero));
}

inline F size_of(F x) { return Simd::max(x, Simd::sub(set(0.0f), x)); }

inline F to_power(F x, float exponent) {
  if (exponent == 0.5f) return Simd::square_root(x);
  float lanes[kLanes];
  Simd::store(lanes, x);
  for (float& lane : lanes) lane = powf(lane, exponent);
  return Simd::load(lanes);
}

// One vector of an update.
struct UpdateVector {
  F w, g;
  F square;  // the squared gradient; for Adamax its absolute value
  F a, b, c;
};

inline void update_vector(UpdateKind kind, const float (&numbers)[kMostNumbers], bool has_b, bool has_c,
                          UpdateVector& v) {
  const auto moments = [&] {
    v.a = Simd::add(v.a, Simd::mul(Simd::sub(v.g, v.a), set(numbers[1])));
    v.b = Simd::add(v.b, Simd::mul(Simd::sub(v.square, v.b), set(numbers[2])));
  };
  switch (kind) {
    case UpdateKind::kMomentum:
    case UpdateKind::kNesterov: {
      const F step = Simd::mul(v.g, set(numbers[0]));
      v.a = Simd::sub(Simd::mul(v.a, set(numbers[1])), step);
      v.w = Simd::add(v.w,
                      kind == UpdateKind::kMomentum ? v.a : Simd::sub(Simd::mul(v.a, set(numbers[1])), step));
      return;
    }
    case UpdateKind::kAdam:
    case UpdateKind::kAmsgrad: {
      moments();
      if (kind == UpdateKind::kAmsgrad) v.c = Simd::max(v.c, v.b);
      const F root = Simd::square_root(kind == UpdateKind::kAmsgrad ? v.c : v.b);
      v.w = Simd::sub(v.w, Simd::div(Simd::mul(v.a, set(numbers[0])), Simd::add(root, set(numbers[3]))));
      return;
    }
    case UpdateKind::kRmsprop: {
      v.a = Simd::add(Simd::mul(set(numbers[1]), v.a), Simd::mul(set(1 - numbers[1]), v.square));
      F below = Simd::add(v.a, set(numbers[2]));
      if (has_c) {
        v.c = Simd::add(Simd::mul(set(numbers[1]), v.c), Simd::mul(set(1 - numbers[1]), v.g));
        below = Simd::add(Simd::sub(v.a, Simd::mul(v.c, v.c)), set(numbers[2]));
      }
      F step = Simd::div(Simd::mul(set(numbers[0]), v.g), Simd::square_root(below));
      if (has_b) step = v.b = Simd::add(Simd::mul(set(numbers[3]), v.b), step);
      v.w = Simd::sub(v.w, step);
      return;
    }
    case UpdateKind::kAdagrad:
      v.a = Simd::add(v.a, v.square);
      v.w = Simd::sub(v.w, Simd::div(Simd::mul(set(numbers[0]), v.g),
                                     Simd::square_root(Simd::add(v.a, set(numbers[1])))));
      return;
    case UpdateKind::kNadam: {
      const F now = Simd::mul(v.g, set(numbers[1]));
      v.a = Simd::add(v.a, Simd::mul(Simd::sub(v.g, v.a), set(numbers[2])));
      v.b = Simd::add(v.b, Simd::mul(Simd::sub(v.square, v.b), set(numbers[3])));
      const F root = Simd::square_root(Simd::mul(v.b, set(numbers[4])));
      v.w = Simd::sub(
          v.w, Simd::div(Simd::add(Simd::mul(v.a, set(numbers[0])), now), Simd::add(root, set(numbers[5]))));
      return;
    }
    case UpdateKind::kLion: {
      const F way = Simd::add(Simd::mul(v.a, set(numbers[1])), Simd::mul(v.g, set(1 - numbers[1])));
      v.w = Simd::sub(v.w, Simd::mul(sign_of(way), set(numbers[0])));
      v.a = Simd::add(Simd::mul(v.a, set(numbers[2])), Simd::mul(v.g, set(1 - numbers[2])));
      return;
    }
    case UpdateKind::kAdamax: {
      v.a = Simd::add(v.a, Simd::mul(Simd::sub(v.g, v.a), set(numbers[1])));
      v.b = Simd::max(Simd::mul(set(numbers[2]), v.b), v.square);
      const F below = Simd::mul(set(numbers[3]), Simd::add(v.b, set(numbers[4])));
      v.w = Simd::sub(v.w, Simd::div(Simd::mul(set(numbers[0]), v.a), below));
      return;
    }
    case UpdateKind::kAdadelta: {
      const auto mean = [&](F before, F now) {
        return Simd::add(Simd::mul(set(numbers[1]), before), Simd::mul(set(1 - numbers[1]), now));
      };
      const auto root = [&](F x) { return Simd::square_root(Simd::add(x, set(numbers[2]))); };
      v.a = mean(v.a, v.square);
      const F ratio = Simd::div(root(v.b), root(v.a));
      v.b = mean(v.b, Simd::mul(Simd::mul(ratio, ratio), v.square));
      v.w = Simd::sub(v.w, Simd::mul(set(numbers[0]), Simd::mul(ratio, v.g)));
      return;
    }
    case UpdateKind::kFtrl: {
      const F next = Simd::add(v.a, v.square), power = to_power(next, numbers[1]), rate = set(numbers[0]);
      const F moved = Simd::div(Simd::sub(power, to_power(v.a, numbers[1])), rate);
      const F gradient = Simd::add(v.g, Simd::mul(set(numbers[4]), v.w));
      v.a = next;
      v.b = Simd::add(v.b, Simd::sub(gradient, Simd::mul(moved, v.w)));
      v.w = Simd::div(Simd::sub(clamp(v.b, -numbers[2], numbers[2]), v.b),
                      Simd::add(Simd::div(power, rate), set(numbers[3])));
      return;
    }
    default:
      v.w = Simd::sub(v.w, Simd::mul(v.g, set(numbers[0])));
      return;
  }
}

// Updates the vector that `at` loads and stores: a whole one, or the last one with fewer numbers.
template <class Vectors>
void update_at(UpdateKind kind, const UpdateRows& rows, const Vectors& at) {
  const auto slot = [&](int n) { return rows.slots[n] == nullptr ? set(0.0f) : at.load(rows.slots[n]); };
  UpdateVector v{at.load(rows.weight),
                 rows.gradient == nullptr ? set(0.0f) : at.load(rows.gradient),
                 set(0.0f),
                 slot(0),
                 slot(1),
                 slot(2)};
  v.g = Simd::mul(v.g, set(rows.scale));
  if (rows.most != 0) v.g = clamp(v.g, -rows.most, rows.most);
  const bool sizes = kind == UpdateKind::kAdamax;
  const float scale = sizes ? std::fabs(rows.scale) : rows.scale * rows.scale;
  v.square = rows.squares != nullptr ? Simd::mul(at.load(rows.squares), set(scale))
             : sizes                 ? size_of(v.g)
                                     : Simd::mul(v.g, v.g);
  if (rows.decay != 0) v.w = Simd::sub(v.w, Simd::mul(v.w, set(rows.decay)));
  update_vector(kind, rows.numbers, rows.slots[1] != nullptr, rows.slots[2] != nullptr, v);
  if (rows.average != nullptr) {
    const F before = at.load(rows.average);
    const F average = Simd::add(Simd::mul(before, set(rows.kept)), Simd::mul(v.w, set(1 - rows.kept)));
    at.store(rows.average, average);
    if (rows.averaged) v.w = average;
  }
  at.store(rows.weight, v.w);
  const F slots[] = {v.a, v.b, v.c};
  for (int n = 0; n < kMostSlots; ++n) {
    if (rows.slots[n] != nullptr) at.store(rows.slots[n], slots[n]);
  }
}

// Updates all whole vectors; returns the index of the first number after them.
template <UpdateKind kKind>
Index update_whole(const UpdateRows& passed) {
  // A local copy, which the stores cannot alias: so the compiler need not reload its fields for each vector.
  const UpdateRows rows = passed;
  struct Whole {
    Index first;
    F load(const float* from) const { return Simd::load(from + first); }
    void store(float* to, F x) const { Simd::store(to + first, x); }
  };
  Index first = rows.begin;
  for (; first + kLanes <= rows.end; first += kLanes) update_at(kKind, rows, Whole{first});
  return first;
}
// Instantiated for each kind, so that the loop over vectors does not branch on the kind.
template <int... kKinds>
Index update_whole(UpdateKind kind, const UpdateRows& rows, std::integer_sequence<int, kKinds...>) {
  constexpr Index (*kUpdates[])(const UpdateRows&) = {update_whole<static_cast<UpdateKind>(kKinds)>...};
  return kUpdates[static_cast<int>(kind)](rows);
}

inline void update_rows(UpdateKind kind, const UpdateRows& rows) {
  const WithoutDenormals without_denormals;
  struct Last {
    Index first, end;
    F load(const float* from) const { return load_at(from, first, end); }
    void store(float* to, F x) const { store_at(to, x, first, end); }
  };
  const auto kinds = std::make_integer_sequence<int, static_cast<int>(UpdateKind::kCount)>();
  const Index first = update_whole(kind, rows, kinds);
  if (first < rows.end) update_at(kind, rows, Last{first, rows.end});
}

}  // namespace cellerate::CELLERATE_TARGET
