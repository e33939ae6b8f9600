// A whole training step as one call: a graph of layers forward, a loss, back again, and the update of the weights.
//
// A row of the batch is computed by itself, so the rows are divided into pieces, and a thread takes a piece through all
// layers and times, forward and backward. Threads take pieces as they become free, and meet only to add the gradients,
// piece after piece, so that a step gives the same bits whatever the number of threads and the load of the machine.
// A batch of few rows is one piece, whose layers are divided among the threads by units.
//
// training/kernels.h is what a target computes; here are the graph, its memory and the order of the work.
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

// The shares of numbers that are dropped: of a dropout the first; of an LSTM those of its inputs and of its state.
struct Rates {
  float inputs = 0, state = 0;
};

// A weight that changes, where it is kept.
struct TrainedWeight {
  float* values = nullptr;
  int64_t count = 0;
  float* slots[kMostSlots] = {};
  bool decays = true;
  float* accumulated = nullptr;  // the gradients of the steps since the last update, or null
  float* average = nullptr;      // the moving average of the weight, or null
  // Its regularizer adds l1 |w| + l2 w² to the loss; at 0, |w| has this slope.
  float l1 = 0, l2 = 0, slope_at_zero = 0;

  // Whether its gradient is more than that of the loss.
  bool has_more() const { return accumulated != nullptr || l1 != 0 || l2 != 0; }
};

// An output and the loss that compares it.
struct LossHead {
  int32_t output = 0;
  int32_t mask = -1;    // the node of its mask, or -1
  int32_t logits = -1;  // the node that the loss reads in the place of the output, of the same shape, or -1
  Loss loss;
  std::vector<float> levels;  // of a loss of quantiles
  // Whether the loss is the mean over the positions that the mask leaves, not the sum.
  bool mean = true;
  // Whether such a mean is divided by the sum of all weights, where there are some, and not by their number.
  bool by_weight = false;
  double factor = 1;  // of the loss in the sum of all
  std::vector<Measure> measures;

  int32_t read_by_loss() const { return logits < 0 ? output : logits; }
  bool takes_ids() const { return loss.kind == LossKind::kSparse; }
  // How many numbers of a target belong to so many of an output.
  int64_t target_features(int64_t features) const {
    return takes_ids() ? 1 : loss.kind == LossKind::kQuantile ? features / loss.level_count : features;
  }
};

// The moving statistics of a batch normalisation, which a step moves towards those of its batch.
struct Moments {
  int32_t node = 0;
  float *mean = nullptr, *variance = nullptr;
  int64_t features = 0;
  float momentum = 0;  // what they keep of themselves
};

struct TrainingRules {
  std::vector<LossHead> heads;
  UpdateKind update = UpdateKind::kSgd;
  ClipKind clip = ClipKind::kNone;
  float most = 0;  // of the clipped value or norm
  // Whether updates take for the square of an embedding's gradient the sum of the squares of all its parts, as Keras's
  // optimizers do on TensorFlow.
  bool rows_apart = false;
  bool norms = false;  // whether the norm of all gradients is wanted
  std::vector<Moments> moments;
  std::vector<int32_t> copied;  // nodes whose values are wanted
  // LSTMs that compute in bfloat16, where the target has such products: elsewhere this would cost accuracy and time.
  std::vector<int32_t> narrow;

  bool clips_norms() const { return clip == ClipKind::kNorm || clip == ClipKind::kGlobalNorm; }
};

// What an output is compared with in a batch.
struct HeadBatch {
  // Of a row: the loss has a value for each position. Their product is the size of the output.
  int64_t positions = 0, features = 0;
  const void* targets = nullptr;   // (B, positions, LossHead::target_features) float32, or int32 ids
  const float* weights = nullptr;  // (B, positions), or null
};

// The seconds that the parts of a step take, as if they followed each other.
struct StepSeconds {
  std::vector<double> forward, backward;  // of every node
  double losses = 0, packing = 0, update = 0;
};

struct TrainingBatch {
  int64_t rows = 0;
  const ValueShape* shapes = nullptr;   // of every node
  const int64_t* begins = nullptr;      // of every node: where a crop begins
  const void* const* inputs = nullptr;  // in order: (B, T, F) or (B, F) float32, or (B, T) int32
  const uint64_t* keys = nullptr;       // of every node: of its draws
  // Of every node: of a gather, for each number of a row, its place in a row of x.
  const int32_t* const* gathers = nullptr;
  const HeadBatch* heads = nullptr;  // of every head
  float* const* copies = nullptr;    // where the values that are wanted go, (B, ...)
  StepSeconds* seconds = nullptr;    // takes the time of each part, if it is not null
};

// The numbers of an update that change from step to step.
struct TrainingNumbers {
  float numbers[kMostNumbers] = {};  // see UpdateKind
  float decay = 0;                   // what decaying weights lose of themselves
  // Of accumulated gradients: their share in the mean, or 0 for a step that only adds its own to them.
  float share = 1;
  float kept = 0;         // what moving averages keep of themselves
  bool averaged = false;  // whether weights become their averages at the end
};

struct HeadResult {
  // Of a piece the weighted sum over its positions; of a step the mean or the sum, as the head asks.
  double loss = 0;
  // The positions that the mask does not leave out; of a mean by weight the sum of all weights.
  double counted = 0;
  std::vector<MeasureSums> measures;
};

struct TrainingResult {
  double loss = 0;  // all heads' losses times their factors, and what regularizers add
  double norm = 0;  // of all gradients before they are clipped, if it is wanted
  std::vector<HeadResult> heads;
  StepSeconds seconds;  // of a piece, if they are wanted
};

class TrainingProgram {
 public:
  // Args: nodes: as CompiledProgram takes them, but their arrays are the live weights.
  // Throws std::invalid_argument if the graph is not valid.
  TrainingProgram(std::vector<ProgramNode> nodes, std::vector<Rates> rates,
                  std::vector<TrainedWeight> weights, TrainingRules rules);

  size_t count() const { return nodes_.size(); }
  size_t inputs() const { return inputs_; }
  const std::vector<LossHead>& heads() const { return rules_.heads; }
  const std::vector<int32_t>& copied() const { return rules_.copied; }
  const ProgramNode& node(size_t n) const { return nodes_[n]; }

  // One step; without numbers the loss and the measures alone, with all drops left out and no weight changed.
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
    int32_t weight = -1;  // which weight it changes, or none
    size_t offset = 0;    // in floats
    int64_t count = 0;
    bool squares = false;  // of an embedding whose rows are apart: the sums of squares follow the gradient
    // Of an embedding in this batch: the gradients of its outputs are summed by id at the end.
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
  // Whether the value of a node is needed by others than nodes.
  bool is_output(size_t node) const;
  double scale_of(const TrainingBatch& batch, size_t head) const;
  double sum_results(const TrainingBatch& batch, const std::vector<TrainingResult>& pieces,
                     TrainingResult& total) const;
  double penalty() const;
  void sum_seconds(const std::vector<TrainingResult>& pieces, double wall, StepSeconds& to) const;
  const Use* use_of(size_t node, int array) const;
  // Adds what an update takes for the square of a gradient in parts: their squares, of Adamax their sizes.
  void add_apart(const float* d, float* to, int64_t count) const;
  // The type in which an LSTM takes and gives numbers.
  Storage storage_of(int32_t node) const;
  int64_t pieces_of(const TrainingBatch& batch, double products) const;
  double products_of_row(const TrainingBatch& batch) const;
  const int32_t* ids_of(const TrainingBatch& batch, int32_t input) const;
  // The lookup of what an LSTM reads at each position; null if it reads that itself.
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
  std::vector<uint8_t> differentiable_;  // of each node: whether a weight that changes is behind it
  std::vector<Lookup> lookups_;          // of an embedding that only LSTMs read
  std::vector<InputParts> parts_;        // of an LSTM
  std::vector<uint8_t> skipped_;         // of each node: whether its value is only read in parts
  size_t inputs_ = 0;
  size_t gradient_floats_ = 0;  // of a piece
  size_t row_floats_ = 0;       // of all gradients that are summed by id
  float* gradients_ = nullptr;
  float* row_gradients_ = nullptr;
  PackedMemory memory_;
  size_t memory_bytes_ = 0;
};

}  // namespace cellerate
