"""Which layers and operations treat every time step alike, and which mix steps.

A module of its own because these are lists of Keras's layers, to be gone through when Keras gains some.
"""

from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src import tree
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.layers.convolutional.base_conv_transpose import BaseConvTranspose
from keras.src.layers.convolutional.base_depthwise_conv import BaseDepthwiseConv
from keras.src.layers.convolutional.base_separable_conv import BaseSeparableConv
from keras.src.layers.pooling.base_global_pooling import BaseGlobalPooling
from keras.src.layers.pooling.base_pooling import BasePooling
from keras.src.layers.rnn.conv_lstm import ConvLSTM

# What mixes time steps can never be run one step at a time. It is listed for a clear message; a layer in no
# list is tried out (`StepGraph.untested`).
MIXING = (
    layers.Attention,
    layers.AdditiveAttention,
    layers.MultiHeadAttention,
    layers.GroupQueryAttention,
    BaseConv,
    BaseConvTranspose,
    BaseDepthwiseConv,
    BaseSeparableConv,
    BasePooling,
    BaseGlobalPooling,
    ConvLSTM,
    layers.Flatten,
    layers.Reshape,
    layers.Permute,
    layers.RepeatVector,
    layers.Cropping1D,
    layers.ZeroPadding1D,
    layers.UpSampling1D,
)
# These treat every time step alike, whatever their arguments.
PER_STEP = (
    layers.Embedding,
    layers.Dense,
    layers.Dropout,
    layers.SpatialDropout1D,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.AlphaDropout,
    layers.ActivityRegularization,
    layers.Activation,
    layers.ReLU,
    layers.LeakyReLU,
    layers.ELU,
    layers.Identity,
    layers.Masking,
    layers.Rescaling,
    layers.Add,
    layers.Subtract,
    layers.Multiply,
    layers.Average,
    layers.Maximum,
    layers.Minimum,
    layers.TimeDistributed,
)
# These do so as long as they work along the last axis.
LAST_AXIS = (
    layers.BatchNormalization,
    layers.Concatenate,
    layers.LayerNormalization,
    layers.Normalization,
    layers.RMSNormalization,
    layers.Softmax,
    layers.UnitNormalization,
)
_OPERATIONS = frozenset(
    [
        *("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Negative", "Maximum", "Minimum", "Cast"),
        *("Exp", "Log", "Sqrt", "Square", "Tanh", "Sigmoid", "Relu", "Gelu", "Silu", "Elu"),
        *("NotEqual", "LogicalOr"),  # of these Keras makes masks
    ]
)


def treats_steps_alike(operation: Any, node: Any) -> bool:
    """Whether a layer or operation, as called in a node, is known to treat every time step alike."""
    if isinstance(operation, keras.Layer):
        return isinstance(operation, PER_STEP) or (
            isinstance(operation, LAST_AXIS) and _works_on_last_axis(operation)
        )
    name = type(operation).__name__
    if name == "Any":  # of this Keras makes the mask of a Masking layer
        return _works_on_last_axis(operation)
    return name in _OPERATIONS and _takes_tensors_only(node)


def _works_on_last_axis(layer: Any) -> bool:
    axis = layer.axis
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    # Keras turns the axis of a layer built on (B, T, F) into 2.
    return axes in ([-1], [2])


def _takes_tensors_only(node: Any) -> bool:
    """Whether an operation is given no constant array, which could differ from step to step."""
    given = tree.flatten((node.arguments.args, node.arguments.kwargs))
    return all(
        isinstance(value, keras.KerasTensor | int | float | str | None) or np.ndim(value) == 0
        for value in given
    )
