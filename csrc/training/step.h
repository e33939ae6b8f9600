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
};

struct TrainingRules {
  Loss loss;
  std::vector<Measure> measures;
  UpdateKind update = UpdateKind::kSgd;
  ClipKind clip = ClipKind::kNone;
  float most = 0;  // of the clipped value or norm
  // Whether the loss is the mean over the positions that the output's mask leaves, not the sum.
  bool mean = true;
  // Whether updates take for the square of an embedding's gradient the sum of the squares of all its parts, as Keras's
  // optimizers do on TensorFlow.
  bool rows_apart = false;
};

struct TrainingBatch {
  int64_t rows = 0;
  const ValueShape* shapes = nullptr;   // of every node
  const int64_t* begins = nullptr;      // of every node: where a crop begins
  const void* const* inputs = nullptr;  // in order: (B, T, F) or (B, F) float32, or (B, T) int32
  const uint64_t* keys = nullptr;       // of every node: of its draws
  const void* targets = nullptr;        // float32 in the shape of the output, or int32 without its last axis
  const float* weights = nullptr;       // (B, positions), or null
};

// The numbers of an update that change from step to step.
struct TrainingNumbers {
  float numbers[kMostNumbers] = {};  // see UpdateKind
  float decay = 0;                   // what decaying weights lose of themselves
  double scale = 1;                  // of the sum of all positions' losses in the loss
};

struct TrainingResult {
  double loss = 0;               // of a step as `scale` makes it; else the weighted sum over all positions
  double counted = 0;            // positions that the output's mask does not leave out
  std::vector<double> measures;  // sums over all positions
};

class TrainingProgram {
 public:
  // Args: nodes: as CompiledProgram takes them, but their arrays are the live weights. mask: the node of the output's
  // mask, or -1.
  // Throws std::invalid_argument if the graph is not valid.
  TrainingProgram(std::vector<ProgramNode> nodes, std::vector<Rates> rates, int32_t output, int32_t mask,
                  std::vector<TrainedWeight> weights, TrainingRules rules);

  size_t count() const { return nodes_.size(); }
  size_t inputs() const { return inputs_; }
  size_t measures() const { return rules_.measures.size(); }
  const ProgramNode& node(size_t n) const { return nodes_[n]; }
  int32_t output() const { return output_; }
  bool takes_ids() const { return rules_.loss.kind == LossKind::kSparse; }

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
    bool by_rows =
        false;  // of an embedding in this batch: the gradients of its outputs are summed by id at the end
  };

  void check_graph();
  void find_uses();
  void choose_lookups(const TrainingBatch& batch, int64_t most_rows, bool training);
  void place_gradients(const TrainingBatch& batch);
  void check_targets(const TrainingBatch& batch) const;
  const Use* use_of(size_t node, int array) const;
  int64_t pieces_of(const TrainingBatch& batch) const;
  double products_of_row(const TrainingBatch& batch) const;
  const int32_t* ids_of(const TrainingBatch& batch, int32_t input) const;
  float* gradients(int64_t piece) const { return gradients_ + static_cast<size_t>(piece) * gradient_floats_; }
  std::byte* memory(size_t bytes);

  const Target* target_;
  std::vector<ProgramNode> nodes_;
  std::vector<int32_t> sources_;
  std::vector<Rates> rates_;
  int32_t output_, mask_;
  std::vector<TrainedWeight> weights_;
  TrainingRules rules_;
  std::vector<Use> uses_;
  std::vector<uint8_t> differentiable_;  // of each node: whether a weight that changes is behind it
  std::vector<uint8_t> looked_up_;       // of an embedding: whether only LSTMs read it
  size_t inputs_ = 0;
  size_t gradient_floats_ = 0;  // of a piece
  size_t row_floats_ = 0;       // of all gradients that are summed by id
  float* gradients_ = nullptr;
  float* row_gradients_ = nullptr;
  PackedMemory memory_;
  size_t memory_bytes_ = 0;
};

}  // namespace cellerate
