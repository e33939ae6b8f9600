"""The checkpoint of a run: one safetensors file from which training continues with exactly the same curve.

An exact resume needs the weights, optimizer, metrics, seeds and carried states, which are all Keras variables,
and the position, the history and the counters of the callbacks, which are one JSON text in the file's header. The
header also has a checksum of all other bytes of the file. `training.checkpoint_folder` keeps the last few.

    model/<n>       the variables of the model (weights, seeds of dropout, carried states), float as stored
    optimizer/<n>   the variables of the optimizer
    metrics/<n>     the running sums behind the loss and the metrics of an epoch cut short
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cellerate.errors import CheckpointError
from cellerate.files import atomic_write
from cellerate.machine.environment import require
from cellerate.messages import argument
from cellerate.training.settings import TrainingSettings

if TYPE_CHECKING:
    import keras

# The entries of a run's identity that are hashes, and the message if one differs.
HASHED = {
    "model": "the model has other layers, or layers of other shapes",
    "training data": "the training data differ",
    "validation data": "the validation data differ",
}
_TRAINING = frozenset(field.name for field in dataclasses.fields(TrainingSettings))

_FORMAT = "cellerate-checkpoint-2"
_CHECKSUM_BYTES = 32
# Stands in the place of the checksum while it is computed.
_NO_CHECKSUM = "0" * 2 * _CHECKSUM_BYTES


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run stands.

    Attributes:
        epoch: The epoch that trains next, from 0.
        batch: The batch of that epoch that trains next, from 0.
    """

    epoch: int = 0
    batch: int = 0


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A run at one moment.

    Attributes:
        position: The epoch and batch to train next.
        identity: The settings, data and model of the run; a resumed run must have the same.
        progress: The fields of `Progress`: history, loss curve, counters of callbacks, seconds.
        arrays: The values of all variables, under the names in the module docstring.
    """

    position: Position
    identity: dict[str, Any]
    progress: dict[str, Any]
    arrays: dict[str, np.ndarray]


def capture(
    model: keras.Model, position: Position, identity: dict[str, Any], progress: dict[str, Any]
) -> Checkpoint:
    """A copy of everything that `restore` needs, taken between two batches of `fit` or outside it."""
    sync_variables(model)
    arrays = {name: _to_numpy(variable) for name, variable in _variables(model).items()}
    return Checkpoint(position, identity, progress, arrays)


def sync_variables(model: keras.Model) -> None:
    """Gives the variables of a model their newest values, between two batches of `fit`."""
    # There the JAX trainer holds them itself.
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Writes a checkpoint; an older one at `path` stays whole until the new one is on the disk.

    Raises:
        OutputError: The file could not be written.
    """
    require("safetensors", "train", "a checkpoint")
    from safetensors.numpy import save

    header = {
        "format": _FORMAT,
        "position": json.dumps(dataclasses.asdict(checkpoint.position)),
        "identity": json.dumps(checkpoint.identity),
        "progress": json.dumps(checkpoint.progress),
        "checksum": _NO_CHECKSUM,
    }
    content = memoryview(save(checkpoint.arrays, metadata=header))
    place = _checksum_place(bytes(content[: _data_begin(content[:8])]))
    checksum = hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).hexdigest().encode()
    with atomic_write(path) as beside:
        _write(beside, [content[:place], checksum, content[place + len(checksum) :]])


def load_checkpoint(path: str | os.PathLike[str], *, arrays: bool = True) -> Checkpoint:
    """Reads a checkpoint.

    Args:
        path: The file.
        arrays: False reads the header only, and leaves `Checkpoint.arrays` empty.

    Raises:
        CheckpointError: There is no such file, or it is damaged.
    """
    require("safetensors", "train", "a checkpoint")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        header = _verified_header(path)
        position = Position(**json.loads(header["position"]))
        identity, progress = json.loads(header["identity"]), json.loads(header["progress"])
        values: dict[str, np.ndarray] = {}
        if arrays:
            with safe_open(path, framework="numpy") as file:
                values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the checkpoint {path} is damaged ({type(error).__name__}: {error})."
        ) from error
    return Checkpoint(position, identity, progress, values)


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises `CheckpointError` naming every setting in which a resumed run differs from its checkpoint.

    A setting that the checkpoint does not know passes: an earlier version wrote it.
    """
    # The saved one went through JSON; so does this one, so that a tuple equals its list.
    current = json.loads(json.dumps(dict(current)))
    differing = [name for name in sorted(saved) if saved[name] != current.get(name)]
    said = [
        f"{argument(name)} was {saved[name]!r}, now {current.get(name)!r}"
        for name in differing
        if name not in HASHED
    ]
    # A differing setting of the task already explains why the hash of its data or model differs.
    if not any(name not in _TRAINING and name not in HASHED for name in differing):
        said += [HASHED[name] for name in differing if name in HASHED]
    if said:
        raise CheckpointError(
            f"the checkpoint belongs to a run with other settings or data: {'; '.join(said)}. Resume with the settings "
            f"it was started with, or start anew ({argument('overwrite', True)})."
        )


def restore(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Gives all variables of a compiled `model` the values of `checkpoint`.

    Raises:
        CheckpointError: The checkpoint is from another model or optimizer.
    """
    # Otherwise the optimizer would create its variables on the first update and start them from zero.
    model.optimizer.build(model.trainable_variables)
    variables = _variables(model, metrics=False)
    wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
    found = {k: v.shape for k, v in checkpoint.arrays.items() if not k.startswith("metrics/")}
    if wanted != found:
        other = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise CheckpointError(
            f"the checkpoint was made of another model: {len(other)} of its variables differ, the first is "
            f"{other[0]} (the checkpoint has {found.get(other[0])}, the model {wanted.get(other[0])})."
        )
    for name, variable in variables.items():
        variable.assign(checkpoint.arrays[name])


def restore_metrics(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Gives the metrics their running sums, so that the average covers the whole of an epoch that was cut.

    Call it from `on_epoch_begin`: `fit` resets all metrics just before.
    """
    metrics = {f"metrics/{n}": v for n, v in enumerate(model.metrics_variables)}
    if all(name in checkpoint.arrays for name in metrics):
        for name, variable in metrics.items():
            variable.assign(checkpoint.arrays[name])


def _verified_header(path: Path) -> dict[str, str]:
    """The header of a checkpoint whose checksum is right; the file is read once, in pieces."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"the checkpoint {path} is not a regular file.")
    with path.open("rb") as file:
        length, size = file.read(8), path.stat().st_size
        begin = _data_begin(length) if len(length) == 8 else size + 1
        if begin > size:
            why = "it is shorter than its header says" if size else "it is empty"
            raise CheckpointError(f"the checkpoint {path} is damaged: {why}.")
        file.seek(0)
        head = bytearray(file.read(begin))
        header: dict[str, str] = json.loads(head[8:])["__metadata__"]
        if header["format"] != _FORMAT:
            raise CheckpointError(
                f"{path} is not a checkpoint of this version (format {header['format']!r}, expected {_FORMAT!r})."
            )
        place = _checksum_place(bytes(head))
        head[place : place + len(_NO_CHECKSUM)] = _NO_CHECKSUM.encode()
        found = hashlib.blake2b(head, digest_size=_CHECKSUM_BYTES)
        while piece := file.read(1 << 20):
            found.update(piece)
    if header["checksum"] != found.hexdigest():
        raise CheckpointError(f"the checkpoint {path} is damaged: its checksum is wrong.")
    return header


def _data_begin(length: bytes | memoryview) -> int:
    """Where the header of a safetensors file ends: its length stands in the first eight bytes."""
    return 8 + int(struct.unpack("<Q", length)[0])


def _checksum_place(head: bytes) -> int:
    key = b'"checksum":"'
    return head.index(key) + len(key)


def _write(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)


def _variables(model: keras.Model, *, metrics: bool = True) -> dict[str, Any]:
    """Every variable of a run under its name in the file. Keras's order of variables is deterministic."""
    groups: dict[str, list[Any]] = {"model": model.variables, "optimizer": model.optimizer.variables}
    if metrics:
        groups["metrics"] = model.metrics_variables
    return {f"{group}/{n}": v for group, variables in groups.items() for n, v in enumerate(variables)}


def _to_numpy(variable: Any) -> np.ndarray:
    # Checkpoints are looked at before a framework starts, too.
    import keras

    array = np.array(keras.ops.convert_to_numpy(variable.value))
    # safetensors for NumPy has no bfloat16; float32 holds every bfloat16 exactly.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def architecture_of(model: keras.Model) -> str:
    """A hash of the variables' shapes and the layers' classes, without names: they hold meaningless counters."""
    described = [
        [list(variable.shape) for variable in model.variables],
        [type(layer).__name__ for layer in model.layers],
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
