"""Files that are damaged, foreign or made to do harm: each ends in one `DataError`, or in a valid program."""

import contextlib
import copy
import hashlib
import json
import os
import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.program import OPERATIONS, PRECISIONS, Node, Program
from cellerate.runtime.cell import Cell, read_cell, write_cell
from cellerate.runtime.cell_format import LARGEST_HEADER

START = b'{"__metadata__":{"format":"cellerate.cell","version":"1","sha256":"'
DIGEST = slice(8 + len(START), 8 + len(START) + 64)


def small_program() -> Program:
    """Few bytes, many kinds of fields."""
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


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a valid file of each precision."""
    path = tmp_path_factory.mktemp("valid") / "a.cell"
    found = {}
    for precision in PRECISIONS:
        write_cell(path, small_program(), precision=precision, header={"task": "text", "n": [1, 2.5, None]})
        found[precision] = path.read_bytes()
    return found


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sealed(content: bytes) -> bytes:
    """The content with the digest it should have, if there is room for one."""
    if len(content) < DIGEST.stop:
        return content
    zeros = content[: DIGEST.start] + b"0" * 64 + content[DIGEST.stop :]
    return zeros.replace(b"0" * 64, hashlib.sha256(zeros).hexdigest().encode(), 1)


def forged(header: str | bytes, data: bytes) -> bytes:
    """A file of any header, its length and its digest right."""
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    text = text.ljust(-(-(8 + len(text)) // 64) * 64 - 8)
    return sealed(struct.pack("<Q", len(text)) + text + data)


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a file, its program and its own header parsed too, and its data."""
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
    """The message with which a content is refused, one sentence that names the file."""
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


def assert_same(a: Cell, b: Cell) -> None:
    assert (a.precision, a.header, a.program.outputs) == (b.precision, b.header, b.program.outputs)
    for one, other in zip(a.program.nodes, b.program.nodes, strict=True):
        assert (one.op, one.name, one.inputs, one.options) == (
            other.op,
            other.name,
            other.inputs,
            other.options,
        )
        assert one.arrays.keys() == other.arrays.keys()
        for name, array in one.arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name])


# What is no .cell file.


def test_path_without_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*absent\.cell; check the path"):
        read_cell(tmp_path / "absent.cell")
    with pytest.raises(DataError, match="is a folder"):
        read_cell(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        (tmp_path / "file").touch()
        read_cell(tmp_path / "file" / "a.cell")
    with pytest.raises(DataError, match="cannot be read"):
        read_cell(tmp_path / ("x" * 5000))
    with pytest.raises(DataError, match="is not the path of a file"):
        read_cell("a\0b.cell")


def test_file_that_nobody_may_read_is_refused(tmp_path, contents, monkeypatch):
    path = tmp_path / "a.cell"
    path.write_bytes(contents["float32"])

    def denied(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"a\.cell cannot be read: Permission denied"):
        read_cell(path)


def test_pipe_and_device_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.cell")
    for path in (tmp_path / "pipe.cell", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(DataError, match="is not a regular file"):
            read_cell(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + b"\0" * 100, "is a zip archive"),
        (b"PK\x03\x04", "is a zip archive"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "is not a .cell file"),
        (b"To be, or not to be, that is the question:\n" * 9, "is not a .cell file"),
        (b"\0", "is not a .cell file"),
        (b"\0" * 4096, "is not a .cell file"),
        (b"\xff" * 4096, "is not a .cell file"),
        (struct.pack("<Q", 2) + b"{}", "is not a .cell file"),
        (
            struct.pack("<Q", 8) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\0\0\0\0',
            "is not a",
        ),
        (struct.pack("<Q", 64) + START[:-20], "is not a .cell file, or its beginning is damaged"),
        (struct.pack("<Q", 64) + START, "its checksum is not where"),
    ],
)
def test_foreign_file_is_refused_by_what_it_is(content, message, tmp_path):
    assert message in refusal(tmp_path / "a.cell", content)


@pytest.mark.parametrize("version", ["2", "0", "10", "999999999"])
def test_file_of_another_version_is_refused_with_the_version_known(version, tmp_path, contents):
    content = contents["int8"].replace(b'"version":"1"', f'"version":"{version}"'.encode())
    message = refusal(tmp_path / "a.cell", content)
    assert f"is a .cell file of version {version}, and this Cellerate knows version 1" in message


# Damage: the digest notices it whatever it is.


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_flipped_bit_is_noticed(precision, tmp_path, contents):
    content = bytearray(contents[precision])
    path = tmp_path / "a.cell"
    path.write_bytes(content)
    read_cell(path)
    with path.open("r+b", buffering=0) as file:
        for place in range(len(content)):
            for bit in range(8):
                file.seek(place)
                file.write(bytes([content[place] ^ 1 << bit]))
                with pytest.raises(DataError):
                    read_cell(path)
            file.seek(place)
            file.write(content[place : place + 1])
    read_cell(path)


def test_every_shortened_and_lengthened_file_is_noticed(tmp_path, contents):
    content, path = contents["bfloat16"], tmp_path / "a.cell"
    path.write_bytes(content)
    for length in reversed(range(len(content))):
        os.truncate(path, length)
        with pytest.raises(DataError):
            read_cell(path)
    for more in (b"\0", b" ", content[-1:], content):
        assert "checksum is wrong" in refusal(path, content + more)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 24 * 2**20 + 8, 5_000_000])
def test_file_that_claims_a_long_header_is_refused_without_memory_for_it(length, tmp_path, contents):
    content = sealed(struct.pack("<Q", length) + contents["float32"][8:])
    (tmp_path / "a.cell").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"claims a header of [\d,]+ bytes"):
        read_cell(tmp_path / "a.cell")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def test_header_above_24_mib_is_refused_though_the_file_is_as_long(tmp_path, contents):
    path = tmp_path / "a.cell"
    path.write_bytes(struct.pack("<Q", 24 * 2**20 + 8) + contents["float32"][8:])
    with path.open("r+b") as file:
        file.truncate(30 * 2**20)
    tracemalloc.start()
    with pytest.raises(DataError, match="claims a header"):
        read_cell(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def test_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.cell"
    write_cell(path, small_program(), header={"longer than": "what is read ahead" * 100_000})
    empty = np.empty

    def cutting(*args: Any, **kwargs: Any) -> np.ndarray:
        os.truncate(path, 1_000_000)
        return empty(*args, **kwargs)

    monkeypatch.setattr(np, "empty", cutting)
    with pytest.raises(DataError, match="it became shorter while it was read"):
        read_cell(path)


def test_file_that_does_not_fit_into_memory_is_refused(tmp_path, contents, monkeypatch):
    def none_left(*args: Any, **kwargs: Any) -> np.ndarray:
        raise MemoryError

    path = tmp_path / "a.cell"
    path.write_bytes(contents["float32"])
    monkeypatch.setattr(np, "empty", none_left)
    with pytest.raises(DataError, match="does not fit into memory"):
        read_cell(path)


# Malice: the digest is right.


def edited(change: Callable[[dict[str, Any], bytearray], Any], content: bytes) -> bytes:
    header, data = split(content)
    blob = bytearray(data)
    change(header, blob)
    return forged(joined(header), bytes(blob))


def node_of(header: dict[str, Any], number: int) -> dict[str, Any]:
    return header["__metadata__"]["program"]["nodes"][number]


def put(tensor: str, **fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    """Changes what the header says of a tensor."""
    return lambda header, data: header[tensor].update(fields)


def option(number: int, **options: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: node_of(header, number)["options"].update(options)


def field(number: int, **fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: node_of(header, number).update(fields)


def metadata(**fields: Any) -> Callable[[dict[str, Any], bytearray], Any]:
    return lambda header, data: header["__metadata__"].update(fields)


def poke(tensor: str, values: bytes) -> Callable[[dict[str, Any], bytearray], Any]:
    """Changes the first bytes of a tensor."""

    def change(header: dict[str, Any], data: bytearray) -> None:
        begin = header[tensor]["data_offsets"][0]
        data[begin : begin + len(values)] = values

    return change


def shifted(header: dict[str, Any], data: bytearray) -> None:
    """A gap of 4 bytes before the second tensor."""
    second = list(header)[2]
    for name in list(header)[2:]:
        header[name]["data_offsets"] = [offset + 4 for offset in header[name]["data_offsets"]]
    place = header[second]["data_offsets"][0] - 4
    data[place:place] = bytes(4)


def overlapping(header: dict[str, Any], data: bytearray) -> None:
    header["2.recurrent_kernel"]["data_offsets"] = header["2.kernel"]["data_offsets"]


def scale_renamed(header: dict[str, Any], data: bytearray) -> None:
    entries = [(name.replace("4.kernel.scale", "4.kernel.size"), entry) for name, entry in header.items()]
    header.clear()
    header.update(entries)


MALICE: dict[str, tuple[str, Callable[[dict[str, Any], bytearray], Any], str]] = {
    "product-overflows": ("float32", put("4.kernel", shape=[2**32, 2**32]), "the tensor '4.kernel' must be"),
    "product-wraps-to-fit": ("float32", put("4.kernel", shape=[2**62 + 6, 4]), "'4.kernel' must be"),
    "size-of-400-digits": ("float32", put("4.kernel", shape=[10**399, 1]), "'4.kernel' must be"),
    "size-of-401-digits": ("float32", put("4.kernel", shape=[10**400, 1]), "has more than 400 digits"),
    "negative-sizes": ("float32", put("4.kernel", shape=[-2, -3]), "'4.kernel' must be"),
    "size-0": ("float32", put("4.kernel", shape=[0, 3]), "'4.kernel' must be"),
    "size-true": ("float32", put("4.kernel", shape=[True, 6]), "'4.kernel' must be"),
    "size-float": ("float32", put("4.kernel", shape=[2.0, 3]), "'4.kernel' must be"),
    "no-axis": ("float32", put("4.kernel", shape=[]), "'4.kernel' must be"),
    "many-axes": ("float32", put("4.kernel", shape=[1] * 100_000), "'4.kernel' must be"),
    "shape-disagrees": ("float32", put("4.kernel", shape=[2, 4]), "'4.kernel' must be"),
    "dtype-unknown": ("float32", put("4.kernel", dtype="F64"), "'4.kernel' must be"),
    "dtype-list": ("float32", put("4.kernel", dtype=["F32"]), "'4.kernel' must be"),
    "dtype-of-other-size": ("float32", put("4.kernel", dtype="I8"), "'4.kernel' must be"),
    "offsets-swapped": (
        "float32",
        lambda h, d: h["4.kernel"]["data_offsets"].reverse(),
        "'4.kernel' must be",
    ),
    "offsets-negative": ("float32", put("4.kernel", data_offsets=[-24, 0]), "'4.kernel' must be"),
    "offsets-text": ("float32", put("4.kernel", data_offsets="01"), "'4.kernel' must be"),
    "offsets-enormous": ("float32", put("4.kernel", data_offsets=[2**70, 2**71]), "'4.kernel' must be"),
    "entry-with-more": ("float32", put("4.kernel", more=1), "'4.kernel' must be"),
    "entry-a-number": ("float32", lambda h, d: h.update({"4.kernel": 1}), "'4.kernel' must be"),
    "gap": ("float32", shifted, "must be"),
    "overlap": ("float32", overlapping, "'2.recurrent_kernel' must be"),
    "bytes-left": ("float32", lambda h, d: d.extend(b"\0\0\0\0"), "its tensors take"),
    "bytes-missing": ("float32", lambda h, d: d.pop(), "must be"),
    "tensor-unused": (
        "float32",
        field(4, arrays={"kernel": "2.kernel"}),
        "no node uses the tensor '4.kernel'",
    ),
    "tensor-absent": ("float32", field(4, arrays={"kernel": "5.kernel"}), "it has no tensor '5.kernel'"),
    "tensor-a-list": ("float32", field(4, arrays={"kernel": ["4.kernel"]}), "it has no tensor"),
    "tensor-the-metadata": ("float32", field(4, arrays={"kernel": "__metadata__"}), "it has no tensor"),
    "kernel-is-the-scale": ("int8", field(4, arrays={"kernel": "4.kernel.scale"}), "with 2 axes"),
    "nan": ("float32", poke("4.kernel", struct.pack("<f", float("nan"))), "holds a NaN"),
    "infinity": ("float32", poke("2.bias", struct.pack("<f", float("-inf"))), "holds a NaN or an infinity"),
    "signalling-nan": ("float32", poke("4.kernel", b"\x01\x00\x80\x7f"), "holds a NaN"),
    "nan-bfloat16": ("bfloat16", poke("4.kernel", b"\xc0\x7f"), "holds a NaN"),
    "scale-nan": ("int8", poke("4.kernel.scale", struct.pack("<f", float("nan"))), "scale of a column"),
    "scale-infinite": ("int8", poke("4.kernel.scale", struct.pack("<f", float("inf"))), "scale of a column"),
    "scale-0": ("int8", poke("4.kernel.scale", bytes(4)), "scale of a column"),
    "scale-negative": ("int8", poke("4.kernel.scale", struct.pack("<f", -1)), "scale of a column"),
    "scale-overflows": ("int8", poke("4.kernel.scale", struct.pack("<3f", *[3e38] * 3)), "or an infinity"),
    "int8-of-128": ("int8", poke("4.kernel", b"\x80"), "holds -128"),
    "scale-absent": ("int8", scale_renamed, "has no float32 scale for each of its columns"),
    "scale-of-another": ("int8", put("4.kernel", shape=[3, 2]), "has no float32 scale for each"),
    "precision-unknown": ("int8", metadata(precision="int4"), "its precision must be one of"),
    "precision-other": ("float32", metadata(precision="int8"), "is not kept as int8 files keep it"),
    "precision-wider": ("int8", metadata(precision="bfloat16"), "is not kept as bfloat16 files keep it"),
    "precision-a-number": ("int8", metadata(precision=8), "its metadata are not all texts"),
    "metadata-more": ("int8", metadata(more="x"), "its metadata must be"),
    "metadata-less": ("int8", lambda h, d: h["__metadata__"].pop("precision"), "its metadata must be"),
    "header-a-list": ("int8", metadata(header=[]), "its header is not a dictionary"),
    "program-a-list": ("int8", metadata(program=[]), "its program must have nodes and outputs"),
    "program-null": ("int8", metadata(program=None), "its program must have nodes and outputs"),
    "nodes-a-number": ("int8", metadata(program={"nodes": 1, "outputs": {}}), "a list of nodes"),
    "outputs-a-list": ("int8", metadata(program={"nodes": [], "outputs": []}), "its outputs by name"),
    "outputs-none": ("int8", metadata(program={"nodes": [], "outputs": {}}), "at least one output"),
    "output-absent": (
        "int8",
        lambda h, d: h["__metadata__"]["program"].update(outputs={"o": 9}),
        "output 'o'",
    ),
    "output-a-list": (
        "int8",
        lambda h, d: h["__metadata__"]["program"].update(outputs={"o": []}),
        "output 'o'",
    ),
    "node-a-text": ("int8", lambda h, d: h["__metadata__"]["program"]["nodes"].append("x"), "node 9 of its"),
    "node-with-more": ("int8", field(0, code="import os"), "node 0 of its program must have op"),
    "operation-unknown": ("int8", field(0, op="eval"), "there is no operation 'eval'"),
    "operation-a-list": ("int8", field(0, op=["input"]), "the op of node 0 of its program must be str"),
    "name-a-number": ("int8", field(0, name=1), "the name of node 0"),
    "inputs-a-list": ("int8", field(1, inputs=[0]), "the inputs of node 1"),
    "input-itself": ("int8", field(1, inputs={"ids": 1}), "must be an earlier node"),
    "input-later": ("int8", field(1, inputs={"ids": 5}), "must be an earlier node"),
    "input-a-list": ("int8", field(1, inputs={"ids": [0]}), "must be an earlier node"),
    "input-a-float": ("int8", field(1, inputs={"ids": 0.0}), "must be an earlier node"),
    "reshape-enormous": ("int8", option(6, shape=[2**62, -1]), "shape must be at most"),
    "reshape-of-400-digits": ("int8", option(6, shape=[10**399]), "shape must be at most"),
    "reshape-two-free": ("int8", option(6, shape=[-1, -1]), "reshape cannot have the shape"),
    "reshape-nested": ("int8", option(6, shape=[[1]]), "shape must be whole numbers"),
    "reshape-nested-more-deeply": ("int8", option(6, shape=json.loads("[" * 99 + "]" * 99)), "64 levels"),
    "reshape-nested-deeply": ("int8", option(6, shape=json.loads("[" * 50 + "]" * 50)), "whole numbers"),
    "repeat-enormous": ("int8", option(7, n=2**31 - 1), "n must be from 1 to"),
    "option-a-dictionary": ("int8", option(7, n={"a": 1}), "option 'n' cannot be"),
    "option-a-long-text": ("int8", option(7, n="x" * 1_000_000), "option 'n' cannot be"),
    "name-with-escapes": ("int8", field(7, name="\x1b[2J\n\u202e", op="x"), "there is no operation"),
    "name-enormous": ("int8", field(7, name="a" * 1_000_000, op="x"), "aaa"),
    "name-of-1025": ("int8", field(7, name="a" * 1025), "at most 1,024 characters"),
    "name-that-moves-the-cursor": ("int8", field(7, name="a\x1b[2J"), "no control characters"),
    "name-with-a-c1-control": ("int8", field(0, name="a\x9b2J"), "no control characters"),
    "output-that-moves-the-cursor": (
        "int8",
        lambda h, d: h["__metadata__"]["program"].update(outputs={"\x1b[2J": 4}),
        "no control characters",
    ),
    "outputs-without-end": (
        "int8",
        lambda h, d: h["__metadata__"]["program"].update(outputs={str(n): 4 for n in range(1025)}),
        "1,024 outputs",
    ),
    "nodes-without-end": (
        "int8",
        lambda h, d: h["__metadata__"]["program"]["nodes"].extend([node_of(h, 0)] * 2**14),
        "16,384 nodes",
    ),
}


@pytest.mark.parametrize("case", MALICE)
def test_file_made_to_do_harm_is_refused(case, tmp_path, contents):
    precision, change, message = MALICE[case]
    found = refusal(tmp_path / "a.cell", edited(change, contents[precision]))
    assert message in found
    assert "checksum" not in found


def test_tensors_in_an_order_that_leaves_numbers_unaligned_are_refused(tmp_path, contents):
    header, data = split(contents["int8"])
    entries = {name: header.pop(name) for name in list(header) if name != "__metadata__"}
    blob = bytearray()
    for name, entry in reversed(entries.items()):
        begin, end = entry["data_offsets"]
        header[name] = entry | {"data_offsets": [len(blob), len(blob) + end - begin]}
        blob += data[begin:end]
    assert any(e["dtype"] == "F32" and e["data_offsets"][0] % 4 for n, e in header.items() if n in entries)
    assert "must be F32, BF16, I8" in refusal(tmp_path / "a.cell", forged(joined(header), bytes(blob)))


@pytest.mark.parametrize("where", ["outer", "program", "header"])
@pytest.mark.parametrize(
    "literal",
    [
        *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0", "1E2", "1.0e2", "01", "9" * 5000, "0x1"),
        *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0041"', '"\\ud83d\\ude00"', "'x'", "True", "1,", "", "/**/1"),
        *('{"a":1,"a":1}', '{"a":1,"a":2}', "[ ]", "[1, 2]", "[1,]", "[" * 100_000, "[" * 5000 + "]" * 5000),
        *('{"a":' * 5000 + "1" + "}" * 5000, '"\x00"', '"\x01"', "\x00", "\ufeff1", '"\n"', "1 1"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_literal_that_is_not_written_in_the_one_form_is_refused(where, literal, tmp_path, contents):
    header, data = split(contents["float32"])
    if where == "outer":
        header["x"] = "@"
        text = joined(header).replace('"@"', literal)
    else:
        place = (
            header["__metadata__"]["program"]["nodes"][0]["options"]
            if where == "program"
            else header["__metadata__"]["header"]
        )
        place["x"] = "@"
        text = joined(header).replace('\\"@\\"', json.dumps(literal, ensure_ascii=False)[1:-1])
    expected = {
        "outer": "its header cannot be read",
        "program": "its program cannot",
        "header": "its header cannot",
    }
    assert expected[where] in refusal(tmp_path / "a.cell", forged(text, data))


def test_header_that_is_not_utf8_is_refused(tmp_path, contents):
    header, data = split(contents["float32"])
    text = joined(header).encode()
    for wrong in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"):
        content = forged(text.replace(b'"text', b'"text' + wrong), data)
        assert "its header cannot be read" in refusal(tmp_path / "a.cell", content)


def test_header_with_other_blanks_or_a_second_value_is_refused(tmp_path, contents):
    header, data = split(contents["float32"])
    text = joined(header)
    for wrong in (text + "\n", text + "\0", text + "{}", text + "\t ", text[:-1], text[:-1] + " }"):
        assert "its header cannot be read" in refusal(tmp_path / "a.cell", forged(wrong, data))


def test_header_that_leaves_the_tensors_unaligned_is_refused(tmp_path, contents):
    header, data = split(contents["float32"])
    text = joined(header).encode()
    text += b" " * (1 - len(text) % 8 + 8)
    content = sealed(struct.pack("<Q", len(text)) + text + data)
    assert "claims a header" in refusal(tmp_path / "a.cell", content)


def test_one_tensor_that_many_nodes_name_is_held_once(tmp_path):
    kernel = np.ones((500, 500), np.float32)
    given = Node("input", "x", options={"shape": (-1, 500), "dtype": "float32"})
    nodes = [Node("dense", "d", {"x": 0}, {"kernel": kernel}, {"activation": "linear"}) for _ in range(300)]
    path = tmp_path / "a.cell"
    write_cell(path, Program((given, *nodes), {"out": 300}), precision="int8")
    tracemalloc.start()
    cell = read_cell(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len({id(node.arrays["kernel"]) for node in cell.program.nodes[1:]}) == 1
    assert peak < 5 * kernel.nbytes


@pytest.mark.parametrize(
    "change",
    [
        put("4.kernel", shape=[2**31, 2**31]),
        put("4.kernel", shape=[2**40, 2**20], data_offsets=[0, 2**62]),
        option(6, shape=[2**31 - 1, 2**31 - 1]),
        option(7, n=2**20),
        option(0, shape=[2**31 - 1, 2**31 - 1]),
        field(4, arrays={"kernel": "4.kernel", "bias": "4.kernel"}),
    ],
)
def test_small_file_that_claims_enormous_sizes_takes_little_memory(change, tmp_path, contents):
    for precision in PRECISIONS:
        (tmp_path / "a.cell").write_bytes(edited(change, contents[precision]))
        tracemalloc.start()
        with contextlib.suppress(DataError):
            read_cell(tmp_path / "a.cell")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 300_000


@pytest.mark.parametrize("piece", ["[]", "{}", "0", '""', "[[]]", '{"a":0}', "0.5"])
def test_header_of_many_small_values_takes_a_multiple_of_its_size(piece, tmp_path, contents):
    header, data = split(contents["float32"])
    header["__metadata__"]["header"] = {"many": json.loads(f"[{','.join([piece] * 50_000)}]")}
    path = tmp_path / "a.cell"
    path.write_bytes(forged(joined(header), data))
    tracemalloc.start()
    read_cell(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A list is 3 bytes of JSON and 64 of memory, a dictionary of one key 8 and 250.
    assert peak < 50 * path.stat().st_size


HARM = {
    "lists in lists": lambda size: "[" * size,
    "closed lists in lists": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "dictionaries in dictionaries": lambda size: '{"":' * (size // 4),
    "lists": lambda size: f"[{'[],' * (size // 3)}[]]",
    "dictionaries": lambda size: "[" + '{"a":0},' * (size // 8) + "0]",
    "keys": lambda size: "{" + ",".join(f'"{n}":0' for n in range(size // 12)) + "}",
    "one key": lambda size: "{" + '"a":0,' * (size // 6) + "}",
    "fractions": lambda size: f"[{'0.5,' * (size // 4)}0]",
    "digits": lambda size: "9" * size,
    "many numbers of many digits": lambda size: f"[{('9' * 4300 + ',') * (size // 4301)}0]",
    "decimals": lambda size: f"0.{'1' * size}5",
    "exponents": lambda size: f"1e{'9' * size}",
    "text": lambda size: f'"{"a" * size}"',
    "wide text": lambda size: f'"{"a" * size}😀"',
    "escapes": lambda size: '"' + '\\"' * (size // 2) + '"',
    "wide escapes": lambda size: '"😀' + '\\"' * (size // 2) + '"',
    "escapes without an end": lambda size: '"' + '\\"' * (size // 2),
    "escapes of escapes without an end": lambda size: '"' + "\\" * size,
    "quotes": lambda size: '"' * size,
    "minus signs": lambda size: "-" * size,
    "letters e": lambda size: "e" * size,
}


@pytest.mark.parametrize(
    ("kind", "where", "mib"),
    [
        *((kind, "outer", 2) for kind in HARM),
        *(pytest.param(kind, "outer", 4, marks=pytest.mark.slow) for kind in HARM),
        *(pytest.param(kind, "inner", 4, marks=pytest.mark.slow) for kind in HARM),
        pytest.param("wide escapes", "outer", 23, marks=pytest.mark.slow),
        pytest.param("wide text", "inner", 23, marks=pytest.mark.slow),
    ],
)
def test_header_made_to_be_large_takes_bounded_memory_and_time(kind, where, mib, tmp_path, contents):
    header, data = split(contents["float32"])
    header["__metadata__"]["header"] = {"x": "@"}
    text, size = joined(header), mib * 2**20
    if where == "outer":
        literal = HARM[kind](size)
        content = text.replace('"{\\"x\\":\\"@\\"}"', literal)
    else:
        # A quote of a text within a text takes two or four bytes.
        literal = json.dumps(HARM[kind](size // 2), ensure_ascii=False)[1:-1][: size - 8]
        content = text.replace('\\"@\\"', literal + "\\" * (len(literal) - len(literal.rstrip("\\")) & 1))
    assert len(content) > size // 3
    path = tmp_path / "a.cell"
    path.write_bytes(forged(content, data))
    assert path.stat().st_size < LARGEST_HEADER
    tracemalloc.start()
    begin = time.process_time()
    with contextlib.suppress(DataError):
        read_cell(path)
    seconds = time.process_time() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The characters, four bytes each in some places at once, and what a million small values take.
    assert peak < 22 * size + 100 * 2**20
    # Some tenths of a second, and ten times that where memory is traced.
    assert seconds < 20


def test_header_that_fills_the_limits_takes_bounded_memory(tmp_path, contents):
    header, data = split(contents["float32"])
    path = tmp_path / "a.cell"
    header["__metadata__"]["header"] = {
        "x": [{"a": 0}] * (2**18 - 10)
    }  # each has four texts, brackets and commas
    path.write_bytes(forged(joined(header), data))
    tracemalloc.start()
    assert len(read_cell(path).header["x"]) == 2**18 - 10
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 2**20
    header["__metadata__"]["header"]["x"] += [{}] * 100
    message = refusal(path, forged(joined(header), data))
    assert "its header cannot be read: it has more than 1,048,576" in message


# Fuzzing.

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 127, 2**20, 2**31, 2**53, 2**63, 2**64, 10**300, -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\ud800", "😀", "\x1b[31m", "../../etc/passwd", "__class__", "a" * 3000, "0", "x?", "*"),
    *("F32", "BF16", "I8", "F64", "float32", "int8", "relu", "softmax", "linear", "h", *OPERATIONS),
    *("2.kernel", "2.bias", "4.kernel.scale", "2.kernel.scale", "1.embeddings", "__metadata__"),
    *([], {}, [[]], [{}], [1, 1], [2, 8], [-1], [2**31, 2**31], [0] * 300, {"a": 1}, {"x": 0}, {"0": 0}),
    *("@deep", "@digits", "@infinite", "@twice", "@blank", "@escape"),
)
LITERALS = {
    "deep": "[" * 3000 + "]" * 3000,
    "digits": "7" * 4500,
    "infinite": "1e400",
    "twice": '{"a":0,"a":0}',
    "blank": " 1",
    "escape": '"\\u0078"',
}


def hostile(rng: random.Random) -> Any:
    """A value of its own: a later mutation may change it."""
    return copy.deepcopy(rng.choice(HOSTILE))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found = []
    waiting = [tree]
    while waiting:
        container = waiting.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    return found


def restructured(content: bytes, rng: random.Random) -> bytes:
    """A file with its JSON changed as JSON, one to three times, and the lengths and the digest right again."""
    header, data = split(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        container, key = rng.choice(places(header) or [({}, "")])
        other, other_key = rng.choice(places(header) or [({"": 0}, "")])
        match rng.randrange(8):
            case 0 | 1 | 2:
                container[key] = hostile(rng)
            case 3:
                container.pop(key, None) if isinstance(container, dict) else container.pop(key)
            case 4 if isinstance(container, dict):
                container[str(hostile(rng))] = container.pop(key)
            case 5:
                # Through text, so that no value comes to hold itself.
                container[key] = json.loads(json.dumps(other[other_key]))
            case 6 if type(container[key]) in (int, float):
                container[key] += rng.choice((1, -1, 0.5, 8, -8, 1 << 32))
            case _:
                if isinstance(container, list):
                    container.insert(key, hostile(rng))
                else:
                    container[str(hostile(rng))] = hostile(rng)
    if rng.random() < 0.1:
        data = scrambled(data, rng)
    text = joined(header)
    if '"@' in text:
        for name, literal in LITERALS.items():
            text = text.replace(f'"@{name}"', literal)
            text = text.replace(f'\\"@{name}\\"', literal.replace("\\", "\\\\").replace('"', '\\"'))
    return forged(text, data)


def scrambled(content: bytes, rng: random.Random) -> bytes:
    """A content with some bytes flipped, set, cut, added, swapped or copied elsewhere."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place, other = rng.randrange(len(changed) + 1), rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(9):
            case 0 | 1 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place : place + 1] = bytes([rng.choice((0, 1, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0xFF))])
            case 3:
                del changed[place:]
            case 4:
                changed += rng.randbytes(length)
            case 5:
                changed[place:place] = rng.randbytes(length)
            case 6:
                del changed[place : place + length]
            case 7:
                one, two = changed[place : place + length], changed[other : other + length]
                changed[place : place + len(two)], changed[other : other + len(one)] = two, one
            case _:
                changed[place : place + length] = changed[other : other + length]
    return bytes(changed)


def spliced(content: bytes, donor: bytes, rng: random.Random) -> bytes:
    """A file with a field of the header, the length or the data of another file."""
    match rng.randrange(3):
        case 0:
            return donor[:8] + content[8:]
        case 1:
            cut = rng.randrange(len(content))
            return content[:cut] + donor[cut:]
        case _:
            (header, data), (other, other_data) = split(content), split(donor)
            name = rng.choice(list(other))
            if name == "__metadata__":
                name = rng.choice(list(other[name]))
                header["__metadata__"][name] = other["__metadata__"][name]
            else:
                header[name] = other[name]
            return forged(joined(header), rng.choice((data, other_data)))


def fuzz(contents: dict[str, bytes], path: Path, count: int, seed: int) -> Counter[str]:
    """Reads `count` mutated files; counts how they ended."""
    rng = random.Random(seed)
    originals = list(contents.values())
    cells = {}
    for content in originals:
        path.write_bytes(content)
        cells[content] = read_cell(path)
    ends: Counter[str] = Counter()
    with path.open("r+b", buffering=0) as file:
        for number in range(count):
            content = rng.choice(originals)
            kind = rng.randrange(8)
            if kind < 4:
                mutated = scrambled(content, rng)
            elif kind < 5:
                mutated = sealed(scrambled(content, rng))
            elif kind < 6:
                mutated = spliced(content, rng.choice(originals), rng)
            else:
                mutated = restructured(content, rng)
            file.seek(0)
            file.write(mutated)
            file.truncate()
            try:
                cell = read_cell(path)
            except DataError as error:
                message = checked_message(path, error)
                ends[message.split(": ", 1)[-1][:24]] += 1
                continue
            except BaseException as error:
                raise AssertionError(f"mutation {number} of seed {seed} (kind {kind})") from error
            if mutated in cells:
                assert_same(cell, cells[mutated])
                ends["unchanged"] += 1
                continue
            # Only with a digest made right can another file load.
            assert kind >= 4, f"mutation {number} of seed {seed} went unnoticed"
            Program(cell.program.nodes, cell.program.outputs)
            used = {id(a): a.nbytes for node in cell.program.nodes for a in node.arrays.values()}
            assert sum(used.values()) <= 4 * len(mutated)
            ends["loaded"] += 1
    return ends


def test_20_000_mutated_files_are_refused_or_hold_valid_programs(tmp_path, contents):
    ends = fuzz(contents, tmp_path / "a.cell", 20_000, seed=1)
    # The mutations reach every layer: the digest, the JSON, the tensors, the program; and some are harmless.
    for end in (
        "its checksum is wrong, s",
        "its header cannot be read",
        "it claims a header of",
        "loaded",
        "unchanged",
    ):
        assert any(found.startswith(end[:24]) for found in ends), end
    assert len(ends) > 100


@pytest.mark.slow
def test_1_000_000_mutated_files_are_refused_or_hold_valid_programs(tmp_path, contents):
    ends = fuzz(contents, tmp_path / "a.cell", 1_000_000, seed=2)
    assert ends["loaded"] > 1000
