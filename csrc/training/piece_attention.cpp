// Dot products and attention in a training step, forward and backward.
//
// The product of two values is a dense layer whose kernel is the second value.
#include <algorithm>
#include <numeric>

#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {
namespace {

using Floats = std::vector<float>;

// Some columns of a matrix whose rows are `stride` numbers apart.
struct Columns {
  int64_t rows, columns, stride;

  // Copies the columns to a dense matrix, or to its transpose, and back.
  void take(const float* from, bool transposed, Floats& to) const {
    to.resize(static_cast<size_t>(rows * columns));
    for_each(transposed, [&](int64_t apart, size_t beside) { to[beside] = from[apart]; });
  }
  void put(const Floats& from, bool transposed, float* to) const {
    for_each(transposed, [&](int64_t apart, size_t beside) { to[apart] = from[beside]; });
  }

 private:
  // Calls each(index in the matrix, index in the copy).
  template <class Each>
  void for_each(bool transposed, const Each& each) const {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column)
        each(row * stride + column,
             static_cast<size_t>(transposed ? column * rows + row : row * columns + column));
    }
  }
};

// The weights of additive attention: one for each feature, or a single one repeated.
Floats spread(const ProgramNode& of, int64_t features) {
  if (of.columns == 1) return Floats(static_cast<size_t>(features), of.kernel[0]);
  return Floats(of.kernel, of.kernel + of.columns);
}

template <class Call>
Call product_of(const float* a, const float* b, int64_t rows, int64_t inputs, int64_t outputs) {
  Call call;
  call.rows = rows;
  call.inputs = inputs;
  call.outputs = outputs;
  call.x = a;
  call.kernel = b;
  return call;
}

}  // namespace

// One of the two values of a dot product, a matrix for each row of the batch.
struct Piece::Factor {
  const float* x;
  Columns matrix;
  bool over_features;  // whether the sum is over its last axis

  int64_t count() const { return over_features ? matrix.rows : matrix.columns; }
  int64_t summed() const { return over_features ? matrix.columns : matrix.rows; }
  int64_t numbers() const { return matrix.rows * matrix.columns; }
};

Piece::Factor Piece::factor(int32_t n, int32_t input) const {
  const ValueShape& read = shape(source(n, input));
  const Columns matrix{read.positions(), read.features, read.features};
  return {value(source(n, input)), matrix, read.steps == 0 || node(n).whole[input] == 2};
}

void Piece::dot(int32_t n) {
  const Factor left = factor(n, 0), right = factor(n, 1);
  Floats a, b;
  for (int64_t row = 0; row < rows_; ++row) {
    left.matrix.take(left.x + row * left.numbers(), !left.over_features, a);
    right.matrix.take(right.x + row * right.numbers(), right.over_features, b);
    auto call = product_of<DenseForward>(a.data(), b.data(), left.count(), left.summed(), right.count());
    call.y = layout_.nodes[n].value + row * left.count() * right.count();
    program_.target_->dense->forward(call);
  }
}

void Piece::dot_back(int32_t n) {
  const Factor left = factor(n, 0), right = factor(n, 1);
  Floats a, b, d_a(static_cast<size_t>(left.numbers())), d_b(static_cast<size_t>(right.numbers()));
  Floats d_left(static_cast<size_t>(rows_ * left.numbers()));
  Floats d_right(static_cast<size_t>(rows_ * right.numbers()));
  for (int64_t row = 0; row < rows_; ++row) {
    left.matrix.take(left.x + row * left.numbers(), !left.over_features, a);
    right.matrix.take(right.x + row * right.numbers(), right.over_features, b);
    auto call = product_of<DenseBackward>(a.data(), b.data(), left.count(), left.summed(), right.count());
    call.d_y = layout_.nodes[n].gradient + row * left.count() * right.count();
    call.d_x = d_a.data();
    call.d_kernel = d_b.data();
    program_.target_->dense->backward(call);
    left.matrix.put(d_a, !left.over_features, d_left.data() + row * left.numbers());
    right.matrix.put(d_b, right.over_features, d_right.data() + row * right.numbers());
  }
  give_all(source(n, 0), d_left);
  give_all(source(n, 1), d_right);
}

void Piece::give_all(int32_t n, const Floats& d) {
  give(n, [&](float* to) { copy(d.data(), to, size(n)); });
}

// An attention head in a row of the batch.
struct Piece::Head {
  int64_t row, number, queries, keys, pairs;
  Columns query, key, value, result;                          // its columns in the matrices of all heads
  int64_t first_query, first_key, first_value, first_result;  // the index of its first number in each
};

template <class Each>
void Piece::for_each_head(int32_t n, const Each& each) const {
  const ValueShape &query = shape(source(n, 0)), &key = shape(source(n, 1)), &value = shape(source(n, 2));
  const int64_t heads = node(n).whole[0], width = key.features / heads, wide = value.features / heads;
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      each(Head{row,
                row * heads + head,
                query.steps,
                key.steps,
                query.steps * key.steps,
                {query.steps, width, query.features},
                {key.steps, width, key.features},
                {key.steps, wide, value.features},
                {query.steps, wide, value.features},
                row * query.steps * query.features + head * width,
                row * key.steps * key.features + head * width,
                row * key.steps * value.features + head * wide,
                row * query.steps * value.features + head * wide});
    }
  }
}

// Calls each(place) for the masked pairs of a query and a key.
template <class Each>
void Piece::for_each_hidden(int32_t n, const Head& head, const Each& each) const {
  const uint8_t *of_keys = mask(source(n, 3)), *of_queries = mask(source(n, 4));
  const bool causal = node(n).whole[1] != 0;
  if (of_keys == nullptr && of_queries == nullptr && !causal) return;
  for (int64_t place = 0; place < head.pairs; ++place) {
    const int64_t query = place / head.keys, key = place % head.keys;
    if ((causal && key > query) || (of_keys != nullptr && of_keys[head.row * head.keys + key] == 0) ||
        (of_queries != nullptr && of_queries[head.row * head.queries + query] == 0))
      each(place);
  }
}

// Draws the dropout factors of a head's attention weights; returns false without dropout.
bool Piece::drops_weights(int32_t n, const Head& head, Floats& factors) const {
  const float rate = program_.rates_[static_cast<size_t>(n)].inputs;
  if (gradients_ == nullptr || rate == 0) return false;
  factors.resize(static_cast<size_t>(head.pairs));
  Draws drawn = draws(n, node(n).whole[0] * head.pairs);
  drawn.first += head.number * head.pairs;
  program_.target_->training->draw_factors(drawn, rate, factors.data(), head.pairs);
  return true;
}

void Piece::attend(int32_t n) {
  const ProgramNode& of = node(n);
  const TrainingKernels& kernels = *program_.target_->training;
  const bool additive = of.kernel != nullptr;
  const Floats additive_weights = additive ? spread(of, shape(source(n, 1)).features) : Floats();
  Floats q, k, v, factors, dropped, out, spare;
  for_each_head(n, [&](const Head& head) {
    head.query.take(value(source(n, 0)) + head.first_query, false, q);
    head.key.take(value(source(n, 1)) + head.first_key, !additive, k);
    head.value.take(value(source(n, 2)) + head.first_value, false, v);
    float* weights = layout_.nodes[n].kept;
    if (weights == nullptr) spare.resize(static_cast<size_t>(head.pairs));
    weights = weights == nullptr ? spare.data() : weights + head.number * head.pairs;
    const int64_t width = head.key.columns;
    if (additive) {
      for (int64_t t = 0; t < head.queries; ++t)
        kernels.additive_scores(additive_weights.data(), q.data() + t * width, k.data(),
                                weights + t * head.keys, head.keys, width);
    } else {
      auto call = product_of<DenseForward>(q.data(), k.data(), head.queries, width, head.keys);
      call.y = weights;
      program_.target_->dense->forward(call);
    }
    for (int64_t i = 0; of.number != 1 && i < head.pairs; ++i) weights[i] *= of.number;
    // Like Keras, subtract 1e9 from masked scores: if all keys are masked, all get the same weight.
    for_each_hidden(n, head, [&](int64_t place) { weights[place] -= 1e9f; });
    kernels.normalize(Normalizer::kSoftmax, weights, head.queries, head.keys);
    if (of.whole[2] != 0) for_each_hidden(n, head, [&](int64_t place) { weights[place] = 0; });
    const float* taken = weights;
    if (drops_weights(n, head, factors)) {
      dropped.resize(factors.size());
      kernels.multiply(weights, factors.data(), dropped.data(), head.pairs);
      taken = dropped.data();
    }
    out.resize(static_cast<size_t>(head.queries * head.value.columns));
    auto call = product_of<DenseForward>(taken, v.data(), head.queries, head.keys, head.value.columns);
    call.y = out.data();
    program_.target_->dense->forward(call);
    head.result.put(out, false, layout_.nodes[n].value + head.first_result);
  });
}

void Piece::attend_back(int32_t n) {
  const ProgramNode& of = node(n);
  const TrainingKernels& kernels = *program_.target_->training;
  const bool additive = of.kernel != nullptr;
  const auto floats = [](int64_t count) { return Floats(static_cast<size_t>(count)); };
  Floats d_query = floats(size(source(n, 0))), d_key = floats(size(source(n, 1))),
         d_value = floats(size(source(n, 2)));
  const Floats additive_weights = additive ? spread(of, shape(source(n, 1)).features) : Floats();
  Floats d_additive = floats(static_cast<int64_t>(additive_weights.size()));
  Floats q, k, v, d_out, factors, dropped, d_weights, d_q, d_k, d_v;
  for_each_head(n, [&](const Head& head) {
    const int64_t width = head.key.columns, wide = head.value.columns;
    head.query.take(value(source(n, 0)) + head.first_query, false, q);
    head.key.take(value(source(n, 1)) + head.first_key, !additive, k);
    head.value.take(value(source(n, 2)) + head.first_value, false, v);
    head.result.take(layout_.nodes[n].gradient + head.first_result, false, d_out);
    const float* weights = layout_.nodes[n].kept + head.number * head.pairs;
    const bool drops = drops_weights(n, head, factors);
    d_weights.resize(static_cast<size_t>(head.pairs));
    d_q.assign(q.size(), 0.0f);
    d_k.assign(k.size(), 0.0f);
    d_v.resize(v.size());
    dropped.resize(drops ? factors.size() : 0);
    if (drops) kernels.multiply(weights, factors.data(), dropped.data(), head.pairs);
    auto values =
        product_of<DenseBackward>(drops ? dropped.data() : weights, v.data(), head.queries, head.keys, wide);
    values.d_y = d_out.data();
    values.d_x = d_weights.data();
    values.d_kernel = d_v.data();
    program_.target_->dense->backward(values);
    if (drops) kernels.multiply(d_weights.data(), factors.data(), d_weights.data(), head.pairs);
    kernels.normalize_back(Normalizer::kSoftmax, weights, d_weights.data(), d_weights.data(), head.queries,
                           head.keys);
    // Keras overwrites the scores of a masked query, so their gradient is 0.
    if (source(n, 4) >= 0)
      for_each_hidden(n, head, [&](int64_t place) { d_weights[static_cast<size_t>(place)] = 0; });
    for (float& each : d_weights) each *= of.number;
    if (additive) {
      for (int64_t t = 0; t < head.queries; ++t)
        kernels.additive_back(additive_weights.data(), q.data() + t * width, k.data(),
                              d_weights.data() + t * head.keys, d_q.data() + t * width, d_k.data(),
                              d_additive.data(), head.keys, width);
    } else {
      auto scores = product_of<DenseBackward>(q.data(), k.data(), head.queries, width, head.keys);
      scores.d_y = d_weights.data();
      scores.d_x = d_q.data();
      scores.d_kernel = d_k.data();
      program_.target_->dense->backward(scores);
    }
    head.query.put(d_q, false, d_query.data() + head.first_query);
    head.key.put(d_k, !additive, d_key.data() + head.first_key);
    head.value.put(d_v, false, d_value.data() + head.first_value);
  });
  if (float* to = gradient_of(n, 0)) {
    if (of.columns == 1) d_additive[0] = std::accumulate(d_additive.begin(), d_additive.end(), 0.0f);
    copy(d_additive.data(), to, of.columns);
  }
  give_all(source(n, 0), d_query);
  give_all(source(n, 1), d_key);
  give_all(source(n, 2), d_value);
}

}  // namespace cellerate
