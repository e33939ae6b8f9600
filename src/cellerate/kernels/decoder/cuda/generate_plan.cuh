// The generating kernel's arguments, the sizes for which it is compiled, and its shared memory.
//
// cellerate.kernels.decoder.cuda.plan computes the same sizes, and cellerate.kernels.decoder.cuda.records defines the
// same structures.
#pragma once

#include "lstm.cuh"
#include "sampling.cuh"

namespace cellerate::gpu {

// The request of a row of the batch.
struct Row {
  Sampling sampling;
  unsigned long long position;  // the position in its sequence of the first id that it draws
  int length;                   // the number of ids that it reads first
  int count;                    // the most ids that it then draws
  int window;                   // the number of last ids that the penalty sees; 0 for all
  int came;                     // the number of ids that the penalty has seen
  int first_stop, stops;        // the index in `stop_ids` of its first stop id, and their number
};

struct GenerateArguments {
  int batch, steps;        // B, and T: the width of ids and log_probabilities
  int states;              // S: the width of a state
  int recent;              // W: the widest window
  int every_step;          // not 0 if every step needs logits: to draw, or to score ids
  const void* table;       // (V, H of the first layer, 4): embeddings·kernel + bias
  const void* weights;     // matrix after matrix, as cellerate.kernels.decoder.cuda.weights packs them
  const float* biases;     // (units, 4) of each layer but the first, one after another
  const float* head_bias;  // (tiles, 16)
  const Row* rows;         // (B)
  const int* stop_ids;
  const int* given;    // (B, T) the ids to read, or null
  const int* times;    // (B, V) the penalty's count of each id, or null if no row has a penalty
  const int* ring;     // (B, W) the last ids that it has seen, the n-th at n modulo the row's window; or null
  const float* state;  // (B, S)
  const float* logits;       // (B, V) for the first id, if any is drawn before one is read; or null
  float* new_state;          // (B, S)
  float* new_logits;         // (B, V), or null to skip them
  int* ids;                  // (B, T) the ids drawn, each at its step
  float* log_probabilities;  // (B, T) of the ids drawn or given, each at its step; or null
  int* drawn;                // (B) the number of ids drawn, or -1 if the logits were not finite
  int* own_times;            // (kRows, V) for each block, if there is a penalty
  int* own_ring;             // (kRows, W) for each block
  float* all_logits;         // for each cluster, if shared memory has no room for logits
};

// The compile-time sizes of a kernel. They follow from `Chain`, which the generated source defines with:
//   Number, kBlockUnits, kRows, kLayers, kOutputs (V'), kVocabulary (V), kMasksZero, kSharedLogits, kSharedTable,
//   units(layer) (H itself), activation(layer), recurrent_activation(layer),
//   registers(matrix) and shared(matrix), as in `Tiers`.
// Matrices are numbered in their order: recurrent_kernel 0; kernel 1, recurrent_kernel 1; ...; the head.
template <class Chain>
struct GeneratePlan : Chain {
  using Number = typename Chain::Number;
  using L = Layout<Number>;

  static constexpr int kThreads = 8 * Chain::kBlockUnits;  // a warp per 4 units
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTiles = Chain::kRows / 8;
  static constexpr int kBlockPanels = Chain::kBlockUnits / kPanelUnits;

  CELLERATE_DEVICE static constexpr int blocks(int layer) {
    return (Chain::units(layer) + Chain::kBlockUnits - 1) / Chain::kBlockUnits;
  }
  CELLERATE_DEVICE static constexpr int panels(int layer) { return blocks(layer) * kBlockPanels; }
  CELLERATE_DEVICE static constexpr int panels_before(int layer) {
    int found = 0;
    for (int n = 0; n < layer; ++n) found += panels(n);
    return found;
  }
  CELLERATE_DEVICE static constexpr int widest() {
    int found = 0;
    for (int n = 0; n < Chain::kLayers; ++n) found = blocks(n) > found ? blocks(n) : found;
    return found;
  }
  static constexpr int kBlocks = widest();  // per cluster

  // The logits are tiles of 16, divided among the blocks. In a block, either each warp has tiles of its own, or
  // several warps share a tile, each with a part of h.
  static constexpr int kHead = 2 * Chain::kLayers - 1;
  static constexpr int kLogitTiles = (Chain::kOutputs + 15) / 16;
  static constexpr int kBlockTiles = (kLogitTiles + kBlocks - 1) / kBlocks;
  static constexpr int kSenders = (kLogitTiles + kBlockTiles - 1) / kBlockTiles;  // blocks that have logits
  CELLERATE_DEVICE static constexpr int tile_warps() {
    int warps = 1;
    while (warps < kBlockTiles && warps < kWarps) warps *= 2;
    return warps;
  }
  static constexpr int kTileWarps = tile_warps();
  static constexpr int kDepthWarps = kWarps / kTileWarps;
  static constexpr int kRounds = (kBlockTiles + kTileWarps - 1) / kTileWarps;
  static constexpr int kTileNumbers = 16 * Chain::kRows;
  // The distance of the rows of a tile's sums, so that each lane of a warp stores to another bank.
  static constexpr int kPartRow = 20;

  // Pairs of products of a warp with one row of weights, 2 · kProduct numbers each.
  CELLERATE_DEVICE static constexpr int pairs(int layer) {
    return panels(layer) * kPanelUnits / (2 * L::kProduct);
  }
  static constexpr int kHeadPairs = (pairs(Chain::kLayers - 1) + kDepthWarps - 1) / kDepthWarps;
  // The number of products of a warp with a matrix.
  CELLERATE_DEVICE static constexpr int products(int matrix) {
    return matrix == kHead ? kRounds * kHeadPairs * 2 : 2 * pairs(matrix / 2);
  }
  // The number of blocks with a part of a matrix.
  CELLERATE_DEVICE static constexpr int owners(int matrix) {
    return matrix == kHead ? kSenders : blocks((matrix + 1) / 2);
  }
  template <int matrix>
  using Matrix = Weights<Number, Tiers<Chain::registers(matrix), Chain::shared(matrix)>, kThreads,
                         products(matrix), 1, kWarps>;
  // Sizes in words: the first for all blocks, the second for one.
  CELLERATE_DEVICE static constexpr long memory_before(int matrix) {
    long found = 0;
    for (int n = 0; n < matrix; ++n) found += static_cast<long>(owners(n)) * products(n) * kThreads;
    return found;
  }
  CELLERATE_DEVICE static constexpr int shared_before(int matrix) {
    int found = 0;
    for (int n = 0; n < matrix; ++n) found += Chain::shared(n) * kThreads;
    return found;
  }
};

template <class P>
struct GenerateShared {
  using Number = typename P::Number;
  static constexpr int kSplit = Layout<Number>::kSplit;
  static constexpr int kWords = P::shared_before(P::kHead + 1);
  // Ordered by `in_panel`; the split parts of a panel follow each other.
  using Panel = Number[kSplit][P::kRows * kPanelUnits];

  // The h of all units of all layers, for this step and for the next, in the form for the matrix units.
  alignas(128) Panel h[2][P::panels_before(P::kLayers)];
  Panel sent[2][P::kLayers][P::kBlockPanels];
  alignas(16) float logits[P::kSharedLogits ? P::kSenders * P::kBlockTiles * P::kTileNumbers : 4];
  // The sums over parts of h, if several warps share a tile.
  float parts[P::kDepthWarps > 1 ? P::kWarps : 1][P::kDepthWarps > 1 ? P::kRows * P::kPartRow : 4];
  float head_bias[16 * P::kBlockTiles];  // of this block
  Row rows[P::kRows];
  double randoms[P::kRows];
  int given[P::kRows];   // the ids to read in this step
  int tokens[P::kRows];  // -1 for none
  int over[P::kRows];    // not 0 once a row draws no more
  int drawn[P::kRows];   // -1 if the logits were not finite
  Barrier arrived[P::kLayers][2];
  Barrier logits_arrived;
  alignas(16) Words weights[kWords > 0 ? kWords : 1];
  // The table's gates of the block's units. They are here because reading global memory would be slow: waiting for a
  // copy empties the first-level cache.
  Gates<Number> table[P::kSharedTable ? P::kVocabulary * P::kBlockUnits : 1];
};

}  // namespace cellerate::gpu
