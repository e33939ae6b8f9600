"""Take the bytes of `.cell` files apart, change and seal them again, and read the message of a refusal."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.program import Node, Program
from cellerate.runtime.cell import read_cell

START = b'{"__metadata__":{"format":"cellerate.cell","version":"1","sha256":"'
DIGEST = slice(8 + len(START), 8 + len(START) + 64)


def small_program() -> Program:
    """A program of few bytes with many kinds of fields."""
    rng = np.random.default_rng(3)
    table, kernel, recurrent, head = (
        rng.normal(size=shape).astype(np.float32) for shape in ((5, 2), (2, 8), (2, 8), (2, 3))
    )
    options: dict[str, Any] = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "zero",
        "go_backwards": False,
        "return_sequences": True,
    }
    nodes = (
        Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("embedding", "e", {"ids": 0}, {"embeddings": table}),
        Node(
            "lstm",
            "l",
            {"x": 1},
            {"kernel": kernel, "recurrent_kernel": recurrent, "bias": kernel[0]},
            options,
        ),
        Node("layer_norm", "n", {"x": 2}, {}, {"epsilon": 1e-3}),
        Node("dense", "d", {"x": 3}, {"kernel": head}, {"activation": "linear"}),
        Node("unembedding", "u", {"x": 3}, {"embeddings": table}, {"soft_cap": None}),
        Node("reshape", "r", {"x": 4}, {}, {"shape": (3, -1)}),
        Node("repeat_vector", "v", {"x": 4}, {}, {"n": 2}),
        Node("add", "a", {"0": 4, "1": 4}),
    )
    return Program(nodes, {"logits": 5, "sum": 8})


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sealed(content: bytes) -> bytes:
    """The content with a correct digest, if there is room for one."""
    if len(content) < DIGEST.stop:
        return content
    zeros = content[: DIGEST.start] + b"0" * 64 + content[DIGEST.stop :]
    return zeros.replace(b"0" * 64, hashlib.sha256(zeros).hexdigest().encode(), 1)


def forged(header: str | bytes, data: bytes) -> bytes:
    """A file with any header, and a correct length and digest."""
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    text = text.ljust(-(-(8 + len(text)) // 64) * 64 - 8)
    return sealed(struct.pack("<Q", len(text)) + text + data)


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file, with the program and the inner header parsed, and its data."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name in ("program", "header"):
        header["__metadata__"][name] = json.loads(header["__metadata__"][name])
    return header, content[8 + length :]


def joined(header: dict[str, Any]) -> str:
    """The text of a header that `split` has parsed."""
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict):
        texts = {name: compact(metadata[name]) for name in ("program", "header") if name in metadata}
        header = header | {"__metadata__": metadata | texts}
    return compact(header)


def refusal(path: Path, content: bytes) -> str:
    """The message that refuses a content, which must be one sentence that names the file."""
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_cell(path)
    return checked_message(path, caught.value)


def checked_message(path: Path, error: DataError) -> str:
    message = str(error)
    assert message.startswith(str(path)), message
    assert message.endswith(".")
    assert message.isprintable(), message
    assert len(message) < len(str(path)) + 500
    return message.removeprefix(str(path))


def edited(change: Callable[[dict[str, Any], bytearray], Any], content: bytes) -> bytes:
    header, data = split(content)
    blob = bytearray(data)
    change(header, blob)
    return forged(joined(header), bytes(blob))


def node_of(header: dict[str, Any], number: int) -> dict[str, Any]:
    return header["__metadata__"]["program"]["nodes"][number]


def put(tensor: str, **fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    """A change of a tensor's fields in the header."""
    return lambda header, data: header[tensor].update(fields)


def option(number: int, **options: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: node_of(header, number)["options"].update(options)


def field(number: int, **fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: node_of(header, number).update(fields)


def metadata(**fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: header["__metadata__"].update(fields)
