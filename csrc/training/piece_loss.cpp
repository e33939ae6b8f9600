// The rows of a batch that a thread takes through a whole step: the losses and the measures.
#include <algorithm>
#include <numeric>

#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {

void Piece::take_losses(TrainingResult& result) {
  for (size_t head = 0; head < program_.rules_.heads.size(); ++head)
    take_loss(head, result.heads.emplace_back());
}

void Piece::take_loss(size_t number, HeadResult& result) {
  const LossHead& head = program_.rules_.heads[number];
  const HeadBatch& part = batch_.heads[number];
  const int32_t out = head.output;
  const int64_t first = first_ * part.positions, positions = rows_ * part.positions;
  const TrainingKernels& kernels = *program_.target_->training;
  LossRows rows;
  rows.positions = positions;
  rows.features = part.features;
  rows.outputs = value(out);
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
  if (gradients_ == nullptr || !wants_gradient(out)) {
    result.loss = kernels.loss(head.loss, rows);
    return;
  }
  const bool added = reached_[out] != 0;
  rows.d_outputs = added ? layout_.spare : layout_.nodes[out].gradient;
  result.loss = kernels.loss(head.loss, rows);
  if (program_.rules_.heads.size() > 1) {
    const auto scale = static_cast<float>(head.factor * program_.scale_of(batch_, number));
    for (int64_t i = 0; i < size(out); ++i) rows.d_outputs[i] *= scale;
  }
  if (added) kernels.add(rows.d_outputs, layout_.nodes[out].gradient, size(out));
  reached_[out] = 1;
}

}  // namespace cellerate
