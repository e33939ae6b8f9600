"""Saves and loads trained models: a plain `.keras` file with one extra entry, `cellerate.json`.

A file may come from anywhere, so it is read with suspicion: whatever is wrong with it ends in one `ModelError`
that says what to do. `keras.saving.load_model` opens the same file without Cellerate.
"""

from __future__ import annotations

import binascii
import dataclasses
import functools
import json
import os
import re
import struct
import tempfile
import typing
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import keras

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.files import atomic_write, check_model_file, damaged_model
from cellerate.keras_graph import keras2
from cellerate.keras_graph.compiling import compile_as
from cellerate.keras_graph.initial_weights import described_weights
from cellerate.models import keras2_files
from cellerate.models.rewrite import is_functional, same_layers
from cellerate.settings import check_choice

Task = Literal["text", "series", "embed"]

_TASKS: tuple[Task, ...] = typing.get_args(Task)
_CALLED = {"text": "a text model", "series": "a series model", "embed": "an embed model"}
_VERBS = {"text": "generate", "series": "forecast", "embed": "embed"}
_SCHEMA = 1
_ENTRY = "cellerate.json"
_CONFIG = "config.json"
_WEIGHTS = ("model.weights.h5", "model.weights.npz")
_LARGEST_JSON = 64 * 2**20  # bytes; a tokenizer is embedded in the record
_RATIO_APPLIES_FROM = 2**20  # bytes
_WEIGHTS_PER_BYTE = 8  # more than any quantisation packs into a byte

# What zipfile, json, h5py, Keras and the backends raise on a damaged or foreign file. Anything else is a bug.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    binascii.Error,
    struct.error,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """The information that a task needs beside the model to use it again.

    Args:
        task: The task the model was trained for.
        payload: JSON values only, as the task defines them: the tokenizer, the scaler, the run's settings.

    Raises:
        ConfigError: The task is unknown, or the payload is not a dictionary.
    """

    task: Task
    payload: dict[str, Any]

    def __post_init__(self) -> None:
        check_choice("task", self.task, _TASKS)
        if not isinstance(self.payload, dict):
            raise ConfigError(f"payload must be a dictionary, not a {type(self.payload).__name__}.")


def save_model(model: keras.Model, path: str | os.PathLike[str], record: TaskRecord | None = None) -> None:
    """Writes architecture, weights and record into a `.keras` file, whole or not at all.

    The compile state and the optimizer's variables are left out, so that the file opens anywhere and is a third
    of the size. A checkpoint keeps them for further training. A compiled Sequential model comes back as the
    Functional model inside it. A subclassed model is saved as Keras saves it, with its compile state.

    Args:
        model: A built model.
        path: Must end in ".keras".
        record: What the task needs to use the model again; None writes Keras's entries only.

    Raises:
        ConfigError: The path has another suffix, or the payload is not JSON or larger than 64 MB.
        ModelError: The model is not built, or Keras cannot describe one of its layers.
        OutputError: The file could not be written.
    """
    target = Path(path)
    if target.suffix != ".keras":
        raise ConfigError(f"a model is saved to a path ending in '.keras', not {str(target)!r}.")
    if not model.built:
        raise ModelError(
            f"model {model.name!r} is not built: it has no weights to save. Give it a keras.Input or call it."
        )
    entry = None if record is None else _encode(record)
    with atomic_write(target) as beside:
        try:
            # A custom class is saved as it is, because it may do more than its layers.
            stock = isinstance(model, keras.Sequential) or is_functional(model)
            (same_layers(model) if model.compiled and stock else model).save(beside)
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            raise ModelError(
                f"model {model.name!r} cannot be saved: {_reason(error)} A custom layer needs get_config."
            ) from error
        if entry is not None:
            with zipfile.ZipFile(beside, "a", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(_ENTRY, entry)


def load_model(
    path: str | os.PathLike[str], *, need_task: Task | None = None, compiled: bool = False
) -> tuple[keras.Model, TaskRecord | None]:
    """Opens a `.keras` file (or a legacy `.h5` file), of Keras 3 or 2, checking everything before trusting it.

    Code in a file is never run: a model with Lambda layers is refused. Checksums are compared, because Keras
    itself would silently load the weights of a damaged file.

    Args:
        path: The file.
        need_task: The task the model must be for; None accepts any file, even one without a record.
        compiled: Whether to compile the model as the file says, if it does and Keras 3 wrote it.

    Returns:
        The model, not compiled unless asked for, and its record, or None if Cellerate did not write the file.

    Raises:
        ModelError: The file is missing, damaged, unsafe, from a newer Cellerate, for another task, or refers
            to classes that are not registered.
    """
    keras2.refuse(path)
    source = Path(path)
    check_model_file(source)
    config: Any = None
    record = None
    if source.suffix == ".keras":
        config, record = _inspect(source)
    else:
        config = _inspect_hdf5(source)
    if need_task is not None:
        check_task(source, record, need_task)
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            # Keras's warnings here are about the training state.
            warnings.simplefilter("ignore")
            old = keras2_files.of_keras_2(source)
            readable, note = keras2_files.translated(source, Path(folder), old=old)
            # Keras 3 cannot read the optimizers of Keras 2.
            compiled = compiled and readable == source
            _check_described(source, readable)
            read = functools.partial(keras.saving.load_model, readable, compile=compiled, safe_mode=True)
            model = keras2_files.with_its_meaning(source, read) if old else read()
        if compiled:
            compile_as(model, model)
    except ModelError:
        raise
    except _FAILURES as error:
        raise _loading_failed(source, config, error) from error
    if note:
        warnings.warn(f"{source} {note}.", stacklevel=2)
    if record is not None:
        check_fits(source, model, record)
    return model, record


def _encode(record: TaskRecord) -> bytes:
    content = {
        "schema": _SCHEMA,
        "cellerate": cellerate.__version__,
        "task": record.task,
        "payload": record.payload,
    }
    try:
        text = json.dumps(content, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the payload of a record must be JSON values only: {error}.") from error
    entry = text.encode("utf-8", "surrogatepass")
    if len(entry) > _LARGEST_JSON:
        raise ConfigError(
            f"the record takes {len(entry):,} bytes, more than the {_LARGEST_JSON:,} a model file may carry; "
            "use a smaller tokenizer."
        )
    return entry


def _inspect(source: Path) -> tuple[Any, TaskRecord | None]:
    """The model's description and the record: everything that can be checked before Keras reads the file."""
    try:
        with zipfile.ZipFile(source) as archive:
            _check_sizes(source, archive)
            if (entry := archive.testzip()) is not None:
                raise damaged_model(source, f"the checksum of its entry {entry!r} is wrong")
            names = set(archive.namelist())
            if _CONFIG not in names:
                raise damaged_model(source, f"it has no entry {_CONFIG!r}")
            if not names.intersection(_WEIGHTS):
                raise damaged_model(source, "it has no weights")
            config = json.loads(archive.read(_CONFIG))
            text = archive.read(_ENTRY) if _ENTRY in names else None
        if any(node.get("class_name") in ("Lambda", "__lambda__") for node in _dictionaries(config)):
            raise _carries_code(source)
        return config, None if text is None else _decode(source, text)
    except ModelError:
        raise
    except PermissionError as error:
        raise ModelError(f"{source} cannot be read: permission denied.") from error
    except _FAILURES as error:
        raise damaged_model(source, _reason(error)) from error


def _inspect_hdf5(source: Path) -> Any:
    """The model's description in an HDF5 file, checked before Keras reads the file."""
    try:
        described, groups, _ = keras2_files.hdf5_contents(source)
        if described is None and groups:
            raise ModelError(
                f"{source} holds weights only, without the model that they belong to. Build the model as its author "
                f"did, call model.load_weights({source.name!r}), and save it whole: model.save('model.keras')."
            )
        return None if described is None else json.loads(described)
    except ModelError:
        raise
    except _FAILURES as error:
        raise damaged_model(source, _reason(error)) from error


def _check_described(source: Path, readable: Path) -> None:
    """Refuses a file that describes a model of far more weights than it holds.

    Building a model allocates its memory before any weight is read, and JAX ends the process when memory runs out.

    Args:
        source: The file, for messages.
        readable: The same in the words of this Keras.
    """
    hdf5 = readable.suffix != ".keras"
    if hdf5:
        described, _, stored = keras2_files.hdf5_contents(readable)
        config = json.loads(described or "null")
    else:
        with zipfile.ZipFile(readable) as archive:
            config = json.loads(archive.read(_CONFIG)) | {"compile_config": None}
            stored = sum(info.file_size for info in archive.infolist() if info.filename in _WEIGHTS)
    needed = described_weights(config, hdf5=hdf5)
    if needed > _WEIGHTS_PER_BYTE * stored:
        raise damaged_model(source, f"it describes {needed:,} weights and holds {stored:,} bytes of them")


def _check_sizes(source: Path, archive: zipfile.ZipFile) -> None:
    """Refuses an archive that would unpack to far more than its size, before unpacking anything."""
    unpacked = 0
    for info in archive.infolist():
        if info.filename.endswith(".json"):
            refused = info.file_size > _LARGEST_JSON
        else:
            unpacked += info.file_size
            refused = info.file_size > max(
                _RATIO_APPLIES_FROM, keras2_files.LARGEST_RATIO * info.compress_size
            )
        if refused:
            raise ModelError(
                f"{source} is refused: its entry {info.filename!r} would unpack from {info.compress_size:,} "
                f"to {info.file_size:,} bytes, as no genuine model does. Get it from a source you trust."
            )
    # Entries that overlap in the file each look harmless, so their sum is checked.
    if unpacked > max(_RATIO_APPLIES_FROM, keras2_files.LARGEST_RATIO * source.stat().st_size):
        raise ModelError(
            f"{source} is refused: its {source.stat().st_size:,} bytes would unpack to {unpacked:,}, as no "
            "genuine model does. Get it from a source you trust."
        )


def _decode(source: Path, text: bytes) -> TaskRecord:
    content = json.loads(text.decode("utf-8", "surrogatepass"))
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise damaged_model(source, f"its {_ENTRY!r} names no schema version")
    if schema > _SCHEMA:
        raise ModelError(
            f"{source} was written by a newer Cellerate ({content.get('cellerate')}, schema {schema}); this "
            f"is {cellerate.__version__}, which reads schema {_SCHEMA}. Run: pip install --upgrade cellerate"
        )
    task, payload = content.get("task"), content.get("payload")
    if task not in _TASKS or not isinstance(payload, dict):
        raise damaged_model(source, f"its {_ENTRY!r} names no known task or has no payload (task {task!r})")
    return TaskRecord(task, payload)


def check_task(source: str | Path, record: TaskRecord | None, need: Task) -> None:
    """Raises `ModelError` unless a model, which messages call `source`, has a record of a task."""
    if record is None:
        raise ModelError(
            f"{source} does not say what it was trained on (no Cellerate record), so it cannot be used "
            f"here as {_CALLED[need]}. Train one with `cellerate train {need}`."
        )
    if record.task != need:
        raise ModelError(
            f"{source} holds {_CALLED[record.task]}, but {_CALLED[need]} is needed here. Use it with "
            f"`cellerate {_VERBS[record.task]}`, or train another with `cellerate train {need}`."
        )


def check_fits(source: str | Path, model: keras.Model, record: TaskRecord) -> None:
    """Raises `ModelError` unless a model has the inputs and outputs of its record's task."""
    inputs = [len(tensor.shape) for tensor in model.inputs or ()]
    outputs = [len(tensor.shape) for tensor in model.outputs or ()]
    if record.task == "text":
        fits = inputs == [2] and outputs in ([2], [3])
    elif record.task == "series":
        # The rows; beside them what is known of the future, and the id of the series.
        fits = sorted(inputs) in ([3], [3, 3], [2, 3], [2, 3, 3]) and outputs in ([2], [3], [4])
    else:
        fits = {"encode", "decode"} <= {layer.name for layer in model.layers}
    if not fits:
        raise ModelError(
            f"{source} says it holds {_CALLED[record.task]}, but its inputs and outputs (of {inputs} and "
            f"{outputs} axes) are not those of one: the record belongs to another model. Save it again."
        )


def _loading_failed(source: Path, config: Any, error: BaseException) -> ModelError:
    if unknown := _unknown_classes(config):
        return _needs_classes(source, unknown)
    if (advice := keras2_files.advice(str(error))) is not None:
        return ModelError(
            f"{source} cannot be read by Keras {keras.__version__}: {advice}. Build the model again so."
        )
    if source.suffix != ".keras" and "lambda" in str(error).lower():
        return _carries_code(source)
    # HDF5 files name the class of a layer only.
    if (missing := re.match(r"Unknown [a-z ]+: '([^']+)'", str(error))) is not None:
        return _needs_classes(source, [missing[1]])
    if (writer := _newer_keras(source)) is not None:
        return ModelError(
            f"{source} was written by Keras {writer}, and this is Keras {keras.__version__}, which cannot rebuild "
            f"the model: {_reason(error)}. Run: pip install --upgrade keras"
        )
    if keras2_files.of_keras_2(source):
        return ModelError(
            f"{source} was written by Keras 2, and Keras {keras.__version__} cannot rebuild the model: "
            f"{_reason(error)}. Build it again with keras.layers and copy the weights with "
            "new.set_weights(old.get_weights()); if Keras 2 does not read the file either, copy or download it again."
        )
    return damaged_model(source, f"Keras {keras.__version__} cannot rebuild the model: {_reason(error)}")


def _needs_classes(source: Path, names: list[str]) -> ModelError:
    return ModelError(
        f"{source} needs classes that are not known here: {', '.join(names)}. First import the module "
        "that defines them and registers them with @keras.saving.register_keras_serializable."
    )


def _newer_keras(source: Path) -> str | None:
    """The version of Keras that wrote a file; None if it is not newer than this one, or not known."""
    try:
        version = keras2_files.writer_of(source)
        return version if _release(version) > _release(keras.__version__) else None
    except _FAILURES:
        return None


def _release(version: str) -> list[int]:
    """The major and minor number of a version of Keras; patches do not change files."""
    return [int(number) for number in version.split(".")[:2]]


def _unknown_classes(config: Any) -> list[str]:
    found = set()
    for node in _dictionaries(config):
        name, module = node.get("registered_name"), node.get("module")
        own = isinstance(module, str) and module.split(".")[0] in ("keras", "tf_keras", "builtins")
        if isinstance(name, str) and not own and keras.saving.get_registered_object(name) is None:
            found.add(name)
    return sorted(found)


def _dictionaries(tree: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary in a JSON value, at any depth, found without recursion."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _carries_code(source: Path) -> ModelError:
    return ModelError(
        f"{source} contains Python code (a Lambda layer or function), and Cellerate does not run code from a "
        "file. Rebuild the model with Keras layers or keras.ops in place of Lambda, and save it again."
    )


def _reason(error: BaseException) -> str:
    """The cause that an exception names, in one line that is short enough to show."""
    # Keras puts the cause behind a general text and the whole configuration of the model.
    text = str(error).rpartition("Exception encountered: ")[2]
    text = text.partition("Example error message for object ")[2].replace(":\n\n", ": ", 1) or text
    text = text.strip().split("\n", 1)[0].rstrip(".")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
