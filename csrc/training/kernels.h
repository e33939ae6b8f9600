// The arithmetic of a training step besides LSTM and dense layers, element by element or row by row.
//
// Plain pointers only, because kernels compiled for other instruction sets include this header.
#pragma once

#include <cstdint>

#include "cells/activation.h"
#include "engine/program.h"
#include "training/rules.h"

namespace cellerate {

// Random numbers for one call of a layer. Number n is the same for every division of the rows into pieces.
struct Draws {
  uint64_t key = 0;
  int64_t first = 0;  // the index of the first number
};

// Some positions of an output, with their targets or ids.
struct LossRows {
  int64_t positions = 0, features = 0;
  const float* outputs = nullptr;  // (positions, features)
  const float* targets = nullptr;  // (positions, features), or (positions, features / levels) for quantiles
  const int32_t* ids = nullptr;    // (positions), in place of targets
  const float* weights = nullptr;  // (positions), or null for ones
  float* d_outputs = nullptr;      // the gradient of the weighted sum is written here, unless null
};

// A measure over some positions.
struct MeasureSums {
  double total = 0, count = 0;
};

// Part [begin, end) of one weight.
struct UpdateRows {
  int64_t begin = 0, end = 0;
  float* weight = nullptr;
  float* slots[kMostSlots] = {};
  const float* gradient = nullptr;  // null for zeros
  const float* squares =
      nullptr;      // sums of squares, used as the squared gradient (Adamax: of |g|, as |g|), or null
  float scale = 1;  // multiplies the gradient; its square multiplies the squares (Adamax: its size)
  float most = 0;   // clips each element to [-most, most], if not 0
  float decay = 0;  // the share of itself that the weight loses first
  float* average = nullptr;  // the moving average of the weight, or null
  float kept = 0;            // the share of the old average that is kept
  bool averaged = false;     // whether the update ends by setting the weight to its average
  float numbers[kMostNumbers] = {};
};

struct TrainingKernels {
  bool (*derivative_needs_input)(const Activation& activation);
  void (*activate)(const Activation& activation, const float* x, float* y, int64_t count);
  // d_x from d_y; x may be null if it is not needed. d_x may be d_y.
  void (*activate_back)(const Activation& activation, const float* x, const float* y, const float* d_y,
                        float* d_x, int64_t count);
  // y = function(x), d_x from d_y; `compare` gives 1 or 0.
  void (*function)(Function of, float number, const float* x, float* y, int64_t count);
  void (*function_back)(Function of, float number, const float* x, const float* y, const float* d_y,
                        float* d_x, int64_t count);
  float (*compare)(Function of, float x, float other);
  void (*normalize)(Normalizer normalizer, float* rows, int64_t count, int64_t features);
  void (*normalize_back)(Normalizer normalizer, const float* y, const float* d_y, float* d_x, int64_t count,
                         int64_t features);
  // Layer normalisation; `moments` keeps the mean and the inverse deviation of each row.
  void (*layer_norm)(const float* x, const float* gamma, const float* beta, float epsilon, float* y,
                     float* moments, int64_t count, int64_t features);
  // d_x, d_gamma and d_beta may be null.
  void (*layer_norm_back)(const float* x, const float* moments, const float* gamma, const float* d_y,
                          float* d_x, float* d_gamma, float* d_beta, int64_t count, int64_t features);
  // y = x, each number kept with the probability 1 - rate and divided by it, else 0. y may be x.
  void (*drop)(const Draws& draws, float rate, const float* x, float* y, int64_t count);
  // Only the factors of drop().
  void (*draw_factors)(const Draws& draws, float rate, float* factors, int64_t count);
  // Normal numbers with a mean and a deviation.
  void (*draw_normals)(const Draws& draws, float mean, float deviation, float* to, int64_t count);
  void (*add)(const float* x, float* to, int64_t count);
  // most = max(most, x), where NaN is the largest.
  void (*raise)(const float* x, float* most, int64_t count);
  // Where x is not less than the maximum, moves the gradient that is left of the maximum to d_x.
  void (*raise_back)(const float* x, const float* most, float* left, float* d_x, int64_t count);
  // The scores of a query with `count` keys: Σ weights·tanh(query + key).
  void (*additive_scores)(const float* weights, const float* query, const float* keys, float* scores,
                          int64_t count, int64_t features);
  // Adds to the gradients of the query, the keys and the weights.
  void (*additive_back)(const float* weights, const float* query, const float* keys, const float* d_scores,
                        float* d_query, float* d_keys, float* d_weights, int64_t count, int64_t features);
  void (*add_squares)(const float* x, float* to, int64_t count);
  void (*add_sizes)(const float* x, float* to, int64_t count);
  void (*multiply)(const float* x, const float* factors, float* y, int64_t count);
  // Rounds to bfloat16, ties to even; and widens bfloat16 to float32.
  void (*narrow)(const float* x, uint16_t* y, int64_t count);
  void (*widen)(const uint16_t* x, float* y, int64_t count);

  // Returns the weighted sum of the loss.
  double (*loss)(const Loss& loss, const LossRows& rows);
  // Measures positions whose weight is not 0; with Measure::weighted, multiplies each by its weight.
  MeasureSums (*measure)(const Measure& measure, const LossRows& rows);

  // Adds `count` arrays, `stride` numbers apart, into the first one.
  void (*sum)(float* first, int64_t stride, int64_t count, int64_t begin, int64_t end);
  void (*update)(UpdateKind kind, const UpdateRows& rows);
};

}  // namespace cellerate
