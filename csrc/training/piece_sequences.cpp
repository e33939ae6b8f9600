// Operations across the steps of a row in a training step: windows, pooling and reductions, forward and backward.
//
// A value with three axes, (N, T, F), holds its N sequences one after the other.
#include <algorithm>

#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {
namespace {

using Sums = std::vector<double>;

int64_t sequences_of(const ValueShape& shape) { return std::max<int64_t>(shape.sequences, 1); }

}  // namespace

// The steps in the windows of a node.
struct Piece::Windows {
  int64_t size, strides, dilation, before, sequences, steps, count, features;

  // The step of the sequence at a tap of a window, or -1 in the padding.
  int64_t step(int64_t window, int64_t tap) const {
    const int64_t at = window * strides + tap * dilation - before;
    return at < 0 || at >= steps ? -1 : at;
  }
  // Calls each(window, tap, step) for all taps that are not padding; windows and steps count across sequences.
  template <class Each>
  void for_each(const Each& each) const {
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      for (int64_t window = 0; window < count; ++window) {
        for (int64_t tap = 0; tap < size; ++tap) {
          const int64_t at = step(window, tap);
          if (at >= 0) each(sequence * count + window, tap, sequence * steps + at);
        }
      }
    }
  }
};

Piece::Windows Piece::windows(int32_t n) const {
  const ValueShape &own = shape(n), &read = shape(source(n));
  const int64_t each = sequences_of(read);
  const int64_t* whole = node(n).whole;
  return {whole[0],     whole[1],          whole[2],         batch_.begins[n],
          rows_ * each, read.steps / each, own.steps / each, read.features};
}

void Piece::gather_windows(int32_t n) {
  const Windows of = windows(n);
  const float* x = value(source(n));
  float* to = layout_.nodes[n].value;
  std::fill_n(to, size(n), 0.0f);
  of.for_each([&](int64_t window, int64_t tap, int64_t step) {
    copy(x + step * of.features, to + (window * of.size + tap) * of.features, of.features);
  });
}

void Piece::scatter_windows(int32_t n, float* to) const {
  const Windows of = windows(n);
  const float* d = layout_.nodes[n].gradient;
  std::fill_n(to, size(source(n)), 0.0f);
  of.for_each([&](int64_t window, int64_t tap, int64_t step) {
    program_.target_->training->add(d + (window * of.size + tap) * of.features, to + step * of.features,
                                    of.features);
  });
}

void Piece::pool(int32_t n) {
  const Windows of = windows(n);
  const float* x = value(source(n));
  float* to = layout_.nodes[n].value;
  const bool mean = node(n).op == ProgramOp::kAveragePool;
  const TrainingKernels& kernels = *program_.target_->training;
  std::vector<int64_t> found(static_cast<size_t>(of.sequences * of.count));
  of.for_each([&](int64_t window, int64_t, int64_t step) {
    const float* from = x + step * of.features;
    float* most = to + window * of.features;
    if (found[static_cast<size_t>(window)]++ == 0) return copy(from, most, of.features);
    mean ? kernels.add(from, most, of.features) : kernels.raise(from, most, of.features);
  });
  for (int64_t place = 0; mean && place < size(n); ++place)
    to[place] /= static_cast<float>(found[static_cast<size_t>(place / of.features)]);
}

void Piece::pool_back(int32_t n, float* to) const {
  const Windows of = windows(n);
  const TrainingKernels& kernels = *program_.target_->training;
  const float *x = value(source(n)), *most = layout_.nodes[n].value;
  const bool mean = node(n).op == ProgramOp::kAveragePool;
  // For a maximum, the gradient of each window that no step has received yet; for a mean, the share of each step.
  std::vector<float> left(static_cast<size_t>(size(n)));
  copy(layout_.nodes[n].gradient, left.data(), size(n));
  if (mean) {
    std::vector<int64_t> found(static_cast<size_t>(of.sequences * of.count));
    of.for_each([&](int64_t window, int64_t, int64_t) { ++found[static_cast<size_t>(window)]; });
    for (int64_t i = 0; i < size(n); ++i)
      left[static_cast<size_t>(i)] /= static_cast<float>(found[static_cast<size_t>(i / of.features)]);
  }
  std::fill_n(to, size(source(n)), 0.0f);
  of.for_each([&](int64_t window, int64_t, int64_t step) {
    const int64_t place = window * of.features, read = step * of.features;
    if (mean) return kernels.add(left.data() + place, to + read, of.features);
    kernels.raise_back(x + read, most + place, left.data() + place, to + read, of.features);
  });
}

// The shape (outer, steps, features) of the input of an operation along an axis; `steps` is that axis.
struct Piece::Along {
  int64_t outer, steps, features;
};

Piece::Along Piece::along(int32_t n) const {
  const ValueShape& read = shape(source(n));
  if (batch_.begins[n] != 0) return {positions(source(n)), read.features, 1};
  const int64_t sequences = sequences_of(read);
  return {rows_ * sequences, read.positions() / sequences, read.features};
}

void Piece::reduce(int32_t n) {
  const Along axis = along(n);
  const ProgramOp op = node(n).op;
  const bool sums_up = op == ProgramOp::kSum || op == ProgramOp::kMean, least = op == ProgramOp::kMin;
  const double share = op == ProgramOp::kMean ? 1 / static_cast<double>(axis.steps) : 1;
  const float* x = value(source(n));
  float* to = layout_.nodes[n].value;
  Sums sums(sums_up ? static_cast<size_t>(axis.features) : 0);
  for (int64_t part = 0; part < axis.outer; ++part, to += axis.features) {
    if (!sums_up) copy(x, to, axis.features);
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t step = 0; step < axis.steps; ++step, x += axis.features) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(x[i]);
      for (int64_t i = 0; !sums_up && i < axis.features; ++i) {
        if ((least ? x[i] < to[i] : x[i] > to[i]) || x[i] != x[i]) to[i] = x[i];
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<float>(sums[i] * share);
  }
}

void Piece::reduce_back(int32_t n, float* to) const {
  const Along axis = along(n);
  const ProgramOp op = node(n).op;
  const bool sums_up = op == ProgramOp::kSum || op == ProgramOp::kMean;
  const float *d = layout_.nodes[n].gradient, *x = value(source(n)), *most = layout_.nodes[n].value;
  for (int64_t part = 0; part < axis.outer * axis.features; ++part) {
    const int64_t i = part % axis.features;
    const int64_t first = part / axis.features * axis.steps * axis.features + i;
    int64_t shares = op == ProgramOp::kSum ? 1 : axis.steps;
    // Equal extremes share the gradient, as in kMaxOverTime.
    const auto has = [&](int64_t step) { return sums_up || x[first + step * axis.features] == most[part]; };
    if (!sums_up) {
      shares = 0;
      for (int64_t step = 0; step < axis.steps; ++step) shares += has(step);
    }
    for (int64_t step = 0; step < axis.steps; ++step)
      to[first + step * axis.features] = has(step) ? d[part] / static_cast<float>(shares) : 0;
  }
}

// Softmax along an axis; or, with `d`, its gradient, where `from` is the result and `d` the gradient of the result.
void Piece::normalize_along(int32_t n, const float* from, const float* d, float* to) const {
  const Along axis = along(n);
  const TrainingKernels& kernels = *program_.target_->training;
  std::vector<float> line(static_cast<size_t>(axis.steps)), d_line(line.size());
  for (int64_t part = 0; part < axis.outer * axis.features; ++part) {
    const int64_t first = part / axis.features * axis.steps * axis.features + part % axis.features;
    for (int64_t step = 0; step < axis.steps; ++step) {
      line[static_cast<size_t>(step)] = from[first + step * axis.features];
      if (d != nullptr) d_line[static_cast<size_t>(step)] = d[first + step * axis.features];
    }
    if (d == nullptr) {
      kernels.normalize(Normalizer::kSoftmax, line.data(), 1, axis.steps);
    } else {
      kernels.normalize_back(Normalizer::kSoftmax, line.data(), d_line.data(), d_line.data(), 1, axis.steps);
    }
    const std::vector<float>& result = d == nullptr ? line : d_line;
    for (int64_t step = 0; step < axis.steps; ++step)
      to[first + step * axis.features] = result[static_cast<size_t>(step)];
  }
}

}  // namespace cellerate
