"""The CUDA C++ of the kernels, as one text with its includes put in, so that compiling needs no include folder.

The text is also the key of a compiled kernel on disk.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from cellerate.activations import parameter_bits

TYPES = {"bfloat16": "Bfloat16", "float16": "Float16", "float32": "float", "tf32": "Tf32"}
"""The C++ type of each precision in which the kernels compute.

A precision is the name of a dtype, that of weights, inputs, outputs and h, or "tf32": float32 of which products take
the first 19 bits. Generation has no "tf32".
"""

_PACKAGES = ("cellerate.kernels.cuda", "cellerate.kernels.lstm.cuda", "cellerate.kernels.decoder.cuda")
# A line of a structure: its type, with * for an address, and its names.
_FIELD = re.compile(r"^ *(?:const |unsigned )*\w+(\*?) (\w+(?:, \w+)*);", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def activation(name: str) -> str:
    """The C++ expression for an activation with its parameters."""
    kind, parameters = parameter_bits(name)
    bits = [f"{each & 0xFFFFFFFF}u" for each in parameters]
    return f"activation_of({', '.join([f'Activation::{_enumerator(kind)}', *bits])})"


@functools.cache
def code(file: str, enumeration: str, name: str) -> int:
    """The number of a name in an enumeration of a source file."""
    return re.findall(r"\bk\w+", _body(file, f"enum class {enumeration}")).index(_enumerator(name))


def fields(file: str, structure: str) -> list[tuple[str, Any]]:
    """The fields of a structure in a source file, for `ctypes`: addresses, and what is as wide as an int."""
    return [
        (name, ctypes.c_void_p if pointer else ctypes.c_int)
        for pointer, names in _FIELD.findall(_body(file, f"struct {structure}"))
        for name in names.split(", ")
    ]


def _body(file: str, what: str) -> str:
    """The text between the braces of a definition."""
    found = re.search(rf"\b{what}\b[^{{;]*{{(.*?)}};", _files()[file].read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, (file, what)  # noqa: S101 (the callers name what is there)
    return found[1]


def _enumerator(name: str) -> str:
    """A name as the sources write it: leaky_relu is kLeakyRelu."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


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
