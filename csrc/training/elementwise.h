// The arithmetic of a training step, number by number and row by row, forward and backward.
#pragma once

#include "engine/program_operations.h"
#include "training/kernels.h"

namespace cellerate::CELLERATE_TARGET {

// Calls function(first, end) for vectors that cover [0, count).
template <class Function>
void for_vectors(Index count, const Function& function) {
  for (Index first = 0; first < count; first += kLanes) function(first, smaller(first + kLanes, count));
}

inline F load_at(const float* p, Index first, Index end) {
  return load_upto<Storage::kFloat32>(p, first, end);
}
inline void store_at(float* p, F x, Index first, Index end) {
  store_upto<Storage::kFloat32>(p, x, first, end);
}

inline bool derivative_needs_input(const Activation& of) { return !derivative_from_value(of); }

inline void activate_all(const Activation& of, const float* x, float* y, Index count) {
  for_vectors(count,
              [&](Index first, Index end) { store_at(y, activate(of, load_at(x, first, end)), first, end); });
}

inline void activate_back(const Activation& of, const float* x, const float* y, const float* d_y, float* d_x,
                          Index count) {
  for_vectors(count, [&](Index first, Index end) {
    const F value = load_at(y, first, end);
    const F input = x == nullptr ? value : load_at(x, first, end);
    store_at(d_x, Simd::mul(load_at(d_y, first, end), derivative(of, input, value)), first, end);
  });
}

inline void function_all(Function of, float number, const float* x, float* y, Index count) {
  for_vectors(count, [&](Index first, Index end) {
    store_at(y, function_of(of, number, load_at(x, first, end)), first, end);
  });
}
inline void function_back(Function of, float number, const float* x, const float* y, const float* d_y,
                          float* d_x, Index count) {
  for (Index i = 0; i < count; ++i) d_x[i] = d_y[i] * slope_of(of, number, x[i], y[i]);
}
inline float compare(Function of, float x, float other) { return function_of(of, other, x); }

inline void normalize_all(Normalizer normalizer, float* rows, Index count, Index features) {
  for (Index row = 0; row < count; ++row) normalize(normalizer, rows + row * features, features);
}

inline void normalize_back(Normalizer normalizer, const float* y, const float* d_y, float* d_x, Index count,
                           Index features) {
  const bool softmax = normalizer == Normalizer::kSoftmax;
  for (Index row = 0; row < count; ++row, y += features, d_y += features, d_x += features) {
    double sum = 0;
    for (Index i = 0; i < features; ++i) {
      sum += softmax ? static_cast<double>(y[i]) * static_cast<double>(d_y[i]) : static_cast<double>(d_y[i]);
    }
    const auto whole = static_cast<float>(sum);
    for (Index i = 0; i < features; ++i) {
      d_x[i] = softmax ? y[i] * (d_y[i] - whole) : d_y[i] - expf(y[i]) * whole;
    }
  }
}

// The sum of term(first, end) over a row, lane by lane first, so that it is the same for any division of the rows.
template <class Term>
float sum_of_row(Index features, const Term& term) {
  F sums = set(0.0f);
  for_vectors(features, [&](Index first, Index end) { sums = Simd::add(sums, term(first, end)); });
  float lanes[kLanes];
  Simd::store(lanes, sums);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

inline void layer_norm(const float* x, const float* gamma, const float* beta, float epsilon, float* y,
                       float* moments, Index count, Index features) {
  const auto n = static_cast<float>(features);
  for (Index row = 0; row < count; ++row, x += features, y += features, moments += 2) {
    const float mean =
        sum_of_row(features, [&](Index first, Index end) { return load_at(x, first, end); }) / n;
    const float square = sum_of_row(features, [&](Index first, Index end) {
      // Lanes without a feature do not count.
      const F off = first_lanes(Simd::sub(load_at(x, first, end), set(mean)), lanes_before(first, end));
      return Simd::mul(off, off);
    });
    const float inverse = 1 / __builtin_sqrtf(square / n + epsilon);
    moments[0] = mean;
    moments[1] = inverse;
    for_vectors(features, [&](Index first, Index end) {
      F one = Simd::mul(Simd::sub(load_at(x, first, end), set(mean)), set(inverse));
      if (gamma != nullptr) one = Simd::mul(one, load_at(gamma, first, end));
      if (beta != nullptr) one = Simd::add(one, load_at(beta, first, end));
      store_at(y, one, first, end);
    });
  }
}

inline void layer_norm_back(const float* x, const float* moments, const float* gamma, const float* d_y,
                            float* d_x, float* d_gamma, float* d_beta, Index count, Index features) {
  const auto zero = [&](float* to) {
    if (to != nullptr) std::memset(to, 0, static_cast<size_t>(features) * sizeof(float));
  };
  zero(d_gamma);
  zero(d_beta);
  const auto n = static_cast<float>(features);
  for (Index row = 0; row < count; ++row, x += features, d_y += features, moments += 2) {
    const F mean = set(moments[0]), inverse = set(moments[1]);
    const auto one = [&](Index first, Index end) {
      return Simd::mul(Simd::sub(load_at(x, first, end), mean), inverse);
    };
    const auto of = [&](Index first, Index end) {
      const F d = load_at(d_y, first, end);
      return gamma == nullptr ? d : Simd::mul(d, load_at(gamma, first, end));
    };
    // Lanes without a feature have a gradient of zero.
    const F sum = set(sum_of_row(features, of) / n);
    const F along =
        set(sum_of_row(features,
                       [&](Index first, Index end) { return Simd::mul(of(first, end), one(first, end)); }) /
            n);
    for_vectors(features, [&](Index first, Index end) {
      const F d = load_at(d_y, first, end), at = one(first, end);
      if (d_gamma != nullptr)
        store_at(d_gamma, Simd::add(load_at(d_gamma, first, end), Simd::mul(d, at)), first, end);
      if (d_beta != nullptr) store_at(d_beta, Simd::add(load_at(d_beta, first, end), d), first, end);
      if (d_x == nullptr) return;
      const F left = Simd::sub(Simd::sub(of(first, end), sum), Simd::mul(at, along));
      store_at(d_x, Simd::mul(inverse, left), first, end);
    });
    if (d_x != nullptr) d_x += features;
  }
}

// A hash of 32 bits whose every output bit depends on every input bit.
// Source: C. Wellons, "Prospecting for Hash Functions" (2018), lowbias32.
inline uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

// Calls function(n, drawn) with each of `count` random numbers of 32 bits.
template <class Function>
void with_draws(const Draws& draws, Index count, const Function& function) {
  const auto low = static_cast<uint32_t>(draws.key), high = static_cast<uint32_t>(draws.key >> 32);
  const auto first = static_cast<uint64_t>(draws.first);
  // The upper half of the index becomes part of the key.
  const uint32_t salt = mixed(high + static_cast<uint32_t>(first >> 32) * 0x9e3779b9U);
  const auto start = static_cast<uint32_t>(first);
  for (Index n = 0; n < count; ++n)
    function(n, mixed(mixed((start + static_cast<uint32_t>(n)) ^ low) + salt));
}

// Calls function(n, factor) for each of `count` numbers, with a factor of 0 or 1 / (1 - rate).
template <class Function>
void with_factors(const Draws& draws, float rate, Index count, const Function& function) {
  const auto least = static_cast<uint32_t>(static_cast<double>(rate) * 4294967296.0);
  const float kept = 1 / (1 - rate);
  with_draws(draws, count, [=](Index n, uint32_t drawn) { function(n, drawn >= least ? kept : 0.0f); });
}

// Source: G. Box, M. Muller, "A Note on the Generation of Random Normal Deviates" (1958).
inline void draw_normals(const Draws& draws, float mean, float deviation, float* to, Index count) {
  constexpr float kStep = 1.0f / 16777216, kTurn = 6.2831853f;
  with_draws(draws, count, [=](Index n, uint32_t drawn) {
    const float radius = __builtin_sqrtf(-2 * logf(static_cast<float>((drawn >> 8) + 1) * kStep));
    const float angle = static_cast<float>(mixed(drawn + 0x9e3779b9U) >> 8) * kStep * kTurn;
    to[n] = mean + deviation * radius * cosf(angle);
  });
}

inline void drop(const Draws& draws, float rate, const float* x, float* y, Index count) {
  with_factors(draws, rate, count, [=](Index n, float factor) { y[n] = x[n] * factor; });
}
inline void draw_factors(const Draws& draws, float rate, float* factors, Index count) {
  with_factors(draws, rate, count, [=](Index n, float factor) { factors[n] = factor; });
}

inline void add_all(const float* x, float* to, Index count) {
  for (Index i = 0; i < count; ++i) to[i] += x[i];
}
inline void raise_all(const float* x, float* most, Index count) {
  for (Index i = 0; i < count; ++i) most[i] = x[i] > most[i] || x[i] != x[i] ? x[i] : most[i];
}
inline void raise_back(const float* x, const float* most, float* left, float* d_x, Index count) {
  for (Index i = 0; i < count; ++i) {
    const bool less = x[i] < most[i];
    d_x[i] += less ? 0.0f : left[i];
    left[i] = less ? left[i] : 0.0f;
  }
}
inline void add_squares(const float* x, float* to, Index count) {
  for (Index i = 0; i < count; ++i) to[i] += x[i] * x[i];
}
inline void add_sizes(const float* x, float* to, Index count) {
  for (Index i = 0; i < count; ++i) to[i] += std::fabs(x[i]);
}
inline void multiply_all(const float* x, const float* factors, float* y, Index count) {
  for (Index i = 0; i < count; ++i) y[i] = x[i] * factors[i];
}

inline F additive_at(const float* query, const float* key, Index first, Index end) {
  return hyperbolic_tangent(Simd::add(load_at(query, first, end), load_at(key, first, end)));
}
inline void additive_scores(const float* weights, const float* query, const float* keys, float* scores,
                            Index count, Index features) {
  for (Index s = 0; s < count; ++s, keys += features) {
    scores[s] = sum_of_row(features, [&](Index first, Index end) {
      return Simd::mul(load_at(weights, first, end), additive_at(query, keys, first, end));
    });
  }
}
inline void additive_back(const float* weights, const float* query, const float* keys, const float* d_scores,
                          float* d_query, float* d_keys, float* d_weights, Index count, Index features) {
  for (Index s = 0; s < count; ++s, keys += features, d_keys += features) {
    const F d = set(d_scores[s]);
    for_vectors(features, [&](Index first, Index end) {
      const F x = additive_at(query, keys, first, end);
      const F inner =
          Simd::mul(Simd::mul(d, load_at(weights, first, end)), Simd::sub(set(1.0f), Simd::mul(x, x)));
      store_at(d_query, Simd::add(load_at(d_query, first, end), inner), first, end);
      store_at(d_keys, Simd::add(load_at(d_keys, first, end), inner), first, end);
      store_at(d_weights, Simd::fma(d, x, load_at(d_weights, first, end)), first, end);
    });
  }
}

inline void narrow_all(const float* x, uint16_t* y, Index count) {
  for_vectors(count, [&](Index first, Index end) {
    store_upto<Storage::kBfloat16>(y, load_at(x, first, end), first, end);
  });
}
inline void widen_all(const uint16_t* x, float* y, Index count) {
  for_vectors(count, [&](Index first, Index end) {
    store_at(y, load_upto<Storage::kBfloat16>(x, first, end), first, end);
  });
}

}  // namespace cellerate::CELLERATE_TARGET
