"""Files of Keras 2 (tf.keras before TensorFlow 2.16, tf_keras): what Keras 3 no longer reads in them, and what to do.

Each recurrent layer of Keras 2 stores `time_major`, which Keras 3 refuses. `translated` leaves out what makes no
difference; the weights are stored alike.
"""

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

_CONFIG, _H5_CONFIG = "config.json", "model_config"
_KEYWORDS = {
    "time_major": "leave time_major out and give the layer (batch, time, features): keras.ops.transpose(x, (1, 0, 2))",
    "batch_input_shape": "begin the model with keras.Input(batch_shape=...)",
    "alpha": "write negative_slope=",
    "lr": "write learning_rate=",
}
_CLASSES = {
    "CuDNNLSTM": "write keras.layers.LSTM, which takes cuDNN by itself",
    "CuDNNGRU": "write keras.layers.GRU, which takes cuDNN by itself",
    "ThresholdedReLU": "write keras.layers.ReLU(threshold=...)",
}


def translated(source: Path, folder: Path) -> Path:
    """Gives a file that Keras 3 reads: the file itself, or a copy of it in a folder without what only Keras 2 knew.

    Args:
        source: A `.keras` or HDF5 file.
        folder: Where to write the copy.
    """
    copy = folder / source.name
    if source.suffix == ".keras":
        with zipfile.ZipFile(source) as archive:
            config = json.loads(archive.read(_CONFIG))
            if not _translate(config):
                return source
            with zipfile.ZipFile(copy, "w") as written:
                for entry in archive.infolist():
                    found = json.dumps(config) if entry.filename == _CONFIG else archive.read(entry)
                    written.writestr(entry.filename, found)
        return copy
    # Part of Keras, and slow to import.
    import h5py

    with h5py.File(source) as file:
        stored = file.attrs.get(_H5_CONFIG)
    config = None if stored is None else json.loads(stored)
    # Keras 3 itself translates the shapes in such files.
    if not _translate(config, shapes=False):
        return source
    shutil.copyfile(source, copy)
    with h5py.File(copy, "r+") as file:
        del file.attrs[_H5_CONFIG]
        file.attrs[_H5_CONFIG] = json.dumps(config)
    return copy


def advice(failure: str) -> str | None:
    """Says what to write in place of what Keras 3 refuses; None if its message names nothing of Keras 2.

    Args:
        failure: What Keras says.
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


def _translate(config: Any, *, shapes: bool = True) -> bool:
    """Changes a model's description, and says whether there was anything to change."""
    changed = False
    waiting = [config]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            waiting.extend(node.values())
            layer = node.get("config")
            if "class_name" not in node or not isinstance(layer, dict):
                continue
            if layer.get("time_major") is False:
                del layer["time_major"]
                changed = True
            if shapes and "batch_input_shape" in layer:
                shape = layer.pop("batch_input_shape")
                if node["class_name"] == "InputLayer":
                    layer["batch_shape"] = shape
                changed = True
    return changed
