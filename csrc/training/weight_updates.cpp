#include "training/weight_updates.h"

#include <algorithm>
#include <cmath>

#include "simd/dispatch.h"
#include "training/crew.h"

namespace cellerate {
namespace {

// The floats of a weight that a thread sums and updates at once, and the floats that are worth a second thread.
constexpr int64_t kUpdatedAtOnce = 8192, kWorthAThread = 16 * kUpdatedAtOnce;

}  // namespace

double regularize(const TrainedWeight& weight, float* gradient, float scale, int64_t begin, int64_t end) {
  double added = 0;
  for (int64_t n = begin; n < end; ++n) {
    const float w = weight.values[n];
    const float sign = w > 0 ? 1.0f : w < 0 ? -1.0f : w == 0 ? weight.slope_at_zero : w;
    if (gradient != nullptr) gradient[n] = gradient[n] * scale + (weight.l1 * sign + 2 * weight.l2 * w);
    added += static_cast<double>(weight.l1 * (w * sign) + weight.l2 * (w * w));
  }
  return added;
}

WeightUpdates::WeightUpdates(TrainingProgram& program, const TrainingBatch& batch,
                             const TrainingNumbers& numbers, double scale, int64_t pieces)
    : program_(program),
      batch_(batch),
      numbers_(numbers),
      scale_(scale),
      pieces_(pieces),
      places_(program.uses_.size()),
      first_(program.weights_.size()),
      squares_(program.weights_.size()) {
  for (size_t n = 0; n < program.uses_.size(); ++n) {
    const Use& use = program.uses_[n];
    if (use.weight < 0) continue;
    if (first_[static_cast<size_t>(use.weight)] == nullptr) first_[static_cast<size_t>(use.weight)] = &use;
    if (use.by_rows) index_rows(n);
    cut(n);
  }
}

// Calls visit(id, place) for each gradient of an embedding: one for each position, or for each row that a piece reads.
template <class Visit>
void WeightUpdates::each_row(const Use& use, const Visit& visit) const {
  const Lookup& lookup = program_.lookups_[static_cast<size_t>(use.node)];
  const int64_t steps = batch_.shapes[use.node].steps;
  if (!lookup.distinct() || program_.rules_.rows_apart) {
    const int32_t* ids = program_.ids_of(batch_, program_.nodes_[static_cast<size_t>(use.node)].inputs[0]);
    for (int64_t place = 0; place < batch_.rows * steps; ++place) visit(ids[place], place);
    return;
  }
  for (int64_t piece = 0; piece < pieces_; ++piece) {
    int64_t place = rows_of_piece(batch_.rows, pieces_, piece).first * steps;
    for (const int32_t id : lookup.piece(piece).rows) visit(id, place++);
  }
}

// Sorts the gradients of rows by their ids.
void WeightUpdates::index_rows(size_t n) {
  const Use& use = program_.uses_[n];
  const auto rows = static_cast<size_t>(program_.nodes_[static_cast<size_t>(use.node)].rows);
  Places& to = places_[n];
  to.starts.assign(rows + 1, 0);
  each_row(use, [&](int32_t id, int64_t) { ++to.starts[static_cast<size_t>(id) + 1]; });
  for (size_t id = 0; id < rows; ++id) to.starts[id + 1] += to.starts[id];
  to.places.resize(static_cast<size_t>(to.starts.back()));
  std::vector<int32_t> next(to.starts.begin(), to.starts.end() - 1);
  each_row(use, [&](int32_t id, int64_t place) {
    to.places[static_cast<size_t>(next[static_cast<size_t>(id)]++)] = static_cast<int32_t>(place);
  });
}

void WeightUpdates::cut(size_t n) {
  const Use& use = program_.uses_[n];
  const ProgramNode& node = program_.nodes_[static_cast<size_t>(use.node)];
  const int64_t count = use.by_rows ? node.rows : use.count;
  const int64_t at_once = use.by_rows ? std::max<int64_t>(1, kUpdatedAtOnce / node.columns) : kUpdatedAtOnce;
  for (int64_t begin = 0; begin < count; begin += at_once)
    chunks_.push_back({n, begin, std::min(begin + at_once, count)});
}

// The memory of the summed gradient of a use.
float* WeightUpdates::sums(size_t n) const {
  const Use& use = program_.uses_[n];
  if (!use.by_rows) return program_.gradients_ + use.offset;
  const ProgramNode& node = program_.nodes_[static_cast<size_t>(use.node)];
  return outputs(use) + round_up(batch_.rows * batch_.shapes[use.node].steps * node.columns);
}

void WeightUpdates::sum(const Chunk& chunk) {
  const Use& use = program_.uses_[chunk.use];
  if (use.by_rows) return sum_rows(chunk);
  if (pieces_ == 1) return;
  const TrainingKernels& kernels = *program_.target_->training;
  const auto stride = static_cast<int64_t>(program_.gradient_floats_);
  float* to = sums(chunk.use);
  kernels.sum(to, stride, pieces_, chunk.begin, chunk.end);
  if (use.squares) kernels.sum(to + round_up(use.count), stride, pieces_, chunk.begin, chunk.end);
}

void WeightUpdates::sum_rows(const Chunk& chunk) {
  const Use& use = program_.uses_[chunk.use];
  const TrainingKernels& kernels = *program_.target_->training;
  const int64_t features = program_.nodes_[static_cast<size_t>(use.node)].columns;
  const Places& of = places_[chunk.use];
  float* rows = sums(chunk.use);
  for (int64_t id = chunk.begin; id < chunk.end; ++id) {
    const int32_t begin = of.starts[static_cast<size_t>(id)], end = of.starts[static_cast<size_t>(id) + 1];
    if (!is_read(chunk.use, id)) continue;
    float* row = rows + id * features;
    float* squares = row + round_up(use.count);
    std::fill_n(row, features, 0.0f);
    if (use.squares) std::fill_n(squares, features, 0.0f);
    for (int32_t n = begin; n < end; ++n) {
      const float* d = outputs(use) + of.places[static_cast<size_t>(n)] * features;
      kernels.add(d, row, features);
      if (use.squares) program_.add_apart(d, squares, features);
    }
  }
}

// Adds the gradient of the regularizer.
void WeightUpdates::complete(Chunk& chunk) {
  const TrainedWeight& weight = weight_of(chunk.use);
  if (!weight.has_more() || !is_first(chunk)) return;
  const int64_t features = width(chunk.use);
  chunk.penalty = regularize(weight, sums(chunk.use), static_cast<float>(scale_), chunk.begin * features,
                             chunk.end * features);
}

// Adds the gradients of earlier steps. Then takes the mean, or keeps the sum for later steps.
void WeightUpdates::accumulate(const Chunk& chunk) {
  float* sum = weight_of(chunk.use).accumulated;
  if (sum == nullptr || !is_first(chunk)) return;
  float* gradient = sums(chunk.use);
  const int64_t features = width(chunk.use);
  for (int64_t n = chunk.begin * features; n < chunk.end * features; ++n) {
    const float all = gradient[n] + sum[n];
    gradient[n] = all * numbers_.share;
    sum[n] = numbers_.share == 0 ? all : 0.0f;
  }
}

// Returns the sum of the squares of all gradients, and writes the sum for each weight to squares_.
double WeightUpdates::sum_squares(Team& team) {
  team.each(static_cast<int64_t>(chunks_.size()), [&](int n) {
    Chunk& chunk = chunks_[static_cast<size_t>(n)];
    chunk.squares = squares_of(chunk);
  });
  std::fill(squares_.begin(), squares_.end(), 0.0);
  double all = 0;
  for (const Chunk& chunk : chunks_) {
    squares_[static_cast<size_t>(program_.uses_[chunk.use].weight)] += chunk.squares;
    all += chunk.squares;
  }
  return all;
}

// The sum of the squares of a chunk's gradient, after all uses are added; with rows_apart, the squares of all parts.
double WeightUpdates::squares_of(const Chunk& chunk) const {
  const Use& use = program_.uses_[chunk.use];
  if (!is_first(chunk)) return 0;
  const float* from = sums(chunk.use) + (use.squares ? round_up(use.count) : 0);
  const int64_t features = width(chunk.use);
  // Several sums, because each addition to one sum waits for the previous addition.
  constexpr int64_t kSums = 4;
  double parts[kSums] = {};
  for (int64_t n = chunk.begin; n < chunk.end; ++n) {
    if (use.by_rows && !is_read(chunk.use, n)) continue;
    for (int64_t i = n * features; i < (n + 1) * features; ++i)
      parts[i % kSums] += static_cast<double>(use.squares ? from[i] : from[i] * from[i]);
  }
  double squares = 0;
  for (const double part : parts) squares += part;
  return squares * scale_of(chunk.use) * scale_of(chunk.use);
}

void WeightUpdates::add_to_first(const Chunk& chunk) {
  const Use& use = program_.uses_[chunk.use];
  const Use* to = first_[static_cast<size_t>(use.weight)];
  if (to == &use) return;
  const TrainingKernels& kernels = *program_.target_->training;
  const int64_t count = chunk.end - chunk.begin;
  for (int part = 0; part < (use.squares ? 2 : 1); ++part) {
    const int64_t offset = part * round_up(use.count) + chunk.begin;
    kernels.add(program_.gradients_ + use.offset + offset, program_.gradients_ + to->offset + offset, count);
  }
}

// The part of an update that all chunks of a weight share.
UpdateRows WeightUpdates::rows_of(const Use& use) const {
  const TrainingRules& rules = program_.rules_;
  const auto place = static_cast<size_t>(use.weight);
  const TrainedWeight& weight = program_.weights_[place];
  UpdateRows rows;
  rows.weight = weight.values;
  std::copy_n(weight.slots, kMostSlots, rows.slots);
  double factor = scale_of(static_cast<size_t>(&use - program_.uses_.data()));
  if (rules.clips_norms()) {
    const bool global = rules.clip == ClipKind::kGlobalNorm;
    const double norm = std::sqrt(global ? all_squares_ : squares_[place]);
    const auto most = static_cast<double>(rules.most);
    factor *= most / std::max(norm, most);
    // Like Keras, an infinite global norm makes all gradients NaN.
    if (global && !std::isfinite(norm)) factor *= norm - norm;
  }
  rows.scale = static_cast<float>(factor);
  rows.most = rules.clip == ClipKind::kValue ? rules.most : 0;
  rows.decay = weight.decays ? numbers_.decay : 0;
  rows.average = weight.average;
  rows.kept = numbers_.kept;
  rows.averaged = numbers_.averaged;
  std::copy_n(numbers_.numbers, kMostNumbers, rows.numbers);
  return rows;
}

// The sums of squares that an update uses as the squared gradient. Null means the square of the sum, which Keras also
// takes when it clips by the global norm.
const float* WeightUpdates::squares_apart(const Use& use, const float* gradient) const {
  if (!use.squares || gradient == nullptr || program_.rules_.clip == ClipKind::kGlobalNorm) return nullptr;
  return gradient + round_up(use.count);
}

void WeightUpdates::change(const Chunk& chunk) {
  const Use& use = program_.uses_[chunk.use];
  if (use.by_rows) return change_rows(chunk);
  if (!is_first(chunk)) return;
  UpdateRows rows = rows_of(use);
  rows.begin = chunk.begin;
  rows.end = chunk.end;
  rows.gradient = sums(chunk.use);
  rows.squares = squares_apart(use, rows.gradient);
  program_.target_->training->update(program_.rules_.update, rows);
}

// Rows that the batch does not read have a gradient of zero, which is not stored.
void WeightUpdates::change_rows(const Chunk& chunk) {
  const Use& use = program_.uses_[chunk.use];
  const int64_t features = program_.nodes_[static_cast<size_t>(use.node)].columns;
  UpdateRows rows = rows_of(use);
  for (int64_t id = chunk.begin; id < chunk.end;) {
    int64_t end = id + 1;
    while (end < chunk.end && is_read(chunk.use, end) == is_read(chunk.use, id)) ++end;
    rows.begin = id * features;
    rows.end = end * features;
    rows.gradient = is_read(chunk.use, id) ? sums(chunk.use) : nullptr;
    rows.squares = squares_apart(use, rows.gradient);
    program_.target_->training->update(program_.rules_.update, rows);
    id = end;
  }
}

void WeightUpdates::run(TrainingResult& result) {
  const TrainingRules& rules = program_.rules_;
  const bool clips = rules.clips_norms();
  const bool shared =
      std::any_of(chunks_.begin(), chunks_.end(), [&](const Chunk& each) { return !is_first(each); });
  const bool more = std::any_of(program_.weights_.begin(), program_.weights_.end(),
                                [](const TrainedWeight& each) { return each.has_more(); });
  const bool accumulates = std::any_of(program_.weights_.begin(), program_.weights_.end(),
                                       [](const TrainedWeight& each) { return each.accumulated != nullptr; });
  int64_t floats = 0;
  for (const TrainedWeight& weight : program_.weights_) floats += weight.count;
  const auto count = static_cast<int64_t>(chunks_.size());
  const int64_t most = floats * pieces_ < kWorthAThread ? 1 : std::min<int64_t>(thread_count(), count);
  const auto at = [&](int n) -> Chunk& { return chunks_[static_cast<size_t>(n)]; };
  with_team(static_cast<int>(most), [&](Team& team) {
    if (!clips && !shared && !more && !rules.norms) {
      team.each(count, [&](int n) {
        sum(at(n));
        change(at(n));
      });
      return;
    }
    team.each(count, [&](int n) { sum(at(n)); });
    // A weight of several nodes gets the sum of their gradients.
    for (const Chunk& chunk : chunks_) add_to_first(chunk);
    if (more) team.each(count, [&](int n) { complete(at(n)); });
    for (const Chunk& chunk : chunks_) result.loss += chunk.penalty;
    if (rules.norms) all_squares_ = sum_squares(team);
    result.norm = std::sqrt(all_squares_);
    if (accumulates) team.each(count, [&](int n) { accumulate(at(n)); });
    if (accumulates && numbers_.share == 0) return;
    if (clips && (accumulates || !rules.norms)) all_squares_ = sum_squares(team);
    team.each(count, [&](int n) { change(at(n)); });
  });
}

}  // namespace cellerate
