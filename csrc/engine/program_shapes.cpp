// Checks that the shapes of a program's values fit its operations.
#include <algorithm>
#include <vector>

#include "engine/program.h"
#include "engine/program_table.h"

namespace cellerate {
namespace {

bool joins_steps(const ProgramNode& node, const ValueShape* shapes, const ValueShape& shape) {
  int64_t steps = 0;
  for (int32_t input = 0; input < node.input_count; ++input) {
    const ValueShape& read = shapes[node.inputs[input]];
    if (read.features != shape.features) return false;
    steps += read.positions();
  }
  return steps == shape.positions();
}

bool fits_dot(const ProgramNode& node, const ValueShape* shapes, const ValueShape& shape) {
  int64_t rest = 1, sizes[2] = {};
  for (int input = 0; input < 2; ++input) {
    const ValueShape& read = shapes[node.inputs[input]];
    const bool over_features = read.steps == 0 || node.whole[input] == 2;
    sizes[input] = over_features ? read.features : read.steps;
    rest *= over_features ? read.positions() : read.features;
  }
  return sizes[0] == sizes[1] && shape.positions() * shape.features == rest;
}

// In training steps, additive attention may have a single weight for all features.
bool fits_attention(const ProgramNode& node, const ValueShape* shapes, const ValueShape& shape, bool trains) {
  const ValueShape &query = shapes[node.inputs[0]], &key = shapes[node.inputs[1]],
                   &value = shapes[node.inputs[2]];
  const auto masks = [&](int input, int64_t steps) {
    return node.inputs[input] < 0 || shapes[node.inputs[input]].steps == steps;
  };
  const int64_t heads = node.whole[0];
  return heads >= 1 && query.steps >= 1 && key.steps >= 1 && query.features == key.features &&
         key.steps == value.steps && key.features % heads == 0 && value.features % heads == 0 &&
         shape.steps == query.steps && shape.features == value.features &&
         (node.columns == 0 || node.columns == key.features || (trains && node.columns == 1)) &&
         masks(3, key.steps) && masks(4, query.steps);
}

// Swaps the last two axes, or the two before the last.
bool fits_transpose(const ValueShape& x, const ValueShape& shape, bool features) {
  const auto sequences = [](const ValueShape& of) { return std::max<int64_t>(of.sequences, 1); };
  if (x.steps < 1 || shape.steps < 1 || x.steps % sequences(x) != 0 || shape.steps % sequences(shape) != 0)
    return false;
  if (features)
    return shape.steps == sequences(x) * x.features && shape.steps * shape.features == x.steps * x.features;
  return shape.steps == x.steps && shape.features == x.features &&
         sequences(x) % (shape.steps / sequences(shape)) == 0;
}

}  // namespace

void check_shapes(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const int64_t* begins,
                  bool stretches) {
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ProgramNode& node = nodes[n];
    const ValueShape& shape = shapes[n];
    const auto of = [&](int32_t input) -> const ValueShape& { return shapes[node.inputs[input]]; };
    const auto need = [&](bool right) {
      if (!right) refuse_node(n, "the shapes of its inputs do not fit its own shape");
    };
    // Whether a merge can read this shape.
    const auto fits = [&](const ValueShape& read) {
      return read == shape ||
             (stretches && read.features == shape.features && shape.positions() % read.positions() == 0);
    };
    // Whether a merge whose kernel broadcasts can read this shape.
    const auto fits_stretched = [&](const ValueShape& read) {
      return (read.features == 1 || read.features == shape.features) &&
             shape.positions() % read.positions() == 0;
    };
    const auto sequences = [](const ValueShape& read) { return std::max<int64_t>(read.sequences, 1); };
    need(shape.steps >= 0 && shape.features >= 1);
    switch (node.op) {
      case ProgramOp::kInput:
        need(!node.ids || (shape.steps >= 1 && shape.features == 1));
        break;
      case ProgramOp::kEmbedding:
        need(shape.features == node.columns && shape.steps == of(0).steps);
        break;
      case ProgramOp::kIdsMask:
      case ProgramOp::kFlipMask:
        need(shape == of(0));
        break;
      case ProgramOp::kFeaturesMask:
        need(shape.features == 1 && shape.steps >= 1 && shape.steps == of(0).steps);
        break;
      case ProgramOp::kMasked:
        need(shape == of(0) && shape.steps == of(1).steps);
        break;
      case ProgramOp::kWhere:
        need(fits(of(0)) && fits({of(1).steps, shape.features}) && fits(of(2)));
        break;
      case ProgramOp::kLstm: {
        need(of(0).steps >= 1 && of(0).features == node.rows && shape.features == node.columns &&
             (shape.steps == (node.return_sequences ? of(0).steps : 0) || (!stretches && shape.steps == 0)));
        if (node.inputs[1] >= 0) need(of(1).steps == of(0).steps);
        const ValueShape state{0, node.columns};
        if (node.inputs[2] >= 0) need(of(2) == state && of(3) == state);
        break;
      }
      case ProgramOp::kLstmState:
        need(shape.steps == 0 && shape.features == nodes[node.inputs[0]].columns);
        break;
      case ProgramOp::kDense:
        need(of(0).features == node.rows && shape.features == node.columns && shape.steps == of(0).steps);
        break;
      case ProgramOp::kGroupedDense:
        need(node.whole[0] >= 1 && node.whole[1] >= 1 && node.rows % node.whole[1] == 0 &&
             node.columns % node.whole[0] == 0 && of(0).features == node.rows * node.whole[0] &&
             shape.features == node.columns && shape.steps == of(0).steps);
        break;
      case ProgramOp::kFunction:
        need(node.whole[0] >= 0 && node.function() < Function::kCount && shape == of(0));
        break;
      case ProgramOp::kActivation:
      case ProgramOp::kFlip:
      case ProgramOp::kGaussianDropout:
      case ProgramOp::kGaussianNoise:
      case ProgramOp::kDropout:
      case ProgramOp::kSpatialDropout:
      case ProgramOp::kStepDropout:
      case ProgramOp::kCumsum:
        need(shape == of(0));
        break;
      case ProgramOp::kLayerNorm:
      case ProgramOp::kBatchNorm:
      case ProgramOp::kAffine:
        need(shape == of(0) && (node.columns == 0 || shape.features == node.columns));
        if (node.op == ProgramOp::kBatchNorm && node.inputs[1] >= 0)
          need(of(1).positions() == shape.positions());
        break;
      case ProgramOp::kGather:
        break;
      case ProgramOp::kConcatenate: {
        if (joins_steps(node, shapes, shape)) break;
        int64_t features = 0;
        for (int32_t input = 0; input < node.input_count; ++input) {
          need(of(input).steps == shape.steps);
          features += of(input).features;
        }
        need(features == shape.features);
        break;
      }
      case ProgramOp::kReshape:
        need(shape.positions() * shape.features == of(0).positions() * of(0).features);
        break;
      case ProgramOp::kRepeatVector:
        need(of(0).steps == 0 && shape.steps >= 1 && shape.features == of(0).features);
        break;
      case ProgramOp::kCrop:
        need(shape.steps >= 1 && shape.features == of(0).features && begins[n] >= 0 &&
             begins[n] <= of(0).steps - shape.steps);
        break;
      case ProgramOp::kPad:
        need(of(0).steps >= 1 && shape.features == of(0).features && begins[n] >= 0 &&
             begins[n] <= shape.steps - of(0).steps);
        break;
      case ProgramOp::kTake: {
        const bool of_features = begins[n] != 0;
        const int64_t size = of_features ? of(0).features : of(0).steps;
        need(static_cast<int64_t>(node.taken.size()) == (of_features ? shape.features : shape.steps) &&
             (of_features ? shape.steps == of(0).steps : shape.features == of(0).features) &&
             std::ranges::all_of(node.taken, [&](int64_t entry) { return entry >= -size && entry < size; }));
        break;
      }
      case ProgramOp::kMeanOverTime:
      case ProgramOp::kMaxOverTime:
        need(of(0).steps >= 1 && shape.steps == 0 && shape.features == of(0).features);
        if (node.op == ProgramOp::kMeanOverTime && node.inputs[1] >= 0) need(of(1).steps == of(0).steps);
        break;
      case ProgramOp::kWindows:
      case ProgramOp::kMaxPool:
      case ProgramOp::kAveragePool:
        need(std::ranges::all_of(node.whole, [](int64_t number) { return number >= 1; }) && begins[n] >= 0 &&
             shape.steps >= 1 && of(0).steps >= 1 && shape.sequences == of(0).sequences &&
             shape.steps % sequences(shape) == 0 && of(0).steps % sequences(shape) == 0 &&
             shape.features == of(0).features * (node.op == ProgramOp::kWindows ? node.whole[0] : 1));
        break;
      case ProgramOp::kSum:
      case ProgramOp::kMean:
      case ProgramOp::kMax:
      case ProgramOp::kMin:
        need(of(0).positions() % sequences(of(0)) == 0 &&
             shape.positions() * shape.features ==
                 (begins[n] != 0 ? of(0).positions() : sequences(of(0)) * of(0).features));
        break;
      case ProgramOp::kSoftmax:
        need(shape == of(0) && shape.positions() % sequences(shape) == 0);
        break;
      case ProgramOp::kTranspose:
        need(fits_transpose(of(0), shape, begins[n] != 0));
        break;
      case ProgramOp::kDot:
        need(fits_dot(node, shapes, shape));
        break;
      case ProgramOp::kAttention:
        need(fits_attention(node, shapes, shape, stretches));
        break;
      case ProgramOp::kAnyMask:
        for (int32_t input = 0; input < node.input_count; ++input) need(fits(of(input)));
        break;
      case ProgramOp::kCompare:
        need(node.function() >= Function::kGreater && node.function() < Function::kCount);
        [[fallthrough]];
      default:  // the merges
        for (int32_t input = 0; input < node.input_count; ++input) need(fits_stretched(of(input)));
        break;
    }
  }
}

}  // namespace cellerate
