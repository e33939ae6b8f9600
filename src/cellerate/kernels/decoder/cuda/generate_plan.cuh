// What the kernel that generates is given and compiled for: its arguments, its sizes, and what it has in shared memory.
//
// A header of its own because cellerate.kernels.decoder.cuda.plan works out the same sizes, and records the same bytes.
#pragma once

#include "lstm.cuh"
#include "sampling.cuh"

namespace cellerate::gpu {

// What a row of the batch asks for.
struct Row {
  Sampling sampling;
  unsigned long long position;  // which id of its sequence the first drawn one is
  int length;                   // how many ids it reads first
  int count;                    // how many it draws then, at most
  int window;                   // the penalty sees so many of the last ids; 0 for all
  int came;                     // how many ids the penalty has seen
  int first_stop, stops;        // its stop ids among all
};

struct GenerateArguments {
  int batch, steps;     // B, and T: the width of ids and log_probabilities
  int states;           // S: the width of a state
  int recent;           // W: the widest window
  int every_step;       // not 0 where logits are wanted in every step: to draw, or to say how likely ids are
  const void* table;    // (V, H of the first layer, 4): embeddings·kernel + bias
  const void* weights;  // matrix after matrix as cellerate.kernels.decoder.cuda.plan packs them
  const float* biases;  // of each layer but the first (units, 4), one after another
  const float* head_bias;  // (tiles, 16)
  const Row* rows;         // (B)
  const int* stop_ids;
  const int* given;    // (B, T) the ids to read, or null
  const int* times;    // (B, V) how often the penalty has seen each id, or null: no row has one
  const int* ring;     // (B, W) the last ids that it has seen, number n at n modulo the row's window; or null
  const float* state;  // (B, S)
  const float* logits;       // (B, V) of the first id, where any is drawn before one is read; or null
  float* new_state;          // (B, S)
  float* new_logits;         // (B, V), or null: not wanted
  int* ids;                  // (B, T) those drawn, each at its step
  float* log_probabilities;  // (B, T) of the ids drawn or given, each at its step; or null
  int* drawn;                // (B) how many, or -1 where the logits were no numbers
  int* own_times;            // for each block (kRows, V), where there is a penalty
  int* own_ring;             // for each block (kRows, W)
  float* all_logits;         // for each cluster, where there is no room for them in shared memory
};

// What a kernel is compiled for, worked out from `Chain`, which the kernel's source defines:
//   Number, kBlockUnits, kRows, kLayers, kOutputs (V'), kVocabulary (V), kMasksZero, kSharedLogits, kSharedTable,
//   units(layer) (H itself), activation(layer), recurrent_activation(layer),
//   registers(matrix) and shared(matrix), as in `Tiers`.
// Matrices are numbered as they come: recurrent_kernel 0; kernel 1, recurrent_kernel 1; ...; the head.
template <class Chain>
struct GeneratePlan : Chain {
  using Number = typename Chain::Number;
  using L = Layout<Number>;

  static constexpr int kThreads = 8 * Chain::kBlockUnits;  // a warp for each 4 units
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
  static constexpr int kBlocks = widest();  // of a cluster

  // The logits: tiles of 16, shared among the blocks; in a block either a warp has a tile, or several have parts of h.
  static constexpr int kHead = 2 * Chain::kLayers - 1;
  static constexpr int kLogitTiles = (Chain::kOutputs + 15) / 16;
  static constexpr int kBlockTiles = (kLogitTiles + kBlocks - 1) / kBlocks;
  static constexpr int kSenders = (kLogitTiles + kBlockTiles - 1) / kBlockTiles;  // blocks that have some
  CELLERATE_DEVICE static constexpr int tile_warps() {
    int warps = 1;
    while (warps < kBlockTiles && warps < kWarps) warps *= 2;
    return warps;
  }
  static constexpr int kTileWarps = tile_warps();
  static constexpr int kDepthWarps = kWarps / kTileWarps;
  static constexpr int kRounds = (kBlockTiles + kTileWarps - 1) / kTileWarps;
  static constexpr int kTileNumbers = 16 * Chain::kRows;
  // Of a tile's sums, rows are so far apart that the lanes of a warp store theirs in as many banks.
  static constexpr int kPartRow = 20;

  // Pairs of products of a warp with one row of weights: 2 · kProduct numbers each.
  CELLERATE_DEVICE static constexpr int pairs(int layer) {
    return panels(layer) * kPanelUnits / (2 * L::kProduct);
  }
  static constexpr int kHeadPairs = (pairs(Chain::kLayers - 1) + kDepthWarps - 1) / kDepthWarps;
  // The products of a warp with a matrix.
  CELLERATE_DEVICE static constexpr int products(int matrix) {
    return matrix == kHead ? kRounds * kHeadPairs * 2 : 2 * pairs(matrix / 2);
  }
  // The blocks that have some of a matrix.
  CELLERATE_DEVICE static constexpr int owners(int matrix) {
    return matrix == kHead ? kSenders : blocks((matrix + 1) / 2);
  }
  template <int matrix>
  using Matrix = Weights<Number, Tiers<Chain::registers(matrix), Chain::shared(matrix)>, kThreads,
                         products(matrix), 1, kWarps>;
  // In words, of all blocks and of one.
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
  // By `in_panel`; the split parts of a panel lie one behind the other.
  using Panel = Number[kSplit][P::kRows * kPanelUnits];

  // The h of all units of all layers, of this step and of the next, as the matrix units take it.
  alignas(128) Panel h[2][P::panels_before(P::kLayers)];
  Panel sent[2][P::kLayers][P::kBlockPanels];
  alignas(16) float logits[P::kSharedLogits ? P::kSenders * P::kBlockTiles * P::kTileNumbers : 4];
  // The sums of parts of h, where several warps have them.
  float parts[P::kDepthWarps > 1 ? P::kWarps : 1][P::kDepthWarps > 1 ? P::kRows * P::kPartRow : 4];
  float head_bias[16 * P::kBlockTiles];  // of this block
  Row rows[P::kRows];
  double randoms[P::kRows];
  int given[P::kRows];   // the ids to read in this step
  int tokens[P::kRows];  // -1 for none
  int over[P::kRows];    // not 0 once a row draws no more
  int drawn[P::kRows];   // -1 where the logits were no numbers
  Barrier arrived[P::kLayers][2];
  Barrier logits_arrived;
  alignas(16) Words weights[kWords > 0 ? kWords : 1];
  // What the table has of the units of the block. Memory would be far away: who waits for a copy empties the first-level
  // cache.
  Gates<Number> table[P::kSharedTable ? P::kVocabulary * P::kBlockUnits : 1];
};

}  // namespace cellerate::gpu
