// A packed model as one call: a graph of layers whose weights are packed once. It runs on whole sequences, or step by
// step on ids that it draws.
//
// The rows of a batch do not depend on each other. So threads divide the rows, and each runs the whole graph on a block
// of rows, without a hand-over between layers. With fewer rows than threads, several threads share a block: each
// computes its own columns, and they meet after every product. program_kernels.h has the arithmetic, compiled once per
// target; this file has the graph, its checks, its memory and the choice of threads.
//
// In float32 every product sums over its inputs in ascending order, starting from the bias. So the result of a row does
// not depend on the other rows or on the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cells/lstm.h"
#include "engine/generation.h"
#include "engine/pace.h"
#include "engine/packed_memory.h"

namespace cellerate {

struct Target;

// program_table.h has a row for each.
enum class ProgramOp : int32_t {
  kInput,
  kEmbedding,
  kIdsMask,
  kFeaturesMask,
  kFlipMask,
  kAnyMask,
  kMasked,
  kWhere,
  kLstm,
  kLstmState,
  kDense,
  kActivation,
  kLayerNorm,
  kAffine,
  kAdd,
  kSubtract,
  kMultiply,
  kAverage,
  kMaximum,
  kMinimum,
  kConcatenate,
  kReshape,
  kRepeatVector,
  kCrop,
  kFlip,
  kMeanOverTime,
  kMaxOverTime,
  kDropout,
  kSpatialDropout,
  kStepDropout,
  kGather,
  kCumsum,
  kBatchNorm,
  kWindows,
  kMaxPool,
  kAveragePool,
  kSum,
  kMean,
  kMax,
  kMin,
  kSoftmax,
  kTranspose,
  kDivide,
  kDot,
  kAttention,
  kGaussianDropout,
  kGaussianNoise,
  kGroupedDense,
  kFunction,
  kCompare,
  kChoose,
  kPad,
  kTake,
  kCount,
};

constexpr bool is_dense(ProgramOp op) { return op == ProgramOp::kDense || op == ProgramOp::kGroupedDense; }

// The normalisation after the activation of a dense or activation node, over its last axis.
enum class Normalizer : int32_t { kNone, kSoftmax, kLogSoftmax, kCount };
inline constexpr const char* kNormalizerNames[] = {"", "softmax", "log_softmax"};

// The function of a function node. From kGreater on, it compares each number with ProgramNode::number; a compare node
// compares it with another value instead. The names are the same in cellerate.program.
enum class Function : int32_t {
  kSqrt,
  kRsqrt,
  kReciprocal,
  kLog,
  kLog1p,
  kExpm1,
  kSin,
  kCos,
  kAbs,
  kSign,
  kFloor,
  kCeil,
  kRound,
  kPower,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  kCount
};
inline constexpr const char* kFunctionNames[] = {
    "sqrt",    "rsqrt",         "reciprocal", "log",        "log1p", "expm1",    "sin",
    "cos",     "abs",           "sign",       "floor",      "ceil",  "round",    "power",
    "greater", "greater_equal", "less",       "less_equal", "equal", "not_equal"};
static_assert(std::size(kFunctionNames) == static_cast<size_t>(Function::kCount));
// Whether the derivative is 0 wherever it exists.
constexpr bool is_step(Function of) {
  return of >= Function::kGreater || (of >= Function::kSign && of <= Function::kRound);
}

// The kind of a node's value for each row: numbers (N, T, F), (T, F) or (F), ids (T) or a mask (T).
enum class ValueKind : int32_t { kNumbers, kIds, kMask };

// The shape of a value. `steps` is 0 for numbers without a time axis; `features` is 1 for ids and masks. For numbers
// with three axes `sequences` is N and `steps` is N·T; with more, N is the product of the axes before T; else it is 0.
struct ValueShape {
  int64_t steps = 0, features = 0, sequences = 0;
  int64_t positions() const { return steps == 0 ? 1 : steps; }
  bool operator==(const ValueShape&) const = default;
};

// One operation. Its arrays are read only while the program is constructed.
struct ProgramNode {
  ProgramOp op = ProgramOp::kInput;
  // The indices of earlier nodes; for an LSTM: x, mask, h0, c0. An absent input is -1.
  const int32_t* inputs = nullptr;
  int32_t input_count = 0;
  // The shape of the kernel; for an embedding V and E, for an LSTM D and H; else `columns` is the number of features.
  int64_t rows = 0, columns = 0;
  const float* kernel = nullptr;            // (K, N), (D, 4H), (V, E); gamma or scale (F), or null
  const float* recurrent_kernel = nullptr;  // (H, 4H)
  const float* bias = nullptr;              // (N), (4H); beta or offset (F), or null
  Activation activation = Activation::kLinear;
  Activation recurrent_activation = Activation::kSigmoid;
  Normalizer normalizer = Normalizer::kNone;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false, return_sequences = true;
  bool ids = false;   // for an input: whether it holds ids
  bool cell = false;  // for a state of an LSTM: whether it is c, or else h
  // Epsilon, the value of a masked feature, the factor of scores, the axis of a concatenation, the greatest masked id,
  // the exponent of a power, the number to compare with, the cap of logits (0 for no cap), or the axis of a flip.
  float number = 0;
  int64_t whole[3] = {};  // integer options; see ProgramOpRow::whole
  // For a take: the entries of x, from 0 on, or from -1 backwards.
  std::vector<int64_t> taken;
  Function function() const { return static_cast<Function>(whole[0]); }  // for a function or compare node
  bool flips_features() const { return number != 1; }  // for a flip node, whose number is its axis
};

[[noreturn]] void refuse_node(size_t node, const std::string& what);

// Copies the inputs of all nodes to `sources`, and lets the nodes point there. Throws std::invalid_argument if a node
// reads a wrong input or lacks its weights.
void take_inputs(std::vector<ProgramNode>& nodes, std::vector<int32_t>& sources);

// Throws std::out_of_range if an input id is not a row of each embedding that reads it.
void check_ids(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const void* const* inputs,
               int64_t batch);

// Throws std::invalid_argument if an LSTM has only one of h0 and c0, or a state node does not read an LSTM.
void check_states(const std::vector<ProgramNode>& nodes, size_t n);

// Throws std::invalid_argument if the shapes of nodes do not fit each other. `begins` is ProgramCall::begins.
// `stretches` allows merging an input with another that has a multiple of its steps, and concatenating along time.
void check_shapes(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const int64_t* begins,
                  bool stretches = false);

// How the value of a node is linked to other nodes. It is the same for all calls.
struct ValueLink {
  ValueKind kind = ValueKind::kNumbers;
  int32_t owner =
      0;  // the node whose memory holds the value: this node, or the concatenation that it is a part of
  // For an owner, the last node that reads its memory; beyond the last node for an output.
  int32_t last_use = 0;
  bool wanted = false;   // whether a node or the caller reads the value
  bool nothing = false;  // whether another node does the work of this node
  bool natural =
      false;  // for an LSTM that goes backwards: whether its outputs are in the order of its inputs
  // For an embedding or a mask of ids: whether only LSTMs read it, which then read the ids instead.
  bool looked_up = false;
  bool tabled = false;  // for an LSTM that looks ids up: whether in a table of embeddings·kernel + bias
  // For an LSTM: another LSTM that can run beside it on other threads, or -1. Either the two are independent, or the
  // later one reads the outputs of the earlier one, and follows it step by step.
  int32_t partner = -1;
};

// Whether an LSTM runs beside its partner where threads share a block. If one follows the other, this takes several
// steps; for a single step it is faster to divide each layer among all threads.
inline bool runs_beside(const ProgramNode* nodes, const ValueLink* links, const ValueShape* shapes,
                        int32_t n) {
  const int32_t partner = links[n].partner;
  if (partner < 0) return false;
  const bool follows = nodes[partner].inputs[0] == n || nodes[n].inputs[0] == partner;
  return !follows || shapes[nodes[n].inputs[0]].steps > 1;
}

// Where a value lies while a block of rows runs.
struct ValuePlace {
  size_t offset = 0;   // in bytes, in the memory of the block
  int64_t stride = 0;  // in elements, from row to row
  int64_t column = 0;  // in elements, where a part of a concatenation begins
  // The input or output of the call whose array holds the value, because its layout is the layout of a block; -1 if the
  // value lies in the memory of the block.
  int32_t input = -1, output = -1;
};

// The use of the first output of a call.
enum class FirstOutput : int32_t {
  kGiven,   // returned, like all other outputs
  kDrawn,   // logits: each step draws an id, and the next step reads it; the input of ids is ignored
  kScored,  // logits: the call returns the log probabilities of given ids
  kNone,    // not used: the caller asks for states only
};

// The arguments of a call that draws or scores ids.
struct TextCall {
  Generation* generation = nullptr;
  // For scoring: the id after each step, or -1 for a log probability of 0; and the array for the log probabilities.
  // Both are (B, scored); `next_row` and `log_probabilities_row` are the elements from row to row.
  const int32_t* next = nullptr;
  float* log_probabilities = nullptr;
  int64_t next_row = 0, log_probabilities_row = 0;
  int64_t scored = 0;  // steps
};

// One call of a packed model.
struct ProgramCall {
  int64_t batch = 0;
  const ValueShape* shapes = nullptr;  // for every node
  // For every node: where a crop begins, the index that a node takes, the steps of padding before a sequence, or 1 for
  // an operation along the features, not along time.
  const int64_t* begins = nullptr;
  const void* const* inputs = nullptr;  // in order: (B, T, F) or (B, F) float32, or (B, T) int32
  float* const* outputs = nullptr;      // in order: (B, T, F) or (B, F)
  double* seconds = nullptr;  // for every node, or null: the first thread adds the time it spends on the node
  // For each input and output of ids, or of numbers without a time axis: elements from row to row. Null if dense.
  const int64_t* input_rows = nullptr;
  const int64_t* output_rows = nullptr;
  int threads = 0;        // 0 for as many as make the call faster
  bool together = false;  // threads share each block, even if each could have rows of its own
  FirstOutput first_output = FirstOutput::kGiven;
  const TextCall* text = nullptr;
};

// How to run calls of the same sizes; planned once for all of them.
struct ProgramPlan {
  // The threads divide a call as `teams` of `members` threads each, or if meeting takes too long, as `apart` teams of a
  // single thread; `threads` are available.
  int64_t teams = 1, members = 1, apart = 1;
  int threads = 1;
  double products = 0;             // of the whole call
  int64_t rows = 1;                // the most rows of a block
  size_t bytes = 0;                // the size of the values of a block
  std::vector<ValuePlace> places;  // for every node
  std::vector<int32_t> order;      // the nodes that have work to do
};

// The task of a kernel. Plain pointers only: kernels are compiled for other instruction sets, and must not instantiate
// code of the standard library (see threads.h).
struct ProgramRun {
  ProgramCall call;
  const ProgramNode* nodes = nullptr;  // without their arrays
  const ValueLink* links = nullptr;
  const ValuePlace* places = nullptr;
  int32_t count = 0;               // of nodes
  const int32_t* order = nullptr;  // the nodes that have work to do
  int32_t order_count = 0;
  const int32_t* outputs = nullptr;
  int32_t output_count = 0;
  size_t bytes = 0;            // of the values of a block
  int64_t rows_of_block = 0;   // at most
  int teams = 1, members = 1;  // one of them is 1
  // The first thread calls it after each node, unless `clock` is null.
  void (*mark)(void* clock, int32_t node) = nullptr;
  void* clock = nullptr;
};

struct ProgramGraph {
  const ProgramNode* nodes;
  const ValueLink* links;
  int32_t count;
  Precision precision;
  bool static_scales;
};

// A target's implementation.
struct ProgramKernels {
  // Packs the weights into memory and returns their size in bytes; with null it only counts. Throws std::bad_alloc.
  size_t (*pack)(const ProgramGraph& graph, std::byte* memory);
  // Runs the program on packed weights. Ids must be checked before. Throws std::bad_alloc and like parallel().
  void (*run)(const std::byte* packed, const ProgramRun& run);
  Exponentials exponentials;
  int64_t
      tile_rows;  // that bfloat16 and int8 multiply at once in tiles, or 0 if they are multiplied in vectors
};

// How a program is packed.
struct ProgramOptions {
  size_t most_bytes = std::numeric_limits<size_t>::max();  // the limit for the packed weights
  // The largest table of embeddings·kernel + bias, in bytes: rows of a larger table would come from main memory.
  int64_t largest_table = int64_t{16} << 20;
  // In int8, outputs of LSTMs in [-1, 1] become bytes with a scale of 1/127. This is a little coarser than a scale for
  // each row, but the LSTM has already made these bytes for itself.
  bool static_scales = false;
  // Gives the same numbers on every target in float32, int8 and int4; slower on targets without instructions for it.
  bool same_everywhere = false;
};

// An immutable program; any number of threads may run it at once.
class CompiledProgram {
 public:
  // Throws std::invalid_argument if the graph is not valid or its weights exceed most_bytes, and std::bad_alloc.
  CompiledProgram(std::vector<ProgramNode> nodes, std::vector<int32_t> outputs, Precision precision,
                  const ProgramOptions& options);

  size_t packed_bytes() const { return bytes_; }
  const char* target() const;
  const Exponentials& exponentials() const;
  size_t count() const { return nodes_.size(); }
  const ProgramNode& node(size_t n) const { return nodes_[n]; }
  size_t inputs() const { return inputs_; }
  size_t outputs() const { return outputs_.size(); }
  const std::vector<ValueLink>& links() const { return links_; }
  // For each node, the LSTM that runs beside it if the threads of the call share a block, or -1.
  std::vector<int32_t> partners(const ProgramCall& call) const;
  // Of the nodes that are inputs or outputs, in order.
  bool is_ids(size_t node) const { return nodes_[node].ids; }
  size_t node_of_input(size_t n) const;
  size_t node_of_output(size_t n) const { return static_cast<size_t>(outputs_[n]); }

  // Plans calls of these sizes for the current number of threads; does not read their arrays. Throws
  // std::invalid_argument if the shapes do not fit the graph.
  ProgramPlan plan(const ProgramCall& call) const;
  // Throws std::out_of_range if an id is not in its table, and the errors of the kernels. Ids of a call with `text` are
  // not checked; a negative id is masked and looks up the first row.
  void run(const ProgramCall& call, const ProgramPlan& plan) const;
  void run(const ProgramCall& call) const { run(call, plan(call)); }

 private:
  void check_graph(Precision precision);
  void link(int64_t largest_table);
  void pair_up(int32_t n);
  size_t input_of(int32_t node) const;
  void divide(const ProgramCall& call, ProgramPlan& plan) const;
  std::vector<int32_t> order(const ProgramCall& call, const std::vector<ValuePlace>& places) const;
  size_t place(const ProgramCall& call, int64_t rows, std::vector<ValuePlace>& places) const;

  const Target* target_;
  const ProgramKernels* kernels_;
  std::vector<ProgramNode> nodes_;
  std::vector<int32_t> sources_;  // what the nodes' `inputs` point to
  std::vector<int32_t> outputs_;
  std::vector<ValueLink> links_;
  size_t inputs_ = 0;
  size_t bytes_ = 0;
  int64_t bytes_of_step_ = 0;  // of the largest recurrent kernel
  int64_t tile_rows_ = 0;      // as in ProgramKernels, for this program's precision
  PackedMemory packed_;
  static constexpr size_t kKinds = 48;
  // Of calls whose threads meet at every step, by the logarithm of their products.
  mutable Pace paces_[kKinds];
};

}  // namespace cellerate
