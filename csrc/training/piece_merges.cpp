// Merges, which make one value of several, in a training step: forward and backward.
#include <algorithm>

#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {

void Piece::merge(int32_t n) {
  const ProgramNode& of = node(n);
  float* to = layout_.nodes[n].value;
  const TrainingKernels& kernels = *program_.target_->training;
  if (of.op == ProgramOp::kConcatenate) {
    int64_t begin = 0;
    for (int32_t input = 0; input < of.input_count; ++input) {
      const Joined part = joined(n, input);
      for (int64_t place = 0; place < part.places; ++place)
        copy(value(source(n, input)) + place * part.width, to + place * part.stride + begin, part.width);
      begin += part.width;
    }
    return;
  }
  std::vector<float> buffers[3];
  const float* first = stretched(n, 0, buffers[0]);
  if (of.op == ProgramOp::kChoose) {
    const float *yes = stretched(n, 1, buffers[1]), *no = stretched(n, 2, buffers[2]);
    for (int64_t i = 0; i < size(n); ++i) to[i] = first[i] != 0 ? yes[i] : no[i];
    return;
  }
  copy(first, to, size(n));
  for (int32_t input = 1; input < of.input_count; ++input) {
    const float* other = stretched(n, input, buffers[1]);
    if (of.op == ProgramOp::kMultiply) {
      kernels.multiply(to, other, to, size(n));
    } else if (of.op == ProgramOp::kMaximum) {
      kernels.raise(other, to, size(n));
    } else if (of.op == ProgramOp::kAdd || of.op == ProgramOp::kAverage) {
      kernels.add(other, to, size(n));
    } else {
      join(of, other, to, size(n));
    }
  }
  if (of.op == ProgramOp::kAverage) {
    for (int64_t i = 0; i < size(n); ++i) to[i] /= static_cast<float>(of.input_count);
  }
}

// The less common merges.
void Piece::join(const ProgramNode& of, const float* other, float* to, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    const float x = to[i], y = other[i];
    switch (of.op) {
      case ProgramOp::kSubtract:
        to[i] = x - y;
        break;
      case ProgramOp::kDivide:
        to[i] = x / y;
        break;
      case ProgramOp::kMinimum:
        to[i] = x < y || x != x ? x : y;
        break;
      default:
        to[i] = program_.target_->training->compare(of.function(), x, y);
    }
  }
}

Piece::Joined Piece::joined(int32_t n, int32_t input) const {
  const ValueShape &own = shape(n), &read = shape(source(n, input));
  if (read.positions() == own.positions() && read.features != own.features)
    return {positions(n), read.features, own.features};
  const int64_t width = read.positions() * read.features;
  return {rows_, width, own.positions() * own.features};
}

// An input of a merge in the shape of the result: the input itself, or its broadcast copy in `buffer`.
const float* Piece::stretched(int32_t n, int32_t input, std::vector<float>& buffer) const {
  const float* from = value(source(n, input));
  if (!is_stretched(n, input)) return from;
  const int64_t features = shape(n).features, read = shape(source(n, input)).features;
  buffer.resize(static_cast<size_t>(size(n)));
  for (int64_t place = 0; place < positions(n); ++place) {
    const float* row = from + place_read(n, input, place) * read;
    if (read == features) {
      copy(row, buffer.data() + place * features, features);
    } else {
      std::fill_n(buffer.data() + place * features, features, *row);
    }
  }
  return buffer.data();
}

void Piece::merge_back(int32_t n) {
  const ProgramNode& of = node(n);
  const float* d = layout_.nodes[n].gradient;
  int64_t begin = 0;
  std::vector<float> whole;
  for (int32_t input = of.op == ProgramOp::kChoose ? 1 : 0; input < of.input_count; ++input) {
    const int32_t part = source(n, input);
    give(part, [&](float* to) {
      if (of.op == ProgramOp::kConcatenate) {
        const Joined joins = joined(n, input);
        for (int64_t place = 0; place < joins.places; ++place)
          copy(d + place * joins.stride + begin, to + place * joins.width, joins.width);
        return;
      }
      if (!is_stretched(n, input)) return merged_back(n, input, to);
      whole.resize(static_cast<size_t>(size(n)));
      merged_back(n, input, whole.data());
      gather_stretched(n, input, whole.data(), to);
    });
    if (of.op == ProgramOp::kConcatenate) begin += joined(n, input).width;
  }
}

// Sums the gradient in the shape of the result over the positions and features to which the input is broadcast.
void Piece::gather_stretched(int32_t n, int32_t input, const float* whole, float* to) const {
  const int64_t features = shape(n).features, read = shape(source(n, input)).features;
  std::fill_n(to, size(source(n, input)), 0.0f);
  for (int64_t place = 0; place < positions(n); ++place, whole += features) {
    float* row = to + place_read(n, input, place) * read;
    if (read == features) {
      program_.target_->training->add(whole, row, features);
    } else {
      for (int64_t i = 0; i < features; ++i) *row += whole[i];
    }
  }
}

// The gradient of an input of a merge, in the shape of the result.
void Piece::merged_back(int32_t n, int32_t input, float* to) const {
  const ProgramNode& of = node(n);
  const float* y = layout_.nodes[n].value;
  const int64_t count = size(n);
  std::vector<float> buffer;
  copy(layout_.nodes[n].gradient, to, count);
  switch (of.op) {
    case ProgramOp::kMultiply:
      for (int32_t other = 0; other < of.input_count; ++other) {
        if (other != input) program_.target_->training->multiply(to, stretched(n, other, buffer), to, count);
      }
      return;
    case ProgramOp::kAverage:
      for (int64_t i = 0; i < count; ++i) to[i] /= static_cast<float>(of.input_count);
      return;
    case ProgramOp::kSubtract:
      for (int64_t i = 0; input == 1 && i < count; ++i) to[i] = -to[i];
      return;
    case ProgramOp::kDivide: {
      const float* below = stretched(n, 1, buffer);
      for (int64_t i = 0; i < count; ++i) to[i] = input == 0 ? to[i] / below[i] : -to[i] * y[i] / below[i];
      return;
    }
    case ProgramOp::kMaximum:
    case ProgramOp::kMinimum: {
      // Equal extremes share the gradient, as in kMaxOverTime; on TensorFlow the first one gets all of it.
      std::vector<float> shares(static_cast<size_t>(count));
      for (int32_t other = 0; other < of.input_count; ++other) {
        const float* x = stretched(n, other, buffer);
        for (int64_t i = 0; i < count; ++i) shares[static_cast<size_t>(i)] += x[i] == y[i] ? 1.0f : 0.0f;
      }
      const float* x = stretched(n, input, buffer);
      for (int64_t i = 0; i < count; ++i) to[i] = x[i] == y[i] ? to[i] / shares[static_cast<size_t>(i)] : 0;
      return;
    }
    case ProgramOp::kChoose: {
      const float* condition = stretched(n, 0, buffer);
      for (int64_t i = 0; i < count; ++i) {
        if ((condition[i] != 0) != (input == 1)) to[i] = 0;
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace cellerate
