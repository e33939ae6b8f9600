"""Opens tokenizers by an option of the command line or by the record of a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.data.tokenizers.tokenizer import CODE_POINTS, ByteTokenizer, CharacterTokenizer, Tokenizer
from cellerate.errors import DataError, ModelError

_FILE_LIMIT_BYTES = 128 << 20  # the largest published tokenizer files have about 40 MB


def open_tokenizer(spec: str) -> Tokenizer | None:
    """Opens the tokenizer that an option names.

    Args:
        spec: "characters", "bytes", or the path of a `tokenizer.json`.

    Returns:
        The tokenizer; None for "characters", because that vocabulary comes from the text.

    Raises:
        DataError: The file is missing or is not a tokenizer file.
        BackendError: The package `tokenizers` is needed and not installed.
    """
    if spec == "characters":
        return None
    if spec == "bytes":
        return ByteTokenizer()
    path = Path(spec)
    if not path.is_file():
        raise DataError(
            f"tokenizer {spec!r} not found: expected 'characters', 'bytes' or the path of a tokenizer.json."
        )
    try:
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            raise DataError(f"a tokenizer file should have at most {_FILE_LIMIT_BYTES >> 20} MiB.")
        return FileTokenizer(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the tokenizer file {spec}: {error}") from error
    except DataError as error:
        raise DataError(f"{spec}: {error}") from error


def tokenizer_from_config(config: Mapping[str, Any]) -> Tokenizer:
    """Makes the tokenizer that `Tokenizer.to_config` described.

    Args:
        config: What `to_config` returned, perhaps from a file that somebody else wrote.

    Raises:
        ModelError: The configuration does not describe a tokenizer.
        BackendError: It holds a tokenizer file and the package `tokenizers` is not installed.
    """
    kind = config.get("kind") if isinstance(config, Mapping) else None
    if kind == "bytes":
        return ByteTokenizer()
    try:
        if kind == "characters":
            characters = _config_text(config, "characters", CODE_POINTS)
            return CharacterTokenizer(characters, in_order=True)
        if kind == "file":
            return FileTokenizer(_config_text(config, "json", _FILE_LIMIT_BYTES))
    except DataError as error:
        raise ModelError(f"the model's tokenizer cannot be used: {error}") from error
    raise ModelError(
        "the model's tokenizer cannot be used: expected a mapping whose 'kind' is 'characters', 'bytes' or "
        f"'file', got {str(kind if isinstance(config, Mapping) else config)[:80]!r}."
    )


def _config_text(config: Mapping[str, Any], name: str, limit: int) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        came = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise DataError(f"{name!r} must be a string of 1 to {limit} characters, not {came}.")
    return value
