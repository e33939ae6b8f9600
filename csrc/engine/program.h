// A packed model as one call: a graph of layers whose weights are packed once, run on whole sequences, or on the steps of
// ids that are drawn.
//
// A row of the batch is computed by itself, so threads divide the rows, and each runs the whole graph on a block of
// them: nothing is handed over between two layers. With fewer rows than threads, several threads share a block; then
// each has columns of its own and they meet after every product. program_kernels.h computes the numbers, compiled once
// per target; here are the graph, its checks, its memory and the choice of threads.
//
// In float32 every sum of a product runs over its inputs in ascending order, starting from the bias, so results depend
// neither on the rows beside a row nor on the threads.
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

// What follows the activation of a dense or activation node, over its last axis.
enum class Normalizer : int32_t { kNone, kSoftmax, kLogSoftmax, kCount };
inline constexpr const char* kNormalizerNames[] = {"", "softmax", "log_softmax"};

// What a function node computes of each number; those from kGreater on compare it with ProgramNode::number, as a compare
// node does with another value. The names are those of cellerate.program.
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
// Whether the derivative is 0 wherever there is one.
constexpr bool is_step(Function of) {
  return of >= Function::kGreater || (of >= Function::kSign && of <= Function::kRound);
}

// What a node gives for each row: numbers (N, T, F), (T, F) or (F), ids (T) or a mask (T).
enum class ValueKind : int32_t { kNumbers, kIds, kMask };

// The size of a value. `steps` is 0 for numbers without a time axis; `features` is 1 for ids and masks. Of numbers with
// three axes `sequences` is N and `steps` N·T, else it is 0.
struct ValueShape {
  int64_t steps = 0, features = 0, sequences = 0;
  int64_t positions() const { return steps == 0 ? 1 : steps; }
  bool operator==(const ValueShape&) const = default;
};

// One operation. Its arrays are read only while the program is made.
struct ProgramNode {
  ProgramOp op = ProgramOp::kInput;
  // Numbers of nodes before it; of an LSTM x, mask, h0, c0, with -1 for none.
  const int32_t* inputs = nullptr;
  int32_t input_count = 0;
  // Of the kernel; of an embedding V and E; of an LSTM D and H; features of the others.
  int64_t rows = 0, columns = 0;
  const float* kernel = nullptr;            // (K, N), (D, 4H), (V, E); gamma or scale (F), or null
  const float* recurrent_kernel = nullptr;  // (H, 4H)
  const float* bias = nullptr;              // (N), (4H); beta or offset (F), or null
  Activation activation = Activation::kLinear;
  Activation recurrent_activation = Activation::kSigmoid;
  Normalizer normalizer = Normalizer::kNone;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  bool go_backwards = false, return_sequences = true;
  bool ids = false;   // an input: whether it holds ids
  bool cell = false;  // an LSTM's state: c and not h
  // Epsilon, the value of a masked feature, the factor of scores, the axis of a join, the greatest id that is masked, the
  // exponent of a power, what is compared with, or the cap of logits, 0 for none.
  float number = 0;
  int64_t whole[3] = {};                                                 // whole numbers, which its row names
  Function function() const { return static_cast<Function>(whole[0]); }  // of a function or compare node
};

[[noreturn]] void refuse_node(size_t node, const std::string& what);

// Gives nodes their inputs in `sources`, which it fills, and checks what they read and that they have their weights.
// Throws std::invalid_argument.
void take_inputs(std::vector<ProgramNode>& nodes, std::vector<int32_t>& sources);

// Throws std::out_of_range if an id among the inputs of a call is not a row of the smallest table that it is looked up
// in.
void check_ids(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const void* const* inputs,
               int64_t batch);

// Throws std::invalid_argument unless an LSTM has both first states or none, and a state is that of an LSTM.
void check_states(const std::vector<ProgramNode>& nodes, size_t n);

// Throws std::invalid_argument if the shapes of nodes do not fit each other. `begins` is that of a call; `stretches`,
// whether an input of fewer steps may be merged with those of a multiple of them, and steps may be joined.
void check_shapes(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const int64_t* begins,
                  bool stretches = false);

// How the value of a node is linked to the others, the same for all calls.
struct ValueLink {
  ValueKind kind = ValueKind::kNumbers;
  int32_t owner = 0;  // the node whose memory holds the value: this one, or the one that it is a part of
  // Of an owner, the last node that reads its memory; beyond the last node for an output.
  int32_t last_use = 0;
  bool wanted = false;   // whether anybody reads the value
  bool nothing = false;  // another node does this one's work
  bool natural = false;  // of an LSTM that goes backwards: its outputs lie in the order of its inputs
  // Of an embedding or a mask of ids: only LSTMs read it, and look at the ids themselves.
  bool looked_up = false;
  bool tabled = false;  // of an LSTM that looks ids up: in a table of embeddings·kernel + bias
  // Of an LSTM: another one that can run beside it, on other threads; -1 if there is none. Either neither needs the
  // other, or the later one reads the outputs of the earlier one, and follows it through time.
  int32_t partner = -1;
};

// Whether an LSTM runs beside its partner where threads share a block. One that follows the other through time needs
// time to do so: of a single step each layer is better divided among all threads.
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
  int64_t column = 0;  // in elements, where a part of a joined value begins
  // The input or output of the call whose memory it is, because its rows lie there as they do in a block; -1 if it is
  // memory of the block.
  int32_t input = -1, output = -1;
};

// What is done with the first output of a call.
enum class FirstOutput : int32_t {
  kGiven,   // as all others
  kDrawn,   // logits, of which ids are drawn that are read in turn; the input of ids is not looked at
  kScored,  // logits, of which the log probabilities of ids are given
  kNone,    // nothing: only states are wanted
};

// What a call needs whose first output are logits.
struct TextCall {
  Generation* generation = nullptr;
  // To score: the id after each step, or -1 for a log probability of 0, and where log probabilities go; both (B, scored)
  // with so many elements from row to row.
  const int32_t* next = nullptr;
  float* log_probabilities = nullptr;
  int64_t next_row = 0, log_probabilities_row = 0;
  int64_t scored = 0;  // steps
};

// One call of a packed model.
struct ProgramCall {
  int64_t batch = 0;
  const ValueShape* shapes = nullptr;  // of every node
  // Of every node: where a crop begins or what is taken, how many steps of padding lie before a sequence, or 1 for what
  // works along the features and not along time.
  const int64_t* begins = nullptr;
  const void* const* inputs = nullptr;  // in order: (B, T, F) or (B, F) float32, or (B, T) int32
  float* const* outputs = nullptr;      // in order: (B, T, F) or (B, F)
  double* seconds = nullptr;            // of every node, or null: what the first thread spends on it is added
  // Elements from row to row of ids and of numbers without a time axis, for each input and output; null if they lie
  // side by side.
  const int64_t* input_rows = nullptr;
  const int64_t* output_rows = nullptr;
  int threads = 0;        // 0 for as many as are worth it
  bool together = false;  // threads share each block, also where each could have rows of its own
  FirstOutput first_output = FirstOutput::kGiven;
  const TextCall* text = nullptr;
};

// How calls of the same sizes are run; settled once for all of them.
struct ProgramPlan {
  // How the threads divide a call: `teams` of `members` threads each, out of so many.
  int64_t teams = 1, members = 1;
  int threads = 1;
  double products = 0;             // of the whole call
  int64_t rows = 1;                // of a block, at most
  size_t bytes = 0;                // of the values of a block
  std::vector<ValuePlace> places;  // of every node
  std::vector<int32_t> order;      // the nodes that have something to do
};

// What a kernel is asked to do. Plain pointers: kernels are compiled for other instruction sets, and must not define
// code of the standard library (see threads.h).
struct ProgramRun {
  ProgramCall call;
  const ProgramNode* nodes = nullptr;  // without their arrays
  const ValueLink* links = nullptr;
  const ValuePlace* places = nullptr;
  int32_t count = 0;               // of nodes
  const int32_t* order = nullptr;  // the nodes that have something to do
  int32_t order_count = 0;
  const int32_t* outputs = nullptr;
  int32_t output_count = 0;
  size_t bytes = 0;            // of the values of a block
  int64_t rows_of_block = 0;   // at most
  int teams = 1, members = 1;  // one of them is 1
  // Called by the first thread after each node, if there is a clock.
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
  // Packs the weights into memory and gives how many bytes they take; with null it only counts. Throws std::bad_alloc.
  size_t (*pack)(const ProgramGraph& graph, std::byte* memory);
  // Runs what pack() wrote. Ids have been checked. Throws std::bad_alloc and what parallel() throws.
  void (*run)(const std::byte* packed, const ProgramRun& run);
  Exponentials exponentials;
};

// How a program is packed.
struct ProgramOptions {
  size_t most_bytes = std::numeric_limits<size_t>::max();  // that the packed weights may take
  // Bytes of embeddings·kernel + bias: of a larger table, rows would come from main memory.
  int64_t largest_table = int64_t{16} << 20;
  // In int8, outputs of LSTMs that lie in [-1, 1] become bytes in steps of 1/127: a little coarser than in steps of the
  // largest of each row, but an LSTM has them already so.
  bool static_scales = false;
  // Numbers are the same on every target, in float32, int8 and int4; without instructions for it, that is slower.
  bool same_everywhere = false;
};

// An immutable program; any number of threads may run it at once.
class CompiledProgram {
 public:
  // Throws std::invalid_argument if the graph is not valid or its weights would take too much, and std::bad_alloc.
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
  // The LSTM that runs beside each node in a call of so many rows, if its threads share a block; -1 for none.
  std::vector<int32_t> partners(const ProgramCall& call) const;
  // Of the nodes that are inputs or outputs, in order.
  bool is_ids(size_t node) const { return nodes_[node].ids; }
  size_t node_of_input(size_t n) const;
  size_t node_of_output(size_t n) const { return static_cast<size_t>(outputs_[n]); }

  // How calls of these sizes are run, with as many threads as there are now; their arrays are not looked at. Throws
  // std::invalid_argument if the shapes do not fit the graph.
  ProgramPlan plan(const ProgramCall& call) const;
  // Throws std::out_of_range if an id is not in its table, and what the kernels throw. Ids of a call with text are
  // not checked; a negative one is masked and looks up the first row.
  void run(const ProgramCall& call, const ProgramPlan& plan) const;
  // The same, planned for this call alone.
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
  PackedMemory packed_;
  static constexpr size_t kKinds = 48;
  // Of calls whose threads meet at every step, by the logarithm of their products.
  mutable Pace paces_[kKinds];
};

}  // namespace cellerate
