"""Files of Keras 2 (tf.keras before TensorFlow 2.16, tf_keras): what Keras 3 no longer reads in them, and what to do.

Each recurrent layer of Keras 2 stores `time_major`, which Keras 3 refuses. `translated` leaves out entries without
effect, replaces cuDNN layers by plain ones, and makes a model that is time-major throughout batch-major.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from cellerate.errors import ModelError
from cellerate.keras_graph.keras2 import masks_of_keras_2
from cellerate.models.keras2_activations import SCALED, scale_before_activations, scale_weights
from cellerate.models.keras2_calls import MODELS, translate_calls

# Keras stores weights and assets uncompressed, so no genuine file grows a hundredfold. A forged one may claim any size.
LARGEST_RATIO = 100
_CONFIG, _H5_CONFIG = "config.json", "model_config"
_KEYWORDS = {
    "time_major": "leave time_major out and give the layer (batch, time, features): keras.ops.transpose(x, (1, 0, 2))",
    "batch_input_shape": "begin the model with keras.Input(batch_shape=...)",
    "alpha": "write negative_slope=",
    "lr": "write learning_rate=",
}
_OPERATION = (
    "write operations between layers, such as x * 2, x[:, -1] or tf.reduce_mean(x), with keras.ops or layers"
)
_CLASSES = {
    "CuDNNLSTM": "write keras.layers.LSTM, which takes cuDNN by itself",
    "CuDNNGRU": "write keras.layers.GRU, which takes cuDNN by itself",
    "ThresholdedReLU": "write keras.layers.ReLU(threshold=...)",
    **dict.fromkeys(("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"), _OPERATION),
}


# For each cuDNN layer: the plain layer, its number of gates, and the options that the plain layer needs.
_OF_CUDNN: dict[str, tuple[str, int, dict[str, Any]]] = {
    "CuDNNLSTM": ("LSTM", 4, {}),
    "CuDNNGRU": ("GRU", 3, {"reset_after": True}),
}
# What only Keras 2 stores for a layer, with the value that has no effect; ... for any value.
_SHAPES = {f"{name}_shape": ... for name in ("query", "key", "value")}
_OF_KERNELS = {f"kernel_{name}": ... for name in ("initializer", "regularizer", "constraint")}
_WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    **{f"SpatialDropout{axes}D": {"trainable": ..., "noise_shape": None} for axes in (1, 2, 3)},
    **{f"SeparableConv{axes}D": {"groups": 1, **_OF_KERNELS} for axes in (1, 2)},
    **{f"DepthwiseConv{axes}D": {"groups": 1} for axes in (1, 2)},
    **{f"Conv{axes}DTranspose": {"groups": 1} for axes in (1, 2, 3)},
    "MultiHeadAttention": {"softmax_robust_masking": False, **_SHAPES},
    # Keras 3 takes the word for its function `dot` in an HDF5 file. It is the default.
    "Attention": {"score_mode": "dot"},
}
_TURNED = "was built with time_major=True: it reads (batch, time, features) now, and gives sequences so"
_RECURRENT = ("LSTM", "GRU", "SimpleRNN")
# Layers that compute the same at every row of a batch and every time step.
_PLACE_BY_PLACE = (
    *("InputLayer", "Embedding", "Dense", "Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Dropout"),
    *("GaussianNoise", "GaussianDropout", "AlphaDropout", "LayerNormalization", "Masking"),
    *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"),
)


def translated(source: Path, folder: Path, *, old: bool) -> tuple[Path, str]:
    """Return a file that Keras 3 reads, and a note on it for the user, "" if there is none.

    It is the file itself, or a copy of it in a folder without the entries that only Keras 2 knew.

    Args:
        source: A `.keras` or HDF5 file.
        folder: Where to write the copy.
        old: Whether Keras 2 or 1 wrote it.
    """
    copy = folder / source.name
    if source.suffix == ".keras":
        with zipfile.ZipFile(source) as archive:
            config = json.loads(archive.read(_CONFIG))
            turned = _turn(config)
            scaled = old and _scale(config)
            if not _translate(config) and not turned and not scaled:
                return source, ""
            with zipfile.ZipFile(copy, "w") as written:
                for entry in archive.infolist():
                    found = json.dumps(config) if entry.filename == _CONFIG else archive.read(entry)
                    written.writestr(entry.filename, found)
        return copy, _TURNED if turned else ""
    # Part of Keras, and slow to import.
    import h5py

    with h5py.File(source) as file:
        stored = file.attrs.get(_H5_CONFIG)
    config = None if stored is None else json.loads(stored)
    turned, of_cudnn, scaled = _turn(config), _make_plain(config), old and _scale(config)
    # Keras 3 itself translates the shapes in such files.
    if not _translate(config, shapes=False) and not turned and not of_cudnn and not scaled:
        return source, ""
    shutil.copyfile(source, copy)
    with h5py.File(copy, "r+") as file:
        del file.attrs[_H5_CONFIG]
        file.attrs[_H5_CONFIG] = json.dumps(config)
        if of_cudnn:
            _lay_out_anew(file)
    return copy, _TURNED if turned else ""


def with_its_meaning(source: Path, read: Callable[[], keras.Model]) -> keras.Model:
    """Return the model of a file of Keras 2, which computes what it computes there.

    Args:
        source: The file, for messages.
        read: Reads its translation.

    Raises:
        ModelError: Keras 3 cannot compute the same.
    """
    with masks_of_keras_2(without=SCALED) as refused:
        model = read()
    if refused:
        raise ModelError(
            f"{source} computes other numbers in Keras {keras.__version__}: in Keras 2, {refused[0]}, and Keras 3 "
            "does otherwise. Build the model again with layers that need no mask there, and train it."
        )
    scale_weights(source, model)
    return model


def hdf5_contents(source: Path) -> tuple[str | None, bool, int]:
    """Return a model's description in an HDF5 file, if any; True if it has groups; and the bytes of its arrays.

    Args:
        source: The file.

    Raises:
        OSError: It is not an HDF5 file, or damaged.
    """
    import h5py

    sizes: list[int] = []

    def visit(_: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            sizes.append(min(found.nbytes, LARGEST_RATIO * found.id.get_storage_size()))

    with h5py.File(source) as file:
        file.visititems(visit)
        return file.attrs.get(_H5_CONFIG), len(file) > 0, sum(sizes)


def writer_of(source: Path) -> str:
    """Return the version of Keras that a `.keras` or HDF5 file names."""
    if source.suffix == ".keras":
        with zipfile.ZipFile(source) as archive:
            return str(json.loads(archive.read("metadata.json"))["keras_version"])
    import h5py

    with h5py.File(source) as file:
        version = file.attrs["keras_version"]
        return version.decode() if isinstance(version, bytes) else str(version)


def of_keras_2(source: Path) -> bool:
    """Return whether Keras 2 or 1 wrote a `.keras` or HDF5 file, whose words may mean something else in Keras 3."""
    try:
        return re.match(r"[12]\b", writer_of(source)) is not None
    except KeyError:
        # The first releases did not name themselves.
        return source.suffix != ".keras"


def advice(failure: str) -> str | None:
    """Return advice on a class or option that Keras 3 refuses; None if its message names none of Keras 2.

    Args:
        failure: Keras's message.
    """
    refused = re.search(r"(?:arguments passed to (\w+)|Argument\(s\) not recognized): \{([^{}]*)\}", failure)
    if refused is not None:
        for name, instead in _KEYWORDS.items():
            if f"'{name}'" in refused[2]:
                return f"{refused[1] or 'the optimizer'} has {name}=, of Keras 2: {instead}"
    for name, instead in _CLASSES.items():
        if re.search(rf"(?:layer|class|deserialize):? '(?:keras\.layers\.)?{name}'", failure):
            return f"{name} is of Keras 2: {instead}"
    return None


def _layers(config: Any) -> Iterator[dict[str, Any]]:
    """The descriptions of the layers in a model's description, which can be changed in place."""
    waiting = [config]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            waiting.extend(node.values())
            if "class_name" in node and isinstance(node.get("config"), dict):
                yield node


def _scale(config: Any) -> bool:
    """Keeps the meaning of each `Activation("hard_sigmoid")`, and returns whether there was one."""
    changed = False
    for node in _layers(config):
        if node["class_name"] in MODELS and isinstance(node["config"].get("layers"), list):
            changed |= scale_before_activations(node["config"]["layers"])
    return changed


def _translate(config: Any, *, shapes: bool = True) -> bool:
    """Changes a model's description, and says whether there was anything to change."""
    changed = False
    for node in list(_layers(config)):
        layer = node["config"]
        if str(node.get("module")).endswith(".engine.functional"):
            node["module"] = "keras.src.models.functional"
            changed = True
        if node["class_name"] in MODELS and isinstance(layer.get("layers"), list):
            changed |= translate_calls(layer)
        for name in ("input_layers", "output_layers"):
            if isinstance(layer.get(name), list) and len(layer[name]) == 1:
                # Keras 2 writes a list of one; Keras 3 would ask for a list of one array then.
                (layer[name],) = layer[name]
        changed |= _leave_out(node["class_name"], layer)
        for name in ("layer", "backward_layer"):
            if isinstance(layer.get(name), dict):
                # An HDF5 file describes what a wrapper holds as a newer file does.
                changed |= _translate(layer[name])
        if shapes and "batch_input_shape" in layer:
            shape = layer.pop("batch_input_shape")
            if node["class_name"] == "InputLayer":
                layer["batch_shape"] = shape
            changed = True
    return changed


def _leave_out(kind: str, layer: dict[str, Any]) -> bool:
    """Leaves out what has no effect in the description of a layer, and says what Keras 2 did not write."""
    before = dict(layer)
    for name, value in {"time_major": False, **_WITHOUT_EFFECT.get(kind, {})}.items():
        if name in layer and (value is ... or layer[name] == value):
            del layer[name]
    if kind == "BatchNormalization" and isinstance(layer.get("axis"), list) and len(layer["axis"]) == 1:
        (layer["axis"],) = layer["axis"]
    if kind in ("GRU", "GRUCell"):
        # Files that do not name it are older than it.
        layer.setdefault("reset_after", False)
    return layer != before


def _turn(config: Any) -> bool:
    """Makes a model that is time-major from its inputs on batch-major, and returns whether it was.

    In such a model every recurrent layer is time-major, and every other layer computes the same at each row of a batch
    and each time step; so swapping the first two axes changes no number.
    """
    nodes = list(_layers(config))
    recurrent = [node for node in nodes if node["class_name"] in _RECURRENT]
    if not recurrent or not all(node["config"].get("time_major") is True for node in recurrent):
        return False
    if not all(_is_turned_with_them(node) for node in nodes):
        return False
    for node in nodes:
        node["config"].pop("time_major", None)
        if node["class_name"] not in MODELS:
            # The layers are built again from their inputs.
            node.pop("build_config", None)
        for where, name in (
            (node["config"], "batch_shape"),
            (node["config"], "batch_input_shape"),
            (node.get("build_config") or {}, "input_shape"),
        ):
            shape = where.get(name)
            if isinstance(shape, list) and len(shape) >= 2:
                where[name] = [shape[1], shape[0], *shape[2:]]
    return True


def _is_turned_with_them(node: dict[str, Any]) -> bool:
    layer, name = node["config"], node["class_name"]
    if name in (*MODELS, "Bidirectional", "TimeDistributed", *_RECURRENT):
        return layer.get("stateful") is not True
    if name in ("Concatenate", "Softmax", "LayerNormalization"):
        return layer.get("axis", -1) in (-1, [-1], 2, [2])
    # Others are not layers: an initializer, a policy, a function.
    described = "units" in layer or "name" in layer or "trainable" in layer
    return name in _PLACE_BY_PLACE or not described


def _make_plain(config: Any) -> bool:
    """Replaces cuDNN layers by plain layers, and returns whether there were any."""
    changed = False
    for node in _layers(config):
        if node["class_name"] in _OF_CUDNN:
            node["class_name"], _, further = _OF_CUDNN[node["class_name"]]
            node["config"] |= {
                "activation": "tanh",
                "recurrent_activation": "sigmoid",
                "use_bias": True,
                **further,
            }
            if "module" in node:
                node |= {"module": "keras.layers", "registered_name": None}
            changed = True
    return changed


def _lay_out_anew(file: Any) -> None:
    """Rewrites the weights of cuDNN layers in an HDF5 file in the layout of plain layers.

    cuDNN layers are recognised by their biases, two for each gate.

    Source:
        The cuDNN layers pass each gate's (inputs, units) matrix to cuDNN as it lies in memory, and cuDNN reads it as
        (units, inputs): NVIDIA, "cuDNN Developer Guide", on `cudnnGetRNNLinLayerMatrixParams`.
    """
    for group in file["model_weights"].values():
        names = [
            name.decode() if isinstance(name, bytes) else str(name) for name in group.attrs["weight_names"]
        ]
        for place in range(len(names) - 2):
            kernel, recurrent, bias = (np.array(group[name]) for name in names[place : place + 3])
            units = recurrent.shape[0] if recurrent.ndim == 2 else 0
            for _, gates, _ in _OF_CUDNN.values():
                shapes = (recurrent.shape, bias.shape, kernel.shape[-1:])
                if units and shapes == ((units, gates * units), (2 * gates * units,), (gates * units,)):
                    changed = [_of_gates(kernel, gates), _of_gates(recurrent, gates), bias.reshape(2, -1)]
                    if gates == 4:
                        changed[2] = changed[2].sum(axis=0)
                    for name, values in zip(names[place : place + 3], changed, strict=True):
                        del group[name]
                        group[name] = values


def _of_gates(matrix: np.ndarray, gates: int) -> np.ndarray:
    """Converts a matrix from cuDNN's layout to a plain layer's, (inputs, gates * units)."""
    rows, width = matrix.shape
    parts = np.split(matrix, gates, axis=1)
    return np.concatenate([part.reshape(width // gates, rows).T for part in parts], axis=1)
