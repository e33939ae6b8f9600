// The operations of a program by name, with the inputs, arrays and options of their nodes: one row for each operation.
//
// cellerate.kernels.program.cpu reads these rows through the bindings, so neither side depends on the order of the
// other's lists. cellerate.program defines what an operation computes.
#pragma once

#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/program.h"

namespace cellerate {

// The shapes that a kernel accepts, out of those that its operation allows.
//   any: at most a time axis and a feature axis.
//   alike: inputs in the shape of the result, without broadcasting; masks have the steps of the result.
//   time: x has a time axis, and an axis option names it.
//   features: an axis option names the last axis.
//   positions: at most two axes before the feature axis.
//   stretched: each input has the positions of the result, or those of its last axes, and its features or one.
//   flipped: an axis option names the last axis of several, or time.
//   joined: an axis option names the last axis, or time.
//   either: an axis option names the last axis, or the one before.
//   swapped: an axes option swaps the last two axes, or the two before the last.
inline constexpr const char *kAnyShapes = "any", *kAlike = "alike", *kTime = "time", *kFeatures = "features",
                            *kPositions = "positions", *kStretched = "stretched", *kJoined = "joined",
                            *kEither = "either", *kSwapped = "swapped", *kFlipped = "flipped";

struct ProgramOpRow {
  ProgramOp op;
  const char* name;
  ValueKind gives = ValueKind::kNumbers;  // but an input with ProgramNode::ids gives ids
  // In the order of ProgramNode::inputs. An input that ends in "?" is optional; "*" stands for any number of inputs.
  // The name tells the kind: "ids", "mask", else numbers; "*" has the kind of the result.
  const char* inputs[5] = {};
  const char* arrays[3] = {};    // ProgramNode's kernel, recurrent_kernel and bias
  const char* number = nullptr;  // the option that is ProgramNode::number
  const char* whole[3] = {};     // the options that are ProgramNode::whole, in order, or ProgramNode::taken
  const char* shapes = kAnyShapes;
  bool trains = true;    // whether training steps compute it and its gradient
  bool predicts = true;  // whether packed models compute it

  constexpr bool reads_many() const { return inputs[0] != nullptr && *inputs[0] == '*'; }
  constexpr size_t count_of_inputs() const {
    size_t count = 0;
    while (count < std::size(inputs) && inputs[count] != nullptr) ++count;
    return count;
  }
  constexpr bool is_optional(size_t input) const {
    return !reads_many() && std::string_view(inputs[input]).ends_with('?');
  }
  constexpr ValueKind kind_of_input(size_t input) const {
    if (reads_many()) return gives;
    const std::string_view read = inputs[input];
    if (read == "ids") return ValueKind::kIds;
    return read.starts_with("mask") ? ValueKind::kMask : ValueKind::kNumbers;
  }
};

inline constexpr ProgramOpRow kProgramOps[] = {
    {.op = ProgramOp::kInput, .name = "input", .shapes = kPositions},
    {.op = ProgramOp::kEmbedding, .name = "embedding", .inputs = {"ids"}, .arrays = {"embeddings"}},
    {.op = ProgramOp::kIdsMask, .name = "ids_mask", .gives = ValueKind::kMask, .inputs = {"ids"}},
    {.op = ProgramOp::kFeaturesMask,
     .name = "features_mask",
     .gives = ValueKind::kMask,
     .inputs = {"x"},
     .number = "mask_value"},
    {.op = ProgramOp::kFlipMask, .name = "flip_mask", .gives = ValueKind::kMask, .inputs = {"mask"}},
    {.op = ProgramOp::kAnyMask,
     .name = "any_mask",
     .gives = ValueKind::kMask,
     .inputs = {"*"},
     .shapes = kAlike},
    {.op = ProgramOp::kMasked, .name = "masked", .inputs = {"x", "mask"}},
    {.op = ProgramOp::kWhere, .name = "where", .inputs = {"x", "mask", "other"}, .shapes = kAlike},
    {.op = ProgramOp::kLstm,
     .name = "lstm",
     .inputs = {"x", "mask?", "h0?", "c0?"},
     .arrays = {"kernel", "recurrent_kernel", "bias"}},
    {.op = ProgramOp::kLstmState, .name = "lstm_state", .inputs = {"lstm"}},
    {.op = ProgramOp::kDense,
     .name = "dense",
     .inputs = {"x"},
     .arrays = {"kernel", nullptr, "bias"},
     .shapes = kPositions},
    {.op = ProgramOp::kActivation, .name = "activation", .inputs = {"x"}, .shapes = kPositions},
    {.op = ProgramOp::kLayerNorm,
     .name = "layer_norm",
     .inputs = {"x"},
     .arrays = {"gamma", nullptr, "beta"},
     .number = "epsilon",
     .shapes = kPositions},
    {.op = ProgramOp::kAffine,
     .name = "affine",
     .inputs = {"x"},
     .arrays = {"scale", nullptr, "offset"},
     .shapes = kPositions},
    {.op = ProgramOp::kAdd, .name = "add", .inputs = {"*"}, .shapes = kStretched},
    {.op = ProgramOp::kSubtract, .name = "subtract", .inputs = {"0", "1"}, .shapes = kStretched},
    {.op = ProgramOp::kMultiply, .name = "multiply", .inputs = {"*"}, .shapes = kStretched},
    {.op = ProgramOp::kAverage, .name = "average", .inputs = {"*"}, .shapes = kStretched},
    {.op = ProgramOp::kMaximum, .name = "maximum", .inputs = {"*"}, .shapes = kStretched},
    {.op = ProgramOp::kMinimum, .name = "minimum", .inputs = {"*"}, .shapes = kStretched},
    {.op = ProgramOp::kConcatenate,
     .name = "concatenate",
     .inputs = {"*"},
     .number = "axis",
     .shapes = kJoined},
    {.op = ProgramOp::kReshape, .name = "reshape", .inputs = {"x"}, .shapes = kPositions},
    {.op = ProgramOp::kRepeatVector, .name = "repeat_vector", .inputs = {"x"}},
    {.op = ProgramOp::kCrop, .name = "crop", .inputs = {"x"}, .shapes = kTime},
    {.op = ProgramOp::kFlip, .name = "flip", .inputs = {"x"}, .number = "axis", .shapes = kFlipped},
    {.op = ProgramOp::kMeanOverTime, .name = "mean_over_time", .inputs = {"x", "mask?"}, .shapes = kTime},
    {.op = ProgramOp::kMaxOverTime, .name = "max_over_time", .inputs = {"x"}, .shapes = kTime},
    {.op = ProgramOp::kDropout, .name = "dropout", .inputs = {"x"}, .predicts = false},
    {.op = ProgramOp::kSpatialDropout, .name = "spatial_dropout", .inputs = {"x"}, .predicts = false},
    {.op = ProgramOp::kStepDropout, .name = "step_dropout", .inputs = {"x"}, .predicts = false},
    // Any operation that only moves numbers: each number of the result is a number of x.
    {.op = ProgramOp::kGather, .name = "gather", .inputs = {"x"}, .predicts = false},
    {.op = ProgramOp::kCumsum, .name = "cumsum", .inputs = {"x"}, .shapes = kFeatures},
    {.op = ProgramOp::kBatchNorm,
     .name = "batch_norm",
     .inputs = {"x", "mask?"},
     .arrays = {"gamma", nullptr, "beta"},
     .number = "epsilon",
     .predicts = false},
    {.op = ProgramOp::kWindows,
     .name = "windows",
     .inputs = {"x"},
     .whole = {"size", "strides", "dilation"},
     .shapes = kPositions},
    {.op = ProgramOp::kMaxPool,
     .name = "max_pool",
     .inputs = {"x"},
     .whole = {"size", "strides", "dilation"},
     .shapes = kPositions},
    {.op = ProgramOp::kAveragePool,
     .name = "average_pool",
     .inputs = {"x"},
     .whole = {"size", "strides", "dilation"},
     .shapes = kPositions},
    {.op = ProgramOp::kSum, .name = "sum", .inputs = {"x"}, .shapes = kEither},
    {.op = ProgramOp::kMean, .name = "mean", .inputs = {"x"}, .shapes = kEither},
    {.op = ProgramOp::kMax, .name = "max", .inputs = {"x"}, .shapes = kEither},
    {.op = ProgramOp::kMin, .name = "min", .inputs = {"x"}, .shapes = kEither},
    {.op = ProgramOp::kSoftmax, .name = "softmax", .inputs = {"x"}, .shapes = kEither},
    {.op = ProgramOp::kTranspose, .name = "permute", .inputs = {"x"}, .shapes = kSwapped, .trains = false},
    {.op = ProgramOp::kDivide, .name = "divide", .inputs = {"0", "1"}, .shapes = kStretched},
    {.op = ProgramOp::kDot, .name = "dot", .inputs = {"0", "1"}, .whole = {"axes"}},
    {.op = ProgramOp::kAttention,
     .name = "attention",
     .inputs = {"query", "key", "value", "mask?", "mask_of_queries?"},
     .arrays = {"additive"},
     .number = "scale",
     .whole = {"heads", "causal", "zeros"}},
    {.op = ProgramOp::kGaussianDropout, .name = "gaussian_dropout", .inputs = {"x"}, .predicts = false},
    {.op = ProgramOp::kGaussianNoise, .name = "gaussian_noise", .inputs = {"x"}, .predicts = false},
    // The dense layer of a grouped convolution, whose kernel is (size * features of a group, N).
    {.op = ProgramOp::kGroupedDense,
     .name = "grouped_dense",
     .inputs = {"x"},
     .arrays = {"kernel", nullptr, "bias"},
     .whole = {"groups", "size"},
     .shapes = kPositions,
     .predicts = false},
    {.op = ProgramOp::kFunction,
     .name = "function",
     .inputs = {"x"},
     .number = "number",
     .whole = {"function"},
     .shapes = kPositions},
    {.op = ProgramOp::kCompare,
     .name = "compare",
     .inputs = {"0", "1"},
     .whole = {"relation"},
     .shapes = kStretched},
    {.op = ProgramOp::kChoose, .name = "choose", .inputs = {"0", "1", "2"}, .shapes = kStretched},
    {.op = ProgramOp::kPad, .name = "pad", .inputs = {"x"}, .shapes = kTime},
    {.op = ProgramOp::kTake,
     .name = "take",
     .inputs = {"x"},
     .whole = {"indices"},
     .shapes = kJoined,
     .trains = false},
    // Other names for the same kernels.
    {.op = ProgramOp::kReshape, .name = "flatten_steps", .inputs = {"x"}, .shapes = kPositions},
    {.op = ProgramOp::kDense,
     .name = "unembedding",
     .inputs = {"x"},
     .arrays = {"kernel"},
     .number = "soft_cap",
     .shapes = kPositions,
     .trains = false},
};

constexpr const ProgramOpRow& row(ProgramOp op) { return kProgramOps[static_cast<size_t>(op)]; }

constexpr bool has_a_row_each() {
  for (int32_t n = 0; n < static_cast<int32_t>(ProgramOp::kCount); ++n) {
    if (row(static_cast<ProgramOp>(n)).op != static_cast<ProgramOp>(n)) return false;
  }
  return true;
}
static_assert(has_a_row_each(), "the first rows are in the order of ProgramOp");

// Throws std::invalid_argument if no operation has this name.
inline const ProgramOpRow& program_op_named(std::string_view name) {
  for (const ProgramOpRow& each : kProgramOps) {
    if (name == each.name) return each;
  }
  throw std::invalid_argument("there is no operation \"" + std::string(name) + "\"");
}

}  // namespace cellerate
