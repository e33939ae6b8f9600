#include "training/step.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

#include "engine/program_table.h"
#include "simd/dispatch.h"
#include "systems/threads.h"
#include "training/crew.h"
#include "training/piece.h"
#include "training/weight_updates.h"

namespace cellerate {
namespace {

// A piece has between kRowsOfPiece and kMostRowsOfPiece rows: one for every kUnitsOfRow units, because the rows of a
// piece share the loading of the weights. There are at most kMostPieces, because each has gradients of its own.
constexpr int64_t kRowsOfPiece = 8, kMostRowsOfPiece = 32, kUnitsOfRow = 8, kMostPieces = 8;
// If that gives fewer pieces than threads, the pieces are smaller. Fewer rows then share the loading of the weights,
// which makes a row slower by a third; but a thread without a piece does nothing.
constexpr int64_t kRowsOfSmallPiece = 4, kMostRowsOfSmallPiece = 16, kUnitsOfSmallRow = 32;
// Recurrent weights of more bytes than this do not stay in a core's cache. Then the rows stay together, and each core
// reads its own share of the weights.
constexpr int64_t kLargestKernel = int64_t{8} << 20;
// A step of fewer multiplications than this is faster on one thread.
constexpr double kWorthAThread = 2e6;

// The blocks of memory in which pieces run, one for each thread.
class Slots {
 public:
  explicit Slots(int count) : free_(static_cast<size_t>(count)) {
    for (auto& each : free_) each.store(true, std::memory_order_relaxed);
  }

  // Holds a free block for as long as this object lives.
  class Lent {
   public:
    explicit Lent(Slots& slots) : slots_(slots) {
      for (bool expected = true; !slots.free_[place_].compare_exchange_strong(expected, false, kAcquire);
           expected = true)
        place_ = (place_ + 1) % slots.free_.size();
    }
    ~Lent() { slots_.free_[place_].store(true, std::memory_order_release); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    size_t place() const { return place_; }

   private:
    static constexpr auto kAcquire = std::memory_order_acquire;
    Slots& slots_;
    size_t place_ = 0;
  };

 private:
  std::vector<std::atomic<bool>> free_;
};

}  // namespace

TrainingProgram::TrainingProgram(std::vector<ProgramNode> nodes, std::vector<Rates> rates,
                                 std::vector<TrainedWeight> weights, TrainingRules rules)
    : target_(&cellerate::target()),
      nodes_(std::move(nodes)),
      rates_(std::move(rates)),
      weights_(std::move(weights)),
      rules_(std::move(rules)) {
  for (LossHead& head : rules_.heads) {
    head.loss.levels = head.levels.data();
    head.loss.level_count = static_cast<int32_t>(head.levels.size());
  }
  check_graph();
  find_uses();
}

void TrainingProgram::check_graph() {
  const auto count = static_cast<int32_t>(nodes_.size());
  if (rates_.size() != nodes_.size()) throw std::invalid_argument("expected the rates of every node");
  if (rules_.heads.empty()) throw std::invalid_argument("expected an output and its loss");
  for (const LossHead& head : rules_.heads) {
    if (head.output < 0 || head.output >= count || head.mask < -1 || head.mask >= count || head.logits < -1 ||
        head.logits >= count)
      throw std::invalid_argument("heads: expected numbers of nodes as output, mask and logits");
    if (head.loss.kind == LossKind::kQuantile && head.levels.empty())
      throw std::invalid_argument("heads: expected levels for a quantile loss, got none");
  }
  for (const int32_t node : rules_.copied) {
    if (node < 0 || node >= count) throw std::invalid_argument("copied: expected numbers of nodes");
  }
  for (const int32_t node : rules_.narrow) {
    if (node < 0 || node >= count || nodes_[node].op != ProgramOp::kLstm)
      throw std::invalid_argument("narrow: expected LSTMs, because only they compute in bfloat16");
  }
  for (const Moments& moments : rules_.moments) {
    if (moments.node < 0 || moments.node >= count || nodes_[moments.node].op != ProgramOp::kBatchNorm)
      throw std::invalid_argument("moments: expected the number of a batch normalisation node");
  }
  take_inputs(nodes_, sources_);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ProgramNode& node = nodes_[n];
    const ProgramOpRow& rules = row(node.op);
    if (!rules.trains) refuse_node(n, std::string("no training step computes the gradient of ") + rules.name);
    check_states(nodes_, n);
    if (node.op == ProgramOp::kBatchNorm && moments_of(n) == nullptr)
      refuse_node(n, "expected moments for a batch normalisation, got none");
    inputs_ += node.op == ProgramOp::kInput;
  }
}

const Moments* TrainingProgram::moments_of(size_t node) const {
  for (const Moments& moments : rules_.moments) {
    if (moments.node == static_cast<int32_t>(node)) return &moments;
  }
  return nullptr;
}

bool TrainingProgram::is_output(size_t node) const {
  const auto is_it = [&](int32_t n) { return n == static_cast<int32_t>(node); };
  return std::any_of(rules_.copied.begin(), rules_.copied.end(), is_it) ||
         std::any_of(rules_.heads.begin(), rules_.heads.end(),
                     [&](const LossHead& head) { return is_it(head.output) || is_it(head.logits); });
}

// Finds the weights of each node, and the sizes of their gradients.
void TrainingProgram::find_uses() {
  const auto weight_of = [&](const float* values) {
    const auto found = std::find_if(weights_.begin(), weights_.end(),
                                    [&](const TrainedWeight& each) { return each.values == values; });
    return values == nullptr || found == weights_.end() ? -1 : static_cast<int32_t>(found - weights_.begin());
  };
  differentiable_.resize(nodes_.size());
  lookups_.resize(nodes_.size());
  parts_.resize(nodes_.size());
  skipped_.resize(nodes_.size());
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ProgramNode& node = nodes_[n];
    const float* arrays[] = {node.kernel, node.recurrent_kernel, node.bias};
    bool changes = false;
    for (const float* array : arrays) changes |= weight_of(array) >= 0;
    for (int32_t input = 0; input < node.input_count; ++input)
      changes |= node.inputs[input] >= 0 && differentiable_[node.inputs[input]] != 0;
    const bool steps = row(node.op).gives == ValueKind::kMask || node.op == ProgramOp::kCompare ||
                       (node.op == ProgramOp::kFunction && is_step(node.function()));
    differentiable_[n] = changes && !steps;
    if (differentiable_[n] == 0) continue;
    const bool lstm = node.op == ProgramOp::kLstm, matrix = lstm || is_dense(node.op);
    for (int array = 0; array < 3; ++array) {
      Use use{static_cast<int32_t>(n), array, weight_of(arrays[array])};
      // The kernels of LSTM and dense layers write the gradients of all their arrays, so frozen arrays need room too.
      if (arrays[array] == nullptr || (use.weight < 0 && !matrix)) continue;
      const int64_t columns = lstm ? 4 * node.columns : node.columns;
      const int64_t rows = array == 2 ? 1 : array == 1 ? node.columns : std::max<int64_t>(node.rows, 1);
      use.count = rows * columns;
      if (use.weight >= 0 && weights_[use.weight].count != use.count)
        throw std::invalid_argument("weights: the size of a weight differs from its size in the graph");
      // If accumulation or a regularizer adds to a gradient, Keras sums the parts of each row before squaring.
      use.squares = node.op == ProgramOp::kEmbedding && rules_.rows_apart && !weights_[use.weight].has_more();
      uses_.push_back(use);
    }
  }
}

// Places the gradients of a batch in memory: those of the pieces, and those of embeddings that are summed by id.
void TrainingProgram::place_gradients(const TrainingBatch& batch) {
  int64_t floats = 0, row_floats = 0;
  for (Use& use : uses_) {
    const auto n = static_cast<size_t>(use.node);
    const auto same = std::count_if(uses_.begin(), uses_.end(),
                                    [&](const Use& other) { return other.weight == use.weight; });
    use.by_rows = nodes_[n].op == ProgramOp::kEmbedding && same == 1 &&
                  (!lookups_[n].active() || lookups_[n].distinct() || rules_.rows_apart);
    const int64_t sums = round_up(use.count) + (use.squares ? round_up(use.count) : 0);
    if (use.by_rows) {
      // The gradients of the outputs, then the sums.
      use.offset = static_cast<size_t>(row_floats);
      row_floats += round_up(batch.rows * batch.shapes[n].steps * nodes_[n].columns) + sums;
    } else {
      use.offset = static_cast<size_t>(floats);
      floats += sums;
    }
  }
  gradient_floats_ = static_cast<size_t>(floats);
  row_floats_ = static_cast<size_t>(row_floats);
}

const int32_t* TrainingProgram::ids_of(const TrainingBatch& batch, int32_t input) const {
  size_t place = 0;
  for (int32_t n = 0; n < input; ++n) place += nodes_[static_cast<size_t>(n)].op == ProgramOp::kInput;
  return static_cast<const int32_t*>(batch.inputs[place]);
}

const TrainingProgram::Use* TrainingProgram::use_of(size_t node, int array) const {
  for (const Use& use : uses_) {
    if (use.node == static_cast<int32_t>(node) && use.array == array) return &use;
  }
  return nullptr;
}

void TrainingProgram::add_apart(const float* d, float* to, int64_t count) const {
  const TrainingKernels& kernels = *target_->training;
  // When Keras clips by the global norm, it sums the parts of a gradient first.
  const bool sizes = rules_.update == UpdateKind::kAdamax && rules_.clip != ClipKind::kGlobalNorm;
  (sizes ? kernels.add_sizes : kernels.add_squares)(d, to, count);
}

Storage TrainingProgram::storage_of(int32_t node) const {
  const auto& narrow = rules_.narrow;
  const bool listed = std::find(narrow.begin(), narrow.end(), node) != narrow.end();
  return listed && target_->bfloat16_products ? Storage::kBfloat16 : Storage::kFloat32;
}

void TrainingProgram::check_heads(const TrainingBatch& batch) const {
  for (const Moments& moments : rules_.moments) {
    if (batch.shapes[moments.node].features != moments.features)
      throw std::invalid_argument("moments: expected a mean and a variance for each feature of the node");
  }
  for (size_t n = 0; n < rules_.heads.size(); ++n) {
    const LossHead& head = rules_.heads[n];
    const HeadBatch& part = batch.heads[n];
    const ValueShape& out = batch.shapes[head.output];
    if (part.positions < 1 || part.features < 1 ||
        part.positions * part.features != out.positions() * out.features ||
        (head.loss.kind == LossKind::kQuantile && part.features % head.loss.level_count != 0))
      throw std::invalid_argument("heads: positions * features differs from the size of the output");
    const ValueShape& read = batch.shapes[head.read_by_loss()];
    if (read.positions() != out.positions() || read.features != out.features)
      throw std::invalid_argument("heads: the shape of the logits differs from the shape of the output");
    if (head.mask >= 0 && batch.shapes[head.mask].positions() != part.positions)
      throw std::invalid_argument("heads: the mask and the output differ in their number of positions");
    if (!head.takes_ids()) continue;
    const auto* ids = static_cast<const int32_t*>(part.targets);
    for (int64_t place = 0; place < batch.rows * part.positions; ++place) {
      if (ids[place] < 0 || ids[place] >= part.features)
        throw std::out_of_range("a target is not one of the outputs");
    }
  }
}

double TrainingProgram::products_of_row(const TrainingBatch& batch) const {
  double products = 0;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ProgramNode& node = nodes_[n];
    if (node.op == ProgramOp::kLstm) {
      products += 4.0 * static_cast<double>(batch.shapes[node.inputs[0]].steps * node.columns) *
                  static_cast<double>(node.columns + node.rows);
    } else if (is_dense(node.op)) {
      products += static_cast<double>(batch.shapes[n].positions() * node.rows * node.columns);
    }
  }
  return products;
}

int64_t TrainingProgram::pieces_of(const TrainingBatch& batch, double products) const {
  // Batch normalisation needs the statistics of all rows. So does a mean over the positions that count, where backward
  // adds up the gradients of several losses.
  const bool counts =
      rules_.heads.size() > 1 && std::any_of(rules_.heads.begin(), rules_.heads.end(), counts_positions);
  if (counts || !rules_.moments.empty()) return 1;
  int64_t units = 0;
  for (const ProgramNode& node : nodes_) {
    if (node.op == ProgramOp::kLstm) units = std::max(units, node.columns);
  }
  if (16 * units * units > kLargestKernel) return 1;
  const int64_t rows = std::clamp(units / kUnitsOfRow, kRowsOfPiece, kMostRowsOfPiece);
  const int64_t least = std::clamp(units / kUnitsOfSmallRow, kRowsOfSmallPiece, kMostRowsOfSmallPiece);
  const int64_t wanted = products < kWorthAThread ? 1 : thread_count();
  return std::clamp<int64_t>(std::max(batch.rows / rows, std::min(wanted, batch.rows / least)), 1,
                             kMostPieces);
}

std::byte* TrainingProgram::memory(size_t bytes) {
  if (bytes > memory_bytes_) {
    memory_.reset();
    memory_bytes_ = 0;
    memory_ = packed_memory(bytes);
    memory_bytes_ = bytes;
  }
  return memory_.get();
}

double TrainingProgram::scale_of(const TrainingBatch& batch, size_t n, double counted) const {
  const LossHead& head = rules_.heads[n];
  // Like Keras, take the mean over the positions that are not masked.
  if (head.by_weight && (head.mask >= 0 || batch.heads[n].weights != nullptr))
    return counted == 0 ? 0 : 1 / counted;
  const auto positions = static_cast<double>(batch.rows * batch.heads[n].positions);
  const double scale = head.mean ? 1 / positions : 1;
  return head.mask >= 0 && head.mean ? scale * (positions / (counted + 1e-7)) : scale;
}

// Adds up the results of the pieces. Returns the factor by which all gradients must still be multiplied.
double TrainingProgram::sum_results(const TrainingBatch& batch, const std::vector<TrainingResult>& pieces,
                                    TrainingResult& total) const {
  double scale = 1;
  for (size_t n = 0; n < rules_.heads.size(); ++n) {
    const LossHead& head = rules_.heads[n];
    HeadResult& sum = total.heads.emplace_back();
    sum.measures.resize(head.measures.size());
    for (const TrainingResult& piece : pieces) {
      const HeadResult& part = piece.heads[n];
      sum.loss += part.loss;
      sum.counted += part.counted;
      for (size_t m = 0; m < sum.measures.size(); ++m) {
        sum.measures[m].total += part.measures[m].total;
        sum.measures[m].count += part.measures[m].count;
      }
    }
    const double factor = scale_of(batch, n, sum.counted);
    sum.loss *= factor;
    total.loss += head.factor * sum.loss;
    // With several heads, each piece has already multiplied its gradients by the factors of the heads.
    if (rules_.heads.size() == 1) scale = head.factor * factor;
  }
  return scale;
}

TrainingResult TrainingProgram::run(const TrainingBatch& batch, const TrainingNumbers* numbers) {
  check_shapes(nodes_, batch.shapes, batch.begins, true);
  check_ids(nodes_, batch.shapes, batch.inputs, batch.rows);
  check_heads(batch);
  const bool training = numbers != nullptr;
  const double products = products_of_row(batch) * static_cast<double>(batch.rows) * (training ? 3 : 1);
  const int64_t pieces = pieces_of(batch, products), most_rows = (batch.rows + pieces - 1) / pieces;
  choose_lookups(batch, pieces, training);
  if (training) place_gradients(batch);
  const int most = pieces == 1 || products < kWorthAThread ? 1 : thread_count();
  const int threads = static_cast<int>(std::min<int64_t>(most, pieces));
  const auto slot_bytes = StepLayout(*this, batch, most_rows, training, nullptr).bytes;
  const size_t gradient_bytes =
      training ? (static_cast<size_t>(pieces) * gradient_floats_ + row_floats_) * sizeof(float) : size_t{0};
  // For a single piece, the threads divide each layer and pack its weights when they run it.
  PackedLayers packed(*this, training, pieces > 1);
  std::byte* all = memory(gradient_bytes + static_cast<size_t>(threads) * slot_bytes + packed.bytes());
  packed.place(all + gradient_bytes + static_cast<size_t>(threads) * slot_bytes);
  gradients_ = reinterpret_cast<float*>(all);
  row_gradients_ = gradients_ + static_cast<size_t>(pieces) * gradient_floats_;
  std::vector<TrainingResult> results(static_cast<size_t>(pieces));
  Slots slots(threads);
  StepClock clock(batch.seconds != nullptr);
  StepSeconds spent;
  with_team(threads, [&](Team& team) {
    team.each(packed.parts(), [&](int n) { packed.pack(n); });
    clock.add_to(spent.packing);
    team.each(pieces, [&](int n) {
      const Slots::Lent slot(slots);
      Piece piece(*this, batch, packed, rows_of_piece(batch.rows, pieces, n),
                  training ? gradients(n) : nullptr, all + gradient_bytes + slot.place() * slot_bytes);
      piece.run(results[static_cast<size_t>(n)]);
    });
  });
  TrainingResult total;
  const double scale = sum_results(batch, results, total);
  double wall = 0;
  clock.add_to(wall);
  if (training) {
    WeightUpdates(*this, batch, *numbers, scale, pieces).run(total);
  } else {
    total.loss += penalty();
  }
  clock.add_to(spent.update);
  if (batch.seconds != nullptr) {
    sum_seconds(results, wall, spent);
    *batch.seconds = std::move(spent);
  }
  return total;
}

// Adds up the times of the pieces, and scales them so that they add up to the wall time of all pieces.
void TrainingProgram::sum_seconds(const std::vector<TrainingResult>& pieces, double wall,
                                  StepSeconds& to) const {
  to.forward.resize(nodes_.size());
  to.backward.resize(nodes_.size());
  double all = 0;
  for (const TrainingResult& piece : pieces) {
    const StepSeconds& of = piece.seconds;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      to.forward[n] += of.forward[n];
      to.backward[n] += of.backward[n];
      all += of.forward[n] + of.backward[n];
    }
    to.losses += of.losses;
    all += of.losses;
  }
  const double share = all > 0 ? wall / all : 0;
  for (double& each : to.forward) each *= share;
  for (double& each : to.backward) each *= share;
  to.losses *= share;
}

double TrainingProgram::penalty() const {
  double sum = 0;
  for (const TrainedWeight& weight : weights_) {
    if (weight.l1 != 0 || weight.l2 != 0) sum += regularize(weight, nullptr, 1, 0, weight.count);
  }
  return sum;
}

}  // namespace cellerate
