// A whole training step as one call: a graph of layers forward, a loss, back again, and the update of the weights.
//
// The rows of a batch do not depend on each other. So the step divides them into pieces, and a thread takes a piece
// through all layers and times, forward and backward. Threads take pieces as they become free, and meet only to add the
// gradients in the order of the pieces: a step gives the same bits for any number of threads and any load of the
// machine. A batch of few rows is one piece, whose layers the threads divide by units.
//
// training/kernels.h has the arithmetic of a target; this file has the graph, its memory and the order of the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/packed_memory.h"
#include "engine/program.h"
#include "training/kernels.h"
#include "training/lookups.h"

namespace cellerate {

// The dropout rates of a node. A dropout node has only `inputs`; an LSTM has both.
struct Rates {
  float inputs = 0, state = 0;
};

// A trainable weight.
struct TrainedWeight {
  float* values = nullptr;
  int64_t count = 0;
  float* slots[kMostSlots] = {};
  bool decays = true;
  float* accumulated = nullptr;  // the gradients of the steps since the last update, or null
  float* average = nullptr;      // the moving average of the weight, or null
  // The regularizer adds l1 |w| + l2 w² to the loss; `slope_at_zero` is the slope of |w| at 0.
  float l1 = 0, l2 = 0, slope_at_zero = 0;

  // Whether anything is added to the gradient of the loss.
  bool has_more() const { return accumulated != nullptr || l1 != 0 || l2 != 0; }
};

// An output and its loss.
struct LossHead {
  int32_t output = 0;
  int32_t mask = -1;    // the node of its mask, or -1
  int32_t logits = -1;  // the node that the loss reads instead of the output, of the same shape, or -1
  Loss loss;
  std::vector<float> levels;  // the quantile levels of a quantile loss
  // Whether the loss is the mean over the positions that are not masked, or else their sum.
  bool mean = true;
  // Whether the mean is divided by the sum of the sample weights, if there are any, or else by the number of positions.
  bool by_weight = false;
  double factor = 1;  // the weight of this loss in the total loss
  std::vector<Measure> measures;

  int32_t read_by_loss() const { return logits < 0 ? output : logits; }
  bool takes_ids() const { return loss.kind == LossKind::kSparse; }
  // The size of the target at a position where the output has `features` numbers.
  int64_t target_features(int64_t features) const {
    return takes_ids() ? 1 : loss.kind == LossKind::kQuantile ? features / loss.level_count : features;
  }
};

// The moving statistics of a batch normalisation, which a step moves towards the statistics of its batch.
struct Moments {
  int32_t node = 0;
  float *mean = nullptr, *variance = nullptr;
  int64_t features = 0;
  float momentum = 0;  // the share of the old statistics that a step keeps
};

struct TrainingRules {
  std::vector<LossHead> heads;
  UpdateKind update = UpdateKind::kSgd;
  ClipKind clip = ClipKind::kNone;
  float most = 0;  // the largest value or norm that clipping allows
  // Whether the squared gradient of an embedding row is the sum of the squares of its parts, one part for each position
  // that reads the row, and not the square of their sum. Keras's optimizers do so on TensorFlow.
  bool rows_apart = false;
  bool norms = false;  // whether the caller asks for the norm of all gradients
  std::vector<Moments> moments;
  std::vector<int32_t> copied;  // nodes whose values the caller asks for
  // LSTMs that compute in bfloat16 on targets with bfloat16 products; on others it would cost accuracy and time.
  std::vector<int32_t> narrow;

  bool clips_norms() const { return clip == ClipKind::kNorm || clip == ClipKind::kGlobalNorm; }
};

// The targets and sample weights of an output in a batch.
struct HeadBatch {
  // For one row. The loss has a value for each position; positions * features is the size of the output.
  int64_t positions = 0, features = 0;
  const void* targets = nullptr;   // (B, positions, LossHead::target_features) float32, or int32 ids
  const float* weights = nullptr;  // (B, positions), or null
};

// The seconds of each part of a step, as if the parts ran one after the other.
struct StepSeconds {
  std::vector<double> forward, backward;  // of every node
  double losses = 0, packing = 0, update = 0;
};

struct TrainingBatch {
  int64_t rows = 0;
  const ValueShape* shapes = nullptr;   // for every node
  const int64_t* begins = nullptr;      // for every node: where a crop begins
  const void* const* inputs = nullptr;  // in order: (B, T, F) or (B, F) float32, or (B, T) int32
  const uint64_t* keys = nullptr;       // for every node: the key of its random numbers
  // For every node: if it is a gather, the index in a row of x of each number of its own row.
  const int32_t* const* gathers = nullptr;
  const HeadBatch* heads = nullptr;  // for every head
  float* const* copies = nullptr;    // for every copied node: its value is written here, (B, ...)
  StepSeconds* seconds = nullptr;    // the time of each part is written here; null to measure nothing
};

// The numbers of an update that change from step to step.
struct TrainingNumbers {
  float numbers[kMostNumbers] = {};  // see UpdateKind
  float decay = 0;                   // the share of itself that a decaying weight loses
  // The factor that makes accumulated gradients a mean, or 0 for a step that only accumulates.
  float share = 1;
  float kept = 0;         // the share of the old value that a moving average keeps
  bool averaged = false;  // whether the step ends by setting the weights to their averages
};

struct HeadResult {
  // For a piece, the weighted sum over its positions; for a step, the mean or sum that the head asks for.
  double loss = 0;
  // The number of positions that are not masked; with LossHead::by_weight, the sum of the sample weights.
  double counted = 0;
  std::vector<MeasureSums> measures;
};

struct TrainingResult {
  double loss = 0;  // the sum of each head's loss times its factor, and of the regularizers
  double norm = 0;  // the norm of all gradients before clipping, if TrainingRules::norms asks for it
  std::vector<HeadResult> heads;
  StepSeconds seconds;  // for a piece, if TrainingBatch::seconds asks for them
};

class TrainingProgram {
 public:
  // Args: nodes: as for CompiledProgram, but their arrays are the live weights.
  // Throws std::invalid_argument if the graph is not valid.
  TrainingProgram(std::vector<ProgramNode> nodes, std::vector<Rates> rates,
                  std::vector<TrainedWeight> weights, TrainingRules rules);

  size_t count() const { return nodes_.size(); }
  size_t inputs() const { return inputs_; }
  const std::vector<LossHead>& heads() const { return rules_.heads; }
  const std::vector<int32_t>& copied() const { return rules_.copied; }
  const ProgramNode& node(size_t n) const { return nodes_[n]; }

  // Runs one step. If `numbers` is null, computes only the loss and the measures, without dropout or updates.
  // Throws std::out_of_range if an id is not a row of its table or of the output, and std::bad_alloc.
  TrainingResult run(const TrainingBatch& batch, const TrainingNumbers* numbers);

 private:
  friend class Piece;
  friend class PackedLayers;
  friend class WeightUpdates;
  friend struct StepLayout;

  // The gradient of one array of a node, in the memory of a piece.
  struct Use {
    int32_t node = 0, array = 0;
    int32_t weight = -1;  // the index of the weight that it changes, or -1
    size_t offset = 0;    // in floats
    int64_t count = 0;
    bool squares =
        false;  // for an embedding with TrainingRules::rows_apart: sums of squares follow the gradient
    // For an embedding in this batch: whether the gradients of its outputs are summed by id at the end.
    bool by_rows = false;
  };

  void check_graph();
  void find_uses();
  bool shares_table(size_t node) const;
  // In lookups.cpp.
  void choose_lookups(const TrainingBatch& batch, int64_t pieces, bool training);
  void choose_lookup(size_t embedding, const TrainingBatch& batch, int64_t pieces, bool training);
  InputParts parts_of(size_t lstm, const TrainingBatch& batch, bool training) const;
  void find_skipped();
  bool is_input_of(size_t lstm, size_t node, bool training) const;
  template <class Check>
  bool all_readers(size_t node, const Check& check) const;
  void place_gradients(const TrainingBatch& batch);
  void check_heads(const TrainingBatch& batch) const;
  const Moments* moments_of(size_t node) const;
  // Whether a loss or the caller reads the value of a node.
  bool is_output(size_t node) const;
  // Whether the scale of a loss depends on the mask or the sample weights of all rows.
  static bool counts_positions(const LossHead& head) {
    return head.by_weight || (head.mean && head.mask >= 0);
  }
  // The factor that makes the sum of a head's loss the mean that it asks for; 1 for a sum. `counted` is that of all rows.
  double scale_of(const TrainingBatch& batch, size_t head, double counted) const;
  double sum_results(const TrainingBatch& batch, const std::vector<TrainingResult>& pieces,
                     TrainingResult& total) const;
  double penalty() const;
  void sum_seconds(const std::vector<TrainingResult>& pieces, double wall, StepSeconds& to) const;
  const Use* use_of(size_t node, int array) const;
  // Adds the square of each number of a gradient part to `to`, or for Adamax its absolute value.
  void add_apart(const float* d, float* to, int64_t count) const;
  // The type of an LSTM's inputs and outputs.
  Storage storage_of(int32_t node) const;
  int64_t pieces_of(const TrainingBatch& batch, double products) const;
  double products_of_row(const TrainingBatch& batch) const;
  const int32_t* ids_of(const TrainingBatch& batch, int32_t input) const;
  // The lookup that gives an LSTM the products of its inputs; null if the LSTM computes them.
  const Lookup* lookup_of(int32_t lstm) const;
  float* gradients(int64_t piece) const { return gradients_ + static_cast<size_t>(piece) * gradient_floats_; }
  std::byte* memory(size_t bytes);

  const Target* target_;
  std::vector<ProgramNode> nodes_;
  std::vector<int32_t> sources_;
  std::vector<Rates> rates_;
  std::vector<TrainedWeight> weights_;
  TrainingRules rules_;
  std::vector<Use> uses_;
  std::vector<uint8_t> differentiable_;  // for each node: whether its value depends on a trainable weight
  std::vector<Lookup> lookups_;          // for each node; used for embeddings that only LSTMs read
  std::vector<InputParts> parts_;        // for each node; used for LSTMs
  std::vector<uint8_t> skipped_;         // for each node: whether LSTMs read its parts in place of its value
  size_t inputs_ = 0;
  size_t gradient_floats_ = 0;  // the size of a piece's gradients
  size_t row_floats_ = 0;       // the size of all gradients that are summed by id
  float* gradients_ = nullptr;
  float* row_gradients_ = nullptr;
  PackedMemory memory_;
  size_t memory_bytes_ = 0;
};

}  // namespace cellerate
