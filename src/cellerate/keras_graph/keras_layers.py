"""The Keras layers and operations that are known, one row each. Add a new one here.

A row says how each reader of a model treats the layer. Whatever a row leaves out is unknown: then single steps are
tried out, a program refuses the layer, and pruning keeps the units that reach it.
"""

from __future__ import annotations

import dataclasses
import enum

from keras import layers
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.layers.convolutional.base_conv_transpose import BaseConvTranspose
from keras.src.layers.convolutional.base_depthwise_conv import BaseDepthwiseConv
from keras.src.layers.convolutional.base_separable_conv import BaseSeparableConv
from keras.src.layers.pooling.base_global_pooling import BaseGlobalPooling
from keras.src.layers.pooling.base_pooling import BasePooling
from keras.src.layers.rnn.conv_lstm import ConvLSTM

from cellerate.keras_graph import (
    program_layers as program,
    program_operations as operations,
    ties_layers as ties,
)
from cellerate.keras_graph.families import attention, elementwise, normalizations, recurrent, windows
from cellerate.keras_graph.program_nodes import Read, Readers, ReadOne
from cellerate.keras_graph.ties_layers import Tie


class TimeSteps(enum.Enum):
    """The treatment of time steps by a layer or operation."""

    ALIKE = "every step alike"
    LAST_AXIS = "every step alike, as long as it works along the last axis"
    MIXED = "it mixes steps"
    CELL = "one after the other, with a state"


ALIKE, LAST_AXIS, MIXED, CELL = TimeSteps


@dataclasses.dataclass(frozen=True)
class LayerFacts:
    """The facts about a layer.

    Attributes:
        steps: How it treats time steps. Holds for subclasses too.
        program: Adds its nodes to a program. Holds for subclasses that do not change what is computed.
        ties: Says what it does with features. Holds for this very class only.
        per_step: Whether its nodes are right for a single time step, so that it may be inside a TimeDistributed.
    """

    steps: TimeSteps | None = None
    program: Read | None = None
    ties: Tie | None = None
    per_step: bool = False


ROWS: dict[type, LayerFacts] = {
    # Recurrent layers and wrappers.
    layers.RNN: LayerFacts(CELL, recurrent.recurrent),
    layers.LSTM: LayerFacts(CELL, recurrent.recurrent, ties.lstm),
    layers.GRU: LayerFacts(CELL, recurrent.recurrent),
    layers.SimpleRNN: LayerFacts(CELL, recurrent.recurrent),
    layers.Bidirectional: LayerFacts(MIXED, recurrent.bidirectional, ties.bidirectional),
    layers.TimeDistributed: LayerFacts(ALIKE, program.time_distributed),
    ConvLSTM: LayerFacts(MIXED),
    # From ids to features, and from features to features.
    layers.Embedding: LayerFacts(ALIKE, program.embedding),
    layers.ReversibleEmbedding: LayerFacts(ALIKE, program.reversible_embedding),
    layers.Dense: LayerFacts(ALIKE, program.dense, ties.dense, per_step=True),
    layers.EinsumDense: LayerFacts(None, program.einsum_dense, per_step=True),
    layers.Identity: LayerFacts(ALIKE, program.dropped, ties.passes, per_step=True),
    layers.Masking: LayerFacts(ALIKE, program.masking),
    layers.Rescaling: LayerFacts(ALIKE, program.rescaling, per_step=True),
    # Layers that act only in training.
    layers.Dropout: LayerFacts(ALIKE, program.dropped, ties.dropout, per_step=True),
    layers.GaussianDropout: LayerFacts(ALIKE, program.dropped, ties.dropout, per_step=True),
    layers.AlphaDropout: LayerFacts(ALIKE, program.dropped, ties.dropout, per_step=True),
    layers.SpatialDropout1D: LayerFacts(ALIKE, program.dropped, ties.passes, per_step=True),
    layers.SpatialDropout2D: LayerFacts(None, program.dropped, per_step=True),
    layers.GaussianNoise: LayerFacts(ALIKE, program.dropped, ties.passes, per_step=True),
    layers.ActivityRegularization: LayerFacts(ALIKE, program.dropped, ties.passes, per_step=True),
    # Activations.
    layers.Activation: LayerFacts(ALIKE, program.activation, ties.activation, per_step=True),
    layers.ReLU: LayerFacts(ALIKE, program.activation_layer, ties.passes, per_step=True),
    layers.LeakyReLU: LayerFacts(ALIKE, program.activation_layer, ties.passes, per_step=True),
    layers.ELU: LayerFacts(ALIKE, program.activation_layer, ties.passes, per_step=True),
    layers.PReLU: LayerFacts(ALIKE, elementwise.parametric_relu, per_step=True),
    layers.Softmax: LayerFacts(LAST_AXIS, program.softmax),
    # Normalisations.
    layers.BatchNormalization: LayerFacts(
        LAST_AXIS, program.batch_normalization, ties.normalized, per_step=True
    ),
    layers.LayerNormalization: LayerFacts(
        LAST_AXIS, program.layer_normalization, ties.normalized, per_step=True
    ),
    layers.Normalization: LayerFacts(LAST_AXIS, program.normalization, per_step=True),
    layers.RMSNormalization: LayerFacts(LAST_AXIS, normalizations.rms_normalization),
    layers.UnitNormalization: LayerFacts(LAST_AXIS, normalizations.unit_normalization),
    layers.GroupNormalization: LayerFacts(MIXED, normalizations.group_normalization),
    # Layers that join tensors.
    layers.Concatenate: LayerFacts(LAST_AXIS, program.concatenate, ties.joined),
    layers.Add: LayerFacts(ALIKE, program.merge("add"), ties.merged),
    layers.Subtract: LayerFacts(ALIKE, program.merge("subtract"), ties.merged),
    layers.Multiply: LayerFacts(ALIKE, program.product, ties.merged),
    layers.Average: LayerFacts(ALIKE, program.merge("average"), ties.merged),
    layers.Maximum: LayerFacts(ALIKE, program.extreme("maximum"), ties.merged),
    layers.Minimum: LayerFacts(ALIKE, program.extreme("minimum"), ties.merged),
    # Shapes.
    layers.Flatten: LayerFacts(MIXED, program.flatten, per_step=True),
    layers.Reshape: LayerFacts(MIXED, program.reshape, per_step=True),
    layers.Permute: LayerFacts(MIXED, program.permute),
    layers.RepeatVector: LayerFacts(MIXED, program.repeat_vector, ties.over_time),
    layers.Cropping1D: LayerFacts(MIXED, program.cropping, ties.over_time),
    layers.ZeroPadding1D: LayerFacts(MIXED, program.padding, ties.over_time),
    layers.UpSampling1D: LayerFacts(MIXED, program.up_sampling, ties.over_time),
    # Layers that look across time steps; a base class stands for all its subclasses.
    layers.GlobalAveragePooling1D: LayerFacts(MIXED, program.average_pooling, ties.over_time, per_step=True),
    layers.GlobalMaxPooling1D: LayerFacts(MIXED, program.max_pooling, ties.over_time, per_step=True),
    layers.AveragePooling1D: LayerFacts(
        MIXED, windows.pooling("average_pool"), ties.over_time, per_step=True
    ),
    layers.MaxPooling1D: LayerFacts(MIXED, windows.pooling("max_pool"), ties.over_time, per_step=True),
    layers.Conv1D: LayerFacts(MIXED, windows.convolution, per_step=True),
    layers.DepthwiseConv1D: LayerFacts(MIXED, windows.depthwise_convolution, per_step=True),
    layers.SeparableConv1D: LayerFacts(MIXED, windows.separable_convolution, per_step=True),
    layers.MaxPooling2D: LayerFacts(MIXED, windows.pooling("max_pool"), per_step=True),
    layers.AveragePooling2D: LayerFacts(MIXED, windows.pooling("average_pool"), per_step=True),
    layers.GlobalAveragePooling2D: LayerFacts(MIXED, windows.global_pooling("mean"), per_step=True),
    layers.GlobalMaxPooling2D: LayerFacts(MIXED, windows.global_pooling("max"), per_step=True),
    layers.Conv2D: LayerFacts(MIXED, windows.convolution, per_step=True),
    layers.DepthwiseConv2D: LayerFacts(MIXED, windows.depthwise_convolution, per_step=True),
    layers.SeparableConv2D: LayerFacts(MIXED, windows.separable_convolution, per_step=True),
    layers.Attention: LayerFacts(MIXED, attention.attention),
    layers.AdditiveAttention: LayerFacts(MIXED, attention.additive_attention),
    layers.MultiHeadAttention: LayerFacts(MIXED, attention.multi_head_attention),
    layers.Dot: LayerFacts(MIXED, normalizations.dot),
    layers.GroupQueryAttention: LayerFacts(MIXED),
    BaseGlobalPooling: LayerFacts(MIXED),
    BasePooling: LayerFacts(MIXED),
    BaseConv: LayerFacts(MIXED),
    BaseConvTranspose: LayerFacts(MIXED),
    BaseDepthwiseConv: LayerFacts(MIXED),
    BaseSeparableConv: LayerFacts(MIXED),
}


@dataclasses.dataclass(frozen=True)
class OperationRow:
    """The facts about an operation of keras.ops.

    Attributes:
        steps: How it treats time steps, given tensors and single numbers.
        program: Adds its nodes to a program.
        ties: Says what it does with features.
        mask: For an operation that gives booleans: the mask that Keras makes with it.
        numbers: For an operation that gives booleans: adds the nodes that compute them as numbers.
    """

    steps: TimeSteps | None = None
    program: Read | None = None
    ties: Tie | None = None
    mask: ReadOne | None = None
    numbers: Read | None = None


def _moves(read: Read, ties: Tie | None = None, mask: ReadOne | None = None) -> OperationRow:
    """The row of an operation that only moves entries, numbers and booleans alike."""
    return OperationRow(None, read, ties, mask, read)


_add = operations.arithmetic("add", lambda c: (1.0, c), lambda c: (1.0, c))
_subtract = operations.arithmetic("subtract", lambda c: (1.0, -c), lambda c: (-1.0, c))
_multiply = operations.arithmetic("multiply", lambda c: (c, 0.0), lambda c: (c, 0.0))
_divide = operations.arithmetic("divide", lambda c: (1.0 / c, 0.0), None)

OPERATIONS: dict[str, OperationRow] = {
    "Add": OperationRow(ALIKE, _add, ties.arithmetic),
    "Subtract": OperationRow(ALIKE, _subtract, ties.arithmetic),
    "Multiply": OperationRow(ALIKE, _multiply, ties.arithmetic),
    "Divide": OperationRow(ALIKE, _divide, ties.arithmetic),
    "TrueDivide": OperationRow(ALIKE, _divide, ties.arithmetic),
    "Maximum": OperationRow(ALIKE, operations.extreme("maximum"), ties.arithmetic),
    "Minimum": OperationRow(ALIKE, operations.extreme("minimum"), ties.arithmetic),
    "Cast": OperationRow(ALIKE, operations.cast, ties.passes, operations.as_booleans, elementwise.as_numbers),
    "Negative": OperationRow(ALIKE, operations.negative, ties.passes),
    **dict.fromkeys(
        (
            *("Relu", "Relu6", "ReLU", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Silu", "Softplus"),
            *("Softsign", "Sigmoid", "LogSigmoid", "HardSigmoid", "HardSilu", "Tanh", "HardTanh"),
            *("Squareplus", "Threshold", "Exp"),
        ),
        OperationRow(ALIKE, operations.activation, ties.passes),
    ),
    "Clip": OperationRow(ALIKE, operations.clip, ties.passes),
    "Power": OperationRow(None, elementwise.power),
    **{
        name: OperationRow(ALIKE, elementwise.function(function), ties.passes)
        for name, function in {
            **{"Absolute": "abs", "Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Expm1": "expm1"},
            **{"Floor": "floor", "Log": "log", "Log1p": "log1p", "Reciprocal": "reciprocal"},
            **{"Round": "round", "Rsqrt": "rsqrt", "Sign": "sign", "Sin": "sin", "Sqrt": "sqrt"},
        }.items()
    },
    **{
        name: OperationRow(ALIKE, None, ties.arithmetic, None, elementwise.compare(relation))
        for name, relation in {
            **{"Greater": "greater", "GreaterEqual": "greater_equal", "Less": "less"},
            **{"LessEqual": "less_equal", "Equal": "equal"},
        }.items()
    },
    "Isnan": OperationRow(ALIKE, numbers=elementwise.is_nan),
    "LogicalAnd": OperationRow(ALIKE, numbers=elementwise.joined_truths("multiply")),
    "LogicalNot": OperationRow(ALIKE, numbers=elementwise.logical_not),
    "Where": _moves(elementwise.where),
    "Square": OperationRow(ALIKE, lambda call: elementwise.squared(call, call.x), ties.passes),
    "Mean": OperationRow(None, operations.reduce("mean"), ties.along_axis),
    "Max": OperationRow(None, operations.reduce("max"), ties.along_axis),
    "Min": OperationRow(None, operations.reduce("min"), ties.along_axis),
    "Sum": OperationRow(None, operations.reduce("sum"), ties.along_axis),
    "Softmax": OperationRow(None, operations.softmax),
    "Matmul": OperationRow(None, operations.matmul),
    "Einsum": OperationRow(None, operations.einsum),
    "Split": _moves(operations.split),
    "Stack": _moves(operations.stack),
    "Reshape": _moves(operations.reshape),
    "Transpose": _moves(operations.transpose),
    "Swapaxes": _moves(operations.swapaxes),
    "Moveaxis": _moves(operations.moveaxis),
    "Roll": _moves(operations.roll),
    "Tile": _moves(operations.tile),
    "Repeat": _moves(operations.repeat),
    "Cumsum": OperationRow(None, operations.along_axis("cumsum")),
    "Flip": _moves(operations.along_axis("flip"), ties.along_axis),
    "Take": _moves(operations.take, ties.along_axis),
    "GetItem": _moves(operations.get_item, ties.item),
    "Squeeze": _moves(operations.squeeze, ties.along_axis),
    "ExpandDims": _moves(operations.expand_dims, ties.along_axis, operations.same_mask),
    "Concatenate": _moves(program.concatenate, ties.joined, operations.joined_masks),
    "ConvertToTensor": OperationRow(mask=operations.same_mask),
    "NotEqual": OperationRow(
        ALIKE, None, ties.arithmetic, operations.not_equal, elementwise.compare("not_equal")
    ),
    "LogicalOr": OperationRow(
        ALIKE, mask=operations.logical_or, numbers=elementwise.joined_truths("maximum")
    ),
    "Any": OperationRow(
        LAST_AXIS, mask=operations.any_feature, numbers=operations.extreme_of_booleans("max")
    ),
    "All": OperationRow(LAST_AXIS, numbers=operations.extreme_of_booleans("min")),
    "OnesLike": OperationRow(mask=operations.constant_mask(counts=True)),
    "ZerosLike": OperationRow(mask=operations.constant_mask(counts=False)),
}
"""By class name, because Keras does not export the classes of its operations."""


def treats_steps(layer: object, *how: TimeSteps) -> bool:
    """True if a layer, or a base class of it, is known to treat time steps in one of these ways."""
    return any(isinstance(layer, kind) for kind, row in ROWS.items() if row.steps in how)


def readers() -> Readers:
    """The rules by which layers become nodes of a program."""
    anywhere = {kind: row.program for kind, row in ROWS.items() if row.program is not None}
    return Readers(
        anywhere,
        {kind: read for kind, read in anywhere.items() if ROWS[kind].per_step},
        {kind: read for kind, read in anywhere.items() if ROWS[kind].steps is CELL},
    )


def operation_row(kind: type) -> OperationRow:
    """The row of one of Keras's own operations; an empty row for anything else."""
    known = OPERATIONS.get(kind.__name__) if kind.__module__.startswith("keras.src.ops.") else None
    return known or OperationRow()
