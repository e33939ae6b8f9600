"""The CUDA C++ of the kernels, as one text with its includes put in, so that compiling needs no include folder.

The text is also the key of a compiled kernel on disk.
"""

import functools
import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable

from cellerate.activations import parameter_bits

TYPES = {"bfloat16": "Bfloat16", "float16": "Float16", "float32": "float", "tf32": "Tf32"}
"""The C++ type of each precision in which the kernels compute.

A precision is the name of a dtype, that of weights, inputs, outputs and h, or "tf32": float32 of which products take
the first 19 bits. Generation has no "tf32".
"""

_PACKAGES = ("cellerate.kernels.cuda", "cellerate.kernels.lstm.cuda", "cellerate.kernels.decoder.cuda")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def activation(name: str) -> str:
    """The C++ expression for an activation with its parameters."""
    kind, parameters = parameter_bits(name)
    enumerator = "Activation::k" + "".join(part.capitalize() for part in kind.split("_"))
    return f"activation_of({', '.join([enumerator, *[f'{bits & 0xFFFFFFFF}u' for bits in parameters]])})"


@functools.cache
def digest() -> str:
    """A digest of all sources: it changes when a kernel does."""
    found = hashlib.sha256()
    for _, file in sorted(_files().items()):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


@functools.cache
def whole(name: str) -> str:
    """A source file with each `#include` replaced by the included file, or by nothing if that came before."""
    seen: set[str] = set()

    def text(name: str) -> str:
        seen.add(name)
        found = _files()[name].read_text(encoding="utf-8")
        return _INCLUDE.sub(included, found.replace("#pragma once\n", ""))

    def included(found: re.Match[str]) -> str:
        return "" if found[1] in seen else text(found[1])

    return text(name)


@functools.cache
def _files() -> dict[str, Traversable]:
    """The files by name; a name occurs in only one of the folders."""
    folders = (resources.files(package) for package in _PACKAGES)
    return {file.name: file for folder in folders for file in folder.iterdir() if file.name.endswith(".cuh")}
