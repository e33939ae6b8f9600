"""A reader of `.cell` files that follows the documentation and uses no code of Cellerate."""

import json
from pathlib import Path

import numpy as np


def plain_read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The metadata and tensors of a file in the safetensors format, as its page describes it."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    metadata = entries.pop("__metadata__", {})
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        raw = content[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":
            wide = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
            values = np.frombuffer(wide, "<f4")
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "I8": "i1", "U8": "u1"}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return metadata, tensors


def times_scale(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The weights of a tensor, in plain NumPy: values times scale, int4 unpacked first."""
    if values.dtype != np.uint8:
        return values * scale
    halves = np.stack([values & 15, values >> 4], axis=2).reshape(len(values), -1)[:, : scale.shape[1]]
    return np.where(halves > 7, halves - 16.0, halves) * np.repeat(scale, 32, axis=0)[: len(values)]
