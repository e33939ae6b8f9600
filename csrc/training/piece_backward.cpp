// A piece of a training step: the losses, the measures and backward.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "simd/dispatch.h"
#include "training/crew.h"
#include "training/piece.h"

namespace cellerate {

void Piece::take_losses(TrainingResult& result) {
  for (size_t head = 0; head < program_.rules_.heads.size(); ++head)
    take_loss(head, result.heads.emplace_back());
}

void Piece::take_loss(size_t number, HeadResult& result) {
  const LossHead& head = program_.rules_.heads[number];
  const HeadBatch& part = batch_.heads[number];
  const int32_t out = head.read_by_loss();
  const int64_t first = first_ * part.positions, positions = rows_ * part.positions;
  const TrainingKernels& kernels = *program_.target_->training;
  LossRows rows;
  rows.positions = positions;
  rows.features = part.features;
  rows.outputs = value(head.output);
  if (head.takes_ids()) {
    rows.ids = static_cast<const int32_t*>(part.targets) + first;
  } else {
    rows.targets = static_cast<const float*>(part.targets) + first * head.target_features(part.features);
  }
  std::vector<float> counts, weights;
  result.counted = static_cast<double>(positions);
  if (const uint8_t* of = mask(head.mask)) {
    counts.assign(of, of + positions);
    result.counted = static_cast<double>(std::count(of, of + positions, uint8_t{1}));
  }
  const float* given = part.weights == nullptr ? nullptr : part.weights + first;
  if (given != nullptr && !counts.empty()) {
    weights.resize(counts.size());
    kernels.multiply(given, counts.data(), weights.data(), positions);
  }
  const float* const of_mask = counts.empty() ? nullptr : counts.data();
  const float* const both = weights.empty() ? (given != nullptr ? given : of_mask) : weights.data();
  for (const Measure& measure : head.measures) {
    rows.weights = measure.weighted && given != nullptr ? (measure.masked ? both : given)
                   : measure.masked                     ? of_mask
                                                        : nullptr;
    result.measures.push_back(kernels.measure(measure, rows));
  }
  if (head.by_weight && both != nullptr)
    result.counted = std::accumulate(both, both + positions, 0.0,
                                     [](double sum, float one) { return sum + static_cast<double>(one); });
  rows.weights = both;
  rows.outputs = value(out);
  if (gradients_ == nullptr || !wants_gradient(out)) {
    result.loss = kernels.loss(head.loss, rows);
    return;
  }
  const bool added = reached_[out] != 0;
  rows.d_outputs = added ? layout_.spare : layout_.nodes[out].gradient;
  result.loss = kernels.loss(head.loss, rows);
  if (program_.rules_.heads.size() > 1) {
    const auto scale = static_cast<float>(head.factor * program_.scale_of(batch_, number, result.counted));
    for (int64_t i = 0; i < size(out); ++i) rows.d_outputs[i] *= scale;
  }
  if (added) kernels.add(rows.d_outputs, layout_.nodes[out].gradient, size(out));
  reached_[out] = 1;
}

// Zeroes the gradients of a node on which no output depends.
void Piece::clear_gradients(int32_t n) {
  for (const TrainingProgram::Use& use : program_.uses_) {
    if (use.node != n) continue;
    if (use.by_rows) {
      std::fill_n(layout_.nodes[n].gradient, size(n), 0.0f);
    } else {
      std::fill_n(gradients_ + use.offset, use.squares ? round_up(use.count) + use.count : use.count, 0.0f);
    }
  }
}

void Piece::backward(int32_t n) {
  const TrainingKernels& kernels = *program_.target_->training;
  const ProgramNode& of = node(n);
  const NodeMemory& memory = layout_.nodes[n];
  float* d = memory.gradient;
  const int64_t features = shape(n).features;
  switch (of.op) {
    case ProgramOp::kInput:
      return;
    case ProgramOp::kEmbedding:
      return embedding_back(n, d);
    case ProgramOp::kMasked:
      return give(source(n), [&](float* to) {
        for (int64_t place = 0; place < positions(n); ++place) {
          copy_if(mask(source(n, 1))[place] != 0, d + place * features, to + place * features, features);
        }
      });
    case ProgramOp::kWhere:
      for (const int32_t input : {0, 2}) {
        give(source(n, input), [&](float* to) {
          std::fill_n(to, size(source(n, input)), 0.0f);
          for (int64_t place = 0; place < positions(n); ++place) {
            if ((mask(source(n, 1))[place_read(n, 1, place)] != 0) != (input == 0)) continue;
            kernels.add(d + place * features, to + place_read(n, input, place) * features, features);
          }
        });
      }
      return;
    case ProgramOp::kLstm:
      return backward_lstm(n);
    case ProgramOp::kLstmState:
      return state_back(n);
    case ProgramOp::kBatchNorm:
      return normalize_batch_back(n);
    case ProgramOp::kAffine:
      scale_back(n);
      [[fallthrough]];
    case ProgramOp::kGather:
    case ProgramOp::kCumsum:
      return give(source(n), [&](float* to) { move_back(n, to); });
    case ProgramOp::kDense:
    case ProgramOp::kGroupedDense:
      return backward_dense(n);
    case ProgramOp::kActivation:
      return give(source(n), [&](float* to) {
        of.normalizer != Normalizer::kNone
            ? kernels.normalize_back(of.normalizer, memory.value, d, to, positions(n), features)
            : kernels.activate_back(of.activation, memory.kept, memory.value, d, to, size(n));
      });
    case ProgramOp::kFunction:
      return give(source(n), [&](float* to) {
        kernels.function_back(of.function(), of.number, value(source(n)), memory.value, d, to, size(n));
      });
    case ProgramOp::kLayerNorm: {
      const auto write = [&](float* to) {
        kernels.layer_norm_back(value(source(n)), memory.kept, of.kernel, d, to, gradient_of(n, 0),
                                gradient_of(n, 2), positions(n), features);
      };
      if (!wants_gradient(source(n))) return write(nullptr);
      return give(source(n), write);
    }
    case ProgramOp::kDropout:
    case ProgramOp::kSpatialDropout:
    case ProgramOp::kStepDropout:
    case ProgramOp::kGaussianDropout:
      return give(source(n), [&](float* to) { drop(n, d, to); });
    case ProgramOp::kWindows:
      return give(source(n), [&](float* to) { scatter_windows(n, to); });
    case ProgramOp::kMaxPool:
    case ProgramOp::kAveragePool:
      return give(source(n), [&](float* to) { pool_back(n, to); });
    case ProgramOp::kSum:
    case ProgramOp::kMean:
    case ProgramOp::kMax:
    case ProgramOp::kMin:
      return give(source(n), [&](float* to) { reduce_back(n, to); });
    case ProgramOp::kDot:
      return dot_back(n);
    case ProgramOp::kAttention:
      return attend_back(n);
    case ProgramOp::kSoftmax:
      return give(source(n), [&](float* to) { normalize_along(n, memory.value, d, to); });
    case ProgramOp::kGaussianNoise:
    case ProgramOp::kReshape:
      return give(source(n), [&](float* to) { copy(d, to, size(n)); });
    case ProgramOp::kMeanOverTime:
    case ProgramOp::kMaxOverTime:
    case ProgramOp::kRepeatVector:
    case ProgramOp::kCrop:
    case ProgramOp::kPad:
    case ProgramOp::kFlip:
      return over_time_back(n);
    default:
      return merge_back(n);
  }
}

void Piece::backward_dense(int32_t n) {
  const TrainingKernels& kernels = *program_.target_->training;
  const ProgramNode& of = node(n);
  const NodeMemory& memory = layout_.nodes[n];
  float* d = memory.gradient;
  if (of.normalizer != Normalizer::kNone) {
    kernels.normalize_back(of.normalizer, memory.value, d, d, positions(n), shape(n).features);
  } else if (of.activation != Activation::kLinear) {
    kernels.activate_back(of.activation, memory.kept, memory.value, d, d, size(n));
  }
  std::vector<float> whole, d_whole;
  DenseBackward call;
  call.rows = positions(n);
  call.inputs = shape(source(n)).features;
  call.outputs = of.columns;
  call.x = value(source(n));
  call.kernel = dense_kernel(n, whole);
  call.bias = of.bias;
  call.d_y = d;
  d_whole.resize(whole.size());
  float* const d_kernel = gradient_of(n, 0);
  call.d_kernel = whole.empty() ? d_kernel : d_whole.data();
  call.d_bias = gradient_of(n, 2);
  const auto write = [&](float* to) {
    call.d_x = to;
    program_.target_->dense->backward(call);
  };
  wants_gradient(source(n)) ? give(source(n), write) : write(nullptr);
  if (whole.empty()) return;
  for_each_group(n, [&](int64_t place, int64_t own, int64_t count) {
    copy(d_whole.data() + place, d_kernel + own, count);
  });
}

// The gradients of a trainable scale and offset.
void Piece::scale_back(int32_t n) {
  const int64_t features = shape(n).features;
  const float *x = value(source(n)), *d = layout_.nodes[n].gradient;
  float *const d_scale = gradient_of(n, 0), *const d_offset = gradient_of(n, 2);
  if (d_scale != nullptr) std::fill_n(d_scale, features, 0.0f);
  if (d_offset != nullptr) std::fill_n(d_offset, features, 0.0f);
  for (int64_t place = 0; place < positions(n); ++place, x += features, d += features) {
    for (int64_t i = 0; d_scale != nullptr && i < features; ++i) d_scale[i] += d[i] * x[i];
    if (d_offset != nullptr) program_.target_->training->add(d, d_offset, features);
  }
}

void Piece::move_back(int32_t n, float* to) const {
  const ProgramNode& of = node(n);
  const bool gathers = of.op == ProgramOp::kGather, scales = of.op == ProgramOp::kAffine;
  const int64_t width = gathers ? size(n) / rows_ : shape(n).features, read = size(source(n)) / rows_;
  const float* d = layout_.nodes[n].gradient;
  if (gathers) std::fill_n(to, size(source(n)), 0.0f);
  for (int64_t row = 0; row < size(n) / width; ++row, d += width, to += gathers ? read : width) {
    float sum = 0;
    for (int64_t i = width - 1; i >= 0; --i) {
      if (gathers) {
        to[batch_.gathers[n][i]] += d[i];
      } else {
        to[i] = scales ? d[i] * of.kernel[i] : sum += d[i];
      }
    }
  }
}

void Piece::embedding_back(int32_t n, const float* d) {
  // The LSTM with the lookup has already written this gradient.
  if (program_.lookups_[static_cast<size_t>(n)].active() && !program_.rules_.rows_apart) return;
  const TrainingProgram::Use* use = program_.use_of(static_cast<size_t>(n), 0);
  // Gradients that are summed by id are already in their place.
  if (use == nullptr || use->by_rows) return;
  clear_gradients(n);
  float* table = gradients_ + use->offset;
  const int64_t features = shape(n).features;
  for (int64_t place = 0; place < positions(n); ++place, d += features) {
    float* row = table + ids(source(n))[place] * features;
    program_.target_->training->add(d, row, features);
    if (use->squares) program_.add_apart(d, row + round_up(use->count), features);
  }
}

void Piece::over_time_back(int32_t n) {
  const ProgramNode& of = node(n);
  const int32_t x = source(n);
  const float* d = layout_.nodes[n].gradient;
  const int64_t features = shape(n).features, steps = shape(x).positions();
  const int64_t own_steps = shape(n).positions();
  const uint8_t* counts = of.op == ProgramOp::kMeanOverTime ? mask(source(n, 1)) : nullptr;
  give(x, [&](float* to) {
    std::fill_n(to, size(x), 0.0f);
    for (int64_t row = 0; row < rows_; ++row, to += steps * features, d += own_steps * features) {
      if (of.op == ProgramOp::kMeanOverTime) {
        int64_t live = 0;
        for (int64_t step = 0; step < steps; ++step)
          live += counts == nullptr || counts[row * steps + step] != 0;
        for (int64_t step = 0; step < steps; ++step) {
          if (counts != nullptr && counts[row * steps + step] == 0) continue;
          for (int64_t i = 0; i < features; ++i) to[step * features + i] = d[i] / static_cast<float>(live);
        }
      } else if (of.op == ProgramOp::kMaxOverTime) {
        // Equal maxima share the gradient, as on every backend but torch, where the first maximum gets all of it.
        const float* most = layout_.nodes[n].value + row * features;
        const float* from = value(x) + row * steps * features;
        for (int64_t i = 0; i < features; ++i) {
          int64_t equal = 0;
          for (int64_t step = 0; step < steps; ++step) equal += from[step * features + i] == most[i];
          for (int64_t step = 0; step < steps; ++step) {
            if (from[step * features + i] == most[i])
              to[step * features + i] = d[i] / static_cast<float>(equal);
          }
        }
      } else {
        for (int64_t own = 0; own < own_steps; ++own) {
          const int64_t step = step_read(n, own);
          if (step < 0 || step >= steps) continue;
          for (int64_t i = 0; i < features; ++i) to[step * features + i] += d[own * features + i];
        }
      }
    }
  });
}

}  // namespace cellerate
