"""Signatures of `.cell` files: Ed25519, in a file beside the model, `book.cell.sig`.

The signature covers the digest in the file. A reader checks the digest against every byte of the buffer that it then
uses, so nothing can change between the check and the use.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cellerate.errors import ConfigError, DataError
from cellerate.files import atomic_write, read_regular
from cellerate.machine.environment import require
from cellerate.messages import argument

_PURPOSE = b"cellerate.cell 1 "
_LARGEST_KEY, _LARGEST_SIGNATURE = 1 << 14, 1 << 8
_GIVE = "give one in PEM, such as `openssl genpkey -algorithm ed25519` makes"


def signature_of(path: Path) -> Path:
    """The file of a model's signature."""
    return path.with_name(f"{path.name}.sig")


def sign(path: Path, digest: str, key: str | os.PathLike[str]) -> None:
    """Write the signature of a model.

    Args:
        path: The `.cell` file.
        digest: The digest that it holds.
        key: A file with a private key, PEM without a password.

    Raises:
        BackendError: The package `cryptography` is not installed.
        ConfigError: The file does not hold such a key.
        DataError: The file cannot be read.
        OutputError: The signature could not be written.
    """
    signature = private_key(key).sign(_PURPOSE + digest.encode())
    with atomic_write(signature_of(path)) as beside:
        beside.write_bytes(base64.b64encode(signature) + b"\n")


def private_key(key: str | os.PathLike[str]) -> Any:
    """The private key in a file. Raises as `sign` does."""
    ed25519, serialization = _cryptography()
    read = functools.partial(serialization.load_pem_private_key, password=None)
    return _read_key(key, read, ed25519.Ed25519PrivateKey, "a private key without a password", _GIVE)


def check_signature(path: Path, key: str | os.PathLike[str], digest: str) -> None:
    """Refuse a model without the signature of a key.

    Args:
        path: The `.cell` file.
        key: A file with the public key, PEM.
        digest: The digest that the model holds, known to be right.

    Raises:
        BackendError: The package `cryptography` is not installed.
        ConfigError: The file does not hold such a key.
        DataError: The key cannot be read, or the signature is missing, or belongs to another key or model.
    """
    ed25519, serialization = _cryptography()
    from cryptography.exceptions import InvalidSignature

    read, kind = serialization.load_pem_public_key, ed25519.Ed25519PublicKey
    public = _read_key(key, read, kind, "a public key", f"{_GIVE}, with -pubout")
    beside = signature_of(path)
    if not beside.exists():
        raise DataError(
            f"{path} is not signed: there is no {beside}. Copy it as well, or pack the model "
            f"with {argument('sign_key')}."
        )
    try:
        written = read_regular(beside, _LARGEST_SIGNATURE, "copy it again, or sign the model again")
        public.verify(base64.b64decode(written.strip(), validate=True), _PURPOSE + digest.encode())
    except (InvalidSignature, binascii.Error) as error:
        raise DataError(
            f"the signature of {path} was not made with the key {key}: the model changed, or another key signed it. "
            "Take the model and its signature from the same place again."
        ) from error


def _read_key(
    key: str | os.PathLike[str], read: Callable[[bytes], Any], kind: type, what: str, give: str
) -> Any:
    """The key in a file, which must be of a kind."""
    content = read_regular(key, _LARGEST_KEY, give, "the key")
    try:
        found = read(content)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key} does not hold {what}: {error}; {give}.") from error
    if not isinstance(found, kind):
        raise ConfigError(f"{key} holds a key of another kind than Ed25519; {give}.")
    return found


def _cryptography() -> tuple[Any, Any]:
    require("cryptography", "sign", "a signature")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519, serialization
