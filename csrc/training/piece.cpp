// A piece of a training step: its memory and forward.
#include "training/piece.h"

#include <algorithm>
#include <cstring>

#include "engine/program_table.h"
#include "simd/dispatch.h"

namespace cellerate {
namespace {

constexpr uint8_t kAlways = 1;  // stands for a mask where only its presence counts

bool is_mask(ProgramOp op) { return row(op).gives == ValueKind::kMask; }

}  // namespace

StepLayout::StepLayout(const TrainingProgram& program, const TrainingBatch& batch, int64_t rows,
                       bool training, std::byte* memory)
    : nodes(program.nodes_.size()) {
  Layout layout(memory);
  const auto take = [&](int64_t count) { return layout.take<float>(static_cast<size_t>(count)); };
  int64_t largest = 0;
  NarrowSizes gradients;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ProgramNode& node = program.nodes_[n];
    const ValueShape& shape = batch.shapes[n];
    NodeMemory& to = nodes[n];
    const int64_t positions = rows * shape.positions(), size = positions * shape.features;
    if (node.op == ProgramOp::kInput) continue;
    if (is_mask(node.op)) {
      to.mask = layout.take<uint8_t>(static_cast<size_t>(positions));
      continue;
    }
    if (program.skipped_[n] != 0) continue;
    largest = std::max(largest, size);
    if (node.op == ProgramOp::kLstmState) {
      // The LSTM writes it.
      NodeMemory& lstm = nodes[static_cast<size_t>(node.inputs[0])];
      to.value = lstm.states + (node.cell ? size : 0);
      if (!training || program.differentiable_[n] == 0) continue;
      to.gradient = take(size);
      if (lstm.d_states == nullptr) lstm.d_states = take(2 * size);
      continue;
    }
    const Lookup& lookup = program.lookups_[n];
    if (lookup.distinct()) {
      to.value = take(lookup.most_rows() * node.columns);
    } else if (lookup.active()) {
      largest = std::max(largest, node.rows * node.columns);
    } else {
      to.value = take(size);
    }
    const TrainingProgram::Use* first_use = program.use_of(n, 0);
    const bool elsewhere = first_use != nullptr && first_use->by_rows;
    if (training && program.differentiable_[n] != 0 && !lookup.active() && !elsewhere)
      to.gradient = take(size);
    if ((is_dense(node.op) || node.op == ProgramOp::kActivation) &&
        program.target_->training->derivative_needs_input(node.activation))
      to.kept = take(size);
    if (node.op == ProgramOp::kLayerNorm) to.kept = take(2 * positions);
    if (node.op == ProgramOp::kBatchNorm) to.kept = take(2 * shape.features);
    if (node.op == ProgramOp::kAttention && training && program.differentiable_[n] != 0)
      to.kept = take(positions * node.whole[0] * batch.shapes[node.inputs[1]].steps);
    if (node.op != ProgramOp::kLstm) continue;
    const ValueShape& x = batch.shapes[node.inputs[0]];
    const Rates& rates = program.rates_[n];
    const InputParts& parts = program.parts_[n];
    LstmInputs sizes;
    sizes.batch = rows;
    sizes.steps = x.steps;
    sizes.inputs = node.rows;
    sizes.units = node.columns;
    sizes.return_sequences = node.return_sequences;
    sizes.mask = node.inputs[1] >= 0 ? &kAlways : nullptr;
    to.states = take(2 * rows * node.columns);
    sizes.storage = program.storage_of(static_cast<int32_t>(n));
    if (sizes.storage != Storage::kFloat32) {
      const bool looks_up = program.lookup_of(static_cast<int32_t>(n)) != nullptr;
      const int64_t inputs = rows * x.positions() * parts.moving.rows, states = 2 * rows * node.columns;
      const NarrowSizes own{looks_up ? 0 : inputs, size, states, node.inputs[2] >= 0 ? states : 0};
      to.narrow = NarrowLstm(layout, own);
      gradients = {std::max(gradients.inputs, inputs), std::max(gradients.outputs, size),
                   std::max(gradients.states, states), std::max(gradients.first, own.first)};
    }
    if (!parts.still.empty()) {
      to.row_bias = take(4 * rows * node.columns);
      largest = std::max(largest, 4 * rows * node.columns);
    }
    if (!training) continue;
    if (!parts.still.empty()) to.d_row_bias = take(4 * rows * node.columns);
    if (node.inputs[2] >= 0) to.d_first = take(2 * rows * node.columns);
    to.reserve = layout.take<std::byte>(program.target_->lstm->reserve_bytes(sizes));
    if (rates.inputs > 0) {
      to.input_factors = take((rates.state > 0 ? 4 : 1) * rows * node.rows);
      if (rates.state == 0) to.dropped = take(rows * x.steps * node.rows);
      largest = std::max(largest, rows * x.steps * node.rows);
    }
    if (rates.state > 0) to.state_factors = take(4 * rows * node.columns);
  }
  if (training) {
    spare = take(largest);
    narrow = NarrowLstm(layout, gradients);
  }
  bytes = layout.bytes();
}

Piece::Piece(const TrainingProgram& program, const TrainingBatch& batch, const PackedLayers& packed,
             const PieceRows& rows, float* gradients, std::byte* memory)
    : program_(program),
      batch_(batch),
      packed_(packed),
      piece_(rows.piece),
      first_(rows.first),
      rows_(rows.count),
      gradients_(gradients),
      layout_(program, batch, rows.count, gradients != nullptr, memory),
      inputs_(program.nodes_.size()),
      reached_(program.nodes_.size()),
      reached_states_(program.nodes_.size()) {
  size_t input = 0;
  for (size_t n = 0; n < inputs_.size(); ++n) {
    if (program.nodes_[n].op == ProgramOp::kInput) inputs_[n] = batch.inputs[input++];
  }
  for (const TrainingProgram::Use& use : program.uses_) {
    if (gradients == nullptr || !use.by_rows) continue;
    const int64_t size_of_row = size(use.node) / rows_;
    layout_.nodes[static_cast<size_t>(use.node)].gradient =
        program.row_gradients_ + use.offset + first_ * size_of_row;
  }
}

const float* Piece::value(int32_t n) const {
  if (node(n).op != ProgramOp::kInput) return layout_.nodes[n].value;
  return static_cast<const float*>(inputs_[n]) + first_ * shape(n).positions() * shape(n).features;
}
const int32_t* Piece::ids(int32_t n) const {
  return static_cast<const int32_t*>(inputs_[n]) + first_ * shape(n).steps;
}
const uint8_t* Piece::mask(int32_t n) const { return n < 0 ? nullptr : layout_.nodes[n].mask; }

float* Piece::gradient_of(int32_t n, int array) const {
  const TrainingProgram::Use* use = program_.use_of(static_cast<size_t>(n), array);
  return use == nullptr ? nullptr : gradients_ + use->offset;
}

Piece::Table Piece::table(int32_t n) const {
  const Lookup& lookup = program_.lookups_[static_cast<size_t>(n)];
  if (!lookup.distinct()) return {node(n).kernel, ids(source(n)), node(n).rows};
  const RowsRead& read = lookup.piece(piece_);
  return {layout_.nodes[n].value, read.places.data(), static_cast<int64_t>(read.rows.size())};
}

Draws Piece::draws(int32_t n, int64_t numbers_of_row, uint64_t stream) const {
  return {batch_.keys[n] + stream * 0x9e3779b97f4a7c15u, first_ * numbers_of_row};
}

int64_t Piece::step_read(int32_t n, int64_t own) const {
  switch (node(n).op) {
    case ProgramOp::kRepeatVector:
      return 0;
    case ProgramOp::kCrop:
      return batch_.begins[n] + own;
    case ProgramOp::kPad:
      return own - batch_.begins[n];
    default:
      return shape(n).steps - 1 - own;
  }
}

void Piece::run(TrainingResult& result) {
  const auto count = static_cast<int32_t>(program_.nodes_.size());
  StepSeconds& seconds = result.seconds;
  StepClock clock(batch_.seconds != nullptr);
  seconds.forward.resize(program_.nodes_.size());
  seconds.backward.resize(program_.nodes_.size());
  for (int32_t n = 0; n < count; ++n) {
    forward(n);
    clock.add_to(seconds.forward[static_cast<size_t>(n)]);
  }
  for (size_t n = 0; n < program_.rules_.copied.size(); ++n) {
    const int32_t node = program_.rules_.copied[n];
    copy(value(node), batch_.copies[n] + first_ * (size(node) / rows_), size(node));
  }
  take_losses(result);
  clock.add_to(seconds.losses);
  if (gradients_ == nullptr) return;
  for (int32_t n = count - 1; n >= 0; --n) {
    if (!wants_gradient(n)) continue;
    const auto& [h, c] = reached_states_[n];
    reached_[n] != 0 || h || c ? backward(n) : clear_gradients(n);
    clock.add_to(seconds.backward[static_cast<size_t>(n)]);
  }
}

void Piece::embed(int32_t n) {
  float* const to = layout_.nodes[n].value;
  // LSTMs that look up rows of the whole table read the table itself.
  if (to == nullptr) return;
  const Lookup& lookup = program_.lookups_[static_cast<size_t>(n)];
  const int64_t features = node(n).columns;
  const int32_t* rows = lookup.distinct() ? lookup.piece(piece_).rows.data() : ids(source(n));
  const int64_t count = lookup.distinct() ? table(n).count : positions(n);
  for (int64_t place = 0; place < count; ++place)
    copy(node(n).kernel + rows[place] * features, to + place * features, features);
}

void Piece::forward(int32_t n) {
  const TrainingKernels& kernels = *program_.target_->training;
  const ProgramNode& of = node(n);
  const NodeMemory& to = layout_.nodes[n];
  const ValueShape& shape_of = shape(n);
  if (program_.skipped_[n] != 0) return;
  switch (of.op) {
    case ProgramOp::kInput:
      return;
    case ProgramOp::kEmbedding:
      return embed(n);
    case ProgramOp::kIdsMask:
    case ProgramOp::kFeaturesMask:
    case ProgramOp::kFlipMask:
    case ProgramOp::kAnyMask:
      return make_mask(n);
    case ProgramOp::kMasked:
      for (int64_t place = 0; place < positions(n); ++place) {
        const float* from = value(source(n)) + place * shape_of.features;
        float* row = to.value + place * shape_of.features;
        copy_if(mask(source(n, 1))[place] != 0, from, row, shape_of.features);
      }
      return;
    case ProgramOp::kWhere:
      for (int64_t place = 0; place < positions(n); ++place) {
        const int32_t input = mask(source(n, 1))[place_read(n, 1, place)] != 0 ? 0 : 2;
        copy(value(source(n, input)) + place_read(n, input, place) * shape_of.features,
             to.value + place * shape_of.features, shape_of.features);
      }
      return;
    case ProgramOp::kLstm:
      return forward_lstm(n);
    case ProgramOp::kLstmState:
      return;
    case ProgramOp::kBatchNorm:
      return normalize_batch(n);
    case ProgramOp::kGather:
    case ProgramOp::kCumsum:
    case ProgramOp::kAffine:
      return move(n);
    case ProgramOp::kDense:
    case ProgramOp::kGroupedDense:
      return forward_dense(n);
    case ProgramOp::kActivation:
      if (to.kept != nullptr) copy(value(source(n)), to.kept, size(n));
      kernels.activate(of.activation, value(source(n)), to.value, size(n));
      if (of.normalizer != Normalizer::kNone)
        kernels.normalize(of.normalizer, to.value, positions(n), shape_of.features);
      return;
    case ProgramOp::kFunction:
      return kernels.function(of.function(), of.number, value(source(n)), to.value, size(n));
    case ProgramOp::kLayerNorm:
      kernels.layer_norm(value(source(n)), of.kernel, of.bias, of.number, to.value, to.kept, positions(n),
                         shape_of.features);
      return;
    case ProgramOp::kDropout:
    case ProgramOp::kSpatialDropout:
    case ProgramOp::kStepDropout:
    case ProgramOp::kGaussianDropout:
    case ProgramOp::kGaussianNoise:
      return drop(n, value(source(n)), to.value);
    case ProgramOp::kMeanOverTime:
    case ProgramOp::kMaxOverTime:
      return over_time(n);
    case ProgramOp::kWindows:
      return gather_windows(n);
    case ProgramOp::kMaxPool:
    case ProgramOp::kAveragePool:
      return pool(n);
    case ProgramOp::kSum:
    case ProgramOp::kMean:
    case ProgramOp::kMax:
    case ProgramOp::kMin:
      return reduce(n);
    case ProgramOp::kDot:
      return dot(n);
    case ProgramOp::kAttention:
      return attend(n);
    case ProgramOp::kSoftmax:
      return normalize_along(n, value(source(n)), nullptr, to.value);
    case ProgramOp::kReshape:
      return copy(value(source(n)), to.value, size(n));
    case ProgramOp::kRepeatVector:
    case ProgramOp::kCrop:
    case ProgramOp::kPad:
    case ProgramOp::kFlip: {
      const int64_t steps = shape_of.steps, features = shape_of.features;
      const int64_t from_steps = shape(source(n)).positions();
      for (int64_t place = 0; place < positions(n); ++place) {
        const int64_t step = step_read(n, place % steps);
        copy_if(step >= 0 && step < from_steps,
                value(source(n)) + (place / steps * from_steps + step) * features,
                to.value + place * features, features);
      }
      return;
    }
    default:
      return merge(n);
  }
}

// The kernel of a dense node. A grouped kernel is written to `whole`, with zeros for the inputs of other groups.
const float* Piece::dense_kernel(int32_t n, std::vector<float>& whole) const {
  const ProgramNode& of = node(n);
  if (of.op == ProgramOp::kDense) return of.kernel;
  whole.assign(static_cast<size_t>(of.whole[0] * of.rows * of.columns), 0.0f);
  for_each_group(n, [&](int64_t place, int64_t own, int64_t count) {
    copy(of.kernel + own, whole.data() + place, count);
  });
  return whole.data();
}

void Piece::forward_dense(int32_t n) {
  const TrainingKernels& kernels = *program_.target_->training;
  const ProgramNode& of = node(n);
  const NodeMemory& to = layout_.nodes[n];
  std::vector<float> whole;
  DenseForward call;
  call.rows = positions(n);
  call.inputs = shape(source(n)).features;
  call.outputs = of.columns;
  call.x = value(source(n));
  call.kernel = dense_kernel(n, whole);
  call.bias = of.bias;
  float* sums = to.kept != nullptr ? to.kept : to.value;
  call.y = sums;
  program_.target_->dense->forward(call);
  if (of.activation != Activation::kLinear) kernels.activate(of.activation, sums, to.value, size(n));
  if (of.normalizer != Normalizer::kNone)
    kernels.normalize(of.normalizer, to.value, positions(n), of.columns);
}

// Gathers, cumulative sums, and affine functions of the numbers of a row.
void Piece::move(int32_t n) {
  const ProgramNode& of = node(n);
  const bool gathers = of.op == ProgramOp::kGather, scales = of.op == ProgramOp::kAffine;
  const int64_t width = gathers ? size(n) / rows_ : shape(n).features, read = size(source(n)) / rows_;
  const float* x = value(source(n));
  float* to = layout_.nodes[n].value;
  for (int64_t row = 0; row < size(n) / width; ++row, to += width, x += gathers ? read : width) {
    float sum = 0;
    for (int64_t i = 0; i < width; ++i)
      to[i] = gathers ? x[batch_.gathers[n][i]] : scales ? x[i] * of.kernel[i] + of.bias[i] : sum += x[i];
  }
}

void Piece::make_mask(int32_t n) {
  uint8_t* to = layout_.nodes[n].mask;
  const int64_t steps = shape(n).steps;
  const auto any_mask = [&](int64_t place) {
    for (int32_t input = 0; input < node(n).input_count; ++input) {
      if (mask(source(n, input))[place_read(n, input, place)] != 0) return true;
    }
    return false;
  };
  for (int64_t place = 0; place < positions(n); ++place) {
    if (node(n).op == ProgramOp::kAnyMask) {
      to[place] = any_mask(place);
    } else if (node(n).op == ProgramOp::kIdsMask) {
      to[place] = ids(source(n))[place] != 0;
    } else if (node(n).op == ProgramOp::kFlipMask) {
      to[place] = mask(source(n))[place / steps * steps + steps - 1 - place % steps];
    } else {
      const int64_t features = shape(source(n)).features;
      const float* x = value(source(n)) + place * features;
      to[place] = std::any_of(x, x + features, [&](float each) { return each != node(n).number; });
    }
  }
}

void Piece::over_time(int32_t n) {
  const int32_t x = source(n);
  const int64_t steps = shape(x).steps, features = shape(x).features;
  const uint8_t* counts = node(n).op == ProgramOp::kMeanOverTime ? mask(source(n, 1)) : nullptr;
  for (int64_t row = 0; row < rows_; ++row) {
    const float* from = value(x) + row * steps * features;
    float* to = layout_.nodes[n].value + row * features;
    if (node(n).op == ProgramOp::kMaxOverTime) {
      copy(from, to, features);
      for (int64_t step = 1; step < steps; ++step)
        program_.target_->training->raise(from + step * features, to, features);
      continue;
    }
    int64_t live = 0;
    std::vector<double> sums(static_cast<size_t>(features));
    for (int64_t step = 0; step < steps; ++step) {
      if (counts != nullptr && counts[row * steps + step] == 0) continue;
      ++live;
      for (int64_t i = 0; i < features; ++i)
        sums[static_cast<size_t>(i)] += static_cast<double>(from[step * features + i]);
    }
    for (int64_t i = 0; i < features; ++i)
      to[i] = static_cast<float>(sums[static_cast<size_t>(i)] / static_cast<double>(live));
  }
}

void Piece::drop(int32_t n, const float* from, float* to) const {
  const float rate = program_.rates_[n].inputs;
  const TrainingKernels& kernels = *program_.target_->training;
  const int64_t steps = shape(n).positions(), features = shape(n).features;
  if (gradients_ == nullptr || rate == 0) return copy(from, to, size(n));
  if (node(n).op == ProgramOp::kDropout) {
    return kernels.drop(draws(n, steps * features), rate, from, to, size(n));
  }
  if (node(n).op == ProgramOp::kGaussianDropout || node(n).op == ProgramOp::kGaussianNoise) {
    const bool adds = node(n).op == ProgramOp::kGaussianNoise;
    std::vector<float> drawn(static_cast<size_t>(size(n)));
    kernels.draw_normals(draws(n, steps * features), adds ? 0 : 1, rate, drawn.data(), size(n));
    if (!adds) return kernels.multiply(from, drawn.data(), to, size(n));
    copy(from, to, size(n));
    return kernels.add(drawn.data(), to, size(n));
  }
  if (node(n).op == ProgramOp::kStepDropout) {
    std::vector<float> factors(static_cast<size_t>(positions(n)));
    kernels.draw_factors(draws(n, steps), rate, factors.data(), positions(n));
    for (int64_t place = 0; place < positions(n); ++place) {
      for (int64_t i = place * features; i < (place + 1) * features; ++i)
        to[i] = from[i] * factors[static_cast<size_t>(place)];
    }
    return;
  }
  // The same features at every step.
  std::vector<float> factors(static_cast<size_t>(rows_ * features));
  kernels.draw_factors(draws(n, features), rate, factors.data(), rows_ * features);
  for (int64_t place = 0; place < positions(n); ++place) {
    kernels.multiply(from + place * features, factors.data() + place / steps * features,
                     to + place * features, features);
  }
}

}  // namespace cellerate
