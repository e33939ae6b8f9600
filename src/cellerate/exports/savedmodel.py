"""Models as TensorFlow's SavedModel, for TensorFlow Serving, tried in TensorFlow.

A folder has the signature "serving_default" and, if no layer looks ahead, "step": the same model with the states of
the LSTMs as inputs and outputs. It also has requests to warm up with.
"""

from __future__ import annotations

import errno
import json
import keyword
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cellerate.errors import ModelError
from cellerate.exports import tensorflow_operations
from cellerate.exports.trials import Arrays, TrialBatch
from cellerate.program import Program

_WARM_UP = Path("assets.extra") / "tf_serving_warmup_requests"


def write_saved_model(
    programs: Mapping[str, Program],
    trials: Mapping[str, list[TrialBatch]],
    metadata: Mapping[str, Any],
    folder: str | os.PathLike[str],
) -> None:
    """Write programs into one SavedModel; shared weights are written once.

    Args:
        programs: The program of each signature.
        trials: For each signature, the batches to warm up with.
        metadata: Plain JSON, for a separate file.
        folder: The folder, which is created.

    Raises:
        ModelError: TensorFlow would change the name of an input.
        OSError: The folder could not be written.
    """
    module, weights = tf.Module(), _Weights()
    signatures = {name: _function(program, weights) for name, program in programs.items()}
    module.kept = weights.variables
    try:
        tf.saved_model.save(module, os.fspath(folder), signatures=signatures)
        requests = Path(folder) / _WARM_UP
        requests.parent.mkdir()
        (requests.parent / "cellerate.json").write_text(json.dumps(metadata))
        with tf.io.TFRecordWriter(str(requests)) as writer:
            for name, batches in trials.items():
                for trial in batches:
                    writer.write(_prediction_log(name, trial.inputs))
    except tf.errors.ResourceExhaustedError as error:
        # TensorFlow's files report a full disk by an error of its own.
        raise OSError(errno.ENOSPC, error.message) from error


class SavedModel:
    """A signature of an exported model, in TensorFlow.

    Args:
        folder: The SavedModel.
        signature: Its name.
    """

    def __init__(self, folder: str | os.PathLike[str], signature: str) -> None:
        # Held, because its signatures do not hold it.
        self._loaded = tf.saved_model.load(os.fspath(folder))
        self._run = self._loaded.signatures[signature]

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs by name."""
        given = {name: tf.constant(array) for name, array in inputs.items()}
        return {name: np.asarray(result) for name, result in self._run(**given).items()}


class _Weights:
    """The weights of programs as variables, each array once."""

    def __init__(self) -> None:
        # With the arrays, because the `id` of a freed array may be given to another.
        self._made: dict[int, tuple[np.ndarray, Any]] = {}

    def of(self, array: np.ndarray) -> Any:
        if id(array) not in self._made:
            variable = tf.Variable(array, trainable=False, name=f"weight_{len(self._made)}")
            self._made[id(array)] = array, variable
        return self._made[id(array)][1]

    @property
    def variables(self) -> list[Any]:
        return [variable for _, variable in self._made.values()]


def _function(program: Program, weights: _Weights) -> Any:
    types = {"float32": tf.float32, "int32": tf.int32}
    specs = {}
    for name, number in program.inputs.items():
        # TensorFlow changes other names, and fails at keywords of Python, because inputs are arguments of a function.
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name) or name == "self":
            raise ModelError(
                f"TensorFlow has no input {name!r}: a name has letters from a to z, digits and '_', begins with a "
                "letter, and is not a word of Python's language or 'self'. Rename the model's Input."
            )
        options: Mapping[str, Any] = program.nodes[number].options
        shape = [None if size == -1 else size for size in options["shape"]]
        specs[name] = tf.TensorSpec(shape, types[options["dtype"]], name=name)
    variables = [{name: weights.of(array) for name, array in node.arrays.items()} for node in program.nodes]

    def served(**given: Any) -> dict[str, Any]:
        return _run(program, variables, given)

    return tf.function(served, autograph=False).get_concrete_function(**specs)


def _run(program: Program, variables: list[dict[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    values: list[Any] = []
    lstms: dict[int, tuple[Any, Any, Any]] = {}
    for number, node in enumerate(program.nodes):
        read = {name: values[source] for name, source in node.inputs.items()} | variables[number]
        if node.op == "input":
            values.append(given[node.name])
        elif node.op == "lstm":
            lstms[number] = tensorflow_operations.lstm(node, read)
            values.append(lstms[number][0])
        elif node.op == "lstm_state":
            values.append(lstms[node.inputs["lstm"]]["hc".index(node.options["state"]) + 1])
        else:
            values.append(tensorflow_operations.run(node, read))
    return {name: tf.identity(values[number]) for name, number in program.outputs.items()}


def _prediction_log(signature: str, inputs: Arrays) -> bytes:
    """A request as TensorFlow Serving logs it.

    Source: tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto; written by hand, so that
    nothing more has to be installed.
    """
    request = _field(1, _field(3, signature.encode()))
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in the wire format of protocol buffers."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, value = value & 127, value >> 7
    return bytes([low | 128]) + _varint(value) if value else bytes([low])
