"""Malicious files with a correct digest: each ends in one `DataError`."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from support.runtime.cell_files import (
    edited,
    field,
    forged,
    joined,
    metadata,
    node_of,
    option,
    put,
    refusal,
    sealed,
    split,
)


def poke(tensor: str, values: bytes) -> Callable[[dict[str, Any], bytearray], Any]:
    """A change of the first bytes of a tensor."""

    def change(header: dict[str, Any], data: bytearray) -> None:
        begin = header[tensor]["data_offsets"][0]
        data[begin : begin + len(values)] = values

    return change


def retyped(tensor: str, dtype: str, shape: list[int]) -> Callable[[dict[str, Any], bytearray], Any]:
    """The bytes of a tensor under another type and shape."""
    return put(tensor, dtype=dtype, shape=shape)


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
    "int4-scale-nan": ("int4", poke("4.kernel.scale", b"\xc0\x7f"), "scale of a group is not a finite"),
    "int4-scale-infinite": ("int4", poke("4.kernel.scale", b"\x80\xff"), "scale of a group is not a finite"),
    "int4-scale-0": ("int4", poke("4.kernel.scale", bytes(2)), "other than 0"),
    "int4-scale-minus-0": ("int4", poke("4.kernel.scale", b"\0\x80"), "other than 0"),
    "int4-scale-overflows": ("int4", poke("4.kernel.scale", b"\x7f\x7f" * 3), "or an infinity"),
    "int4-scale-absent": ("int4", scale_renamed, "has no bfloat16 scale for each column of each 32 rows"),
    "int4-scale-of-other-groups": (
        "int4",
        put("4.kernel.scale", shape=[3, 1]),
        "has no bfloat16 scale for each",
    ),
    "int4-scale-of-one-axis": ("int4", put("4.kernel.scale", shape=[3]), "has no bfloat16 scale for each"),
    "int4-of-one-axis": ("int4", put("4.kernel", shape=[4]), "has no bfloat16 scale for each"),
    "int4-of-other-columns": ("int4", put("4.kernel", shape=[4, 1]), "has no bfloat16 scale for each"),
    "int4-beyond-the-last-column": ("int4", poke("4.kernel", b"\x88\x88"), "a number beyond its last column"),
    "int4-scale-subnormal": (
        "int4",
        poke("4.kernel.scale", b"\x01\x00"),
        "finite normal number other than 0",
    ),
    "int4-scale-of-too-many-rows": (
        "int4",
        put("2.kernel.scale", shape=[8, 1]),
        "has no bfloat16 scale for each column of each 32 rows",
    ),
    "int4-scale-float32": (
        "int4",
        retyped("2.kernel.scale", "F32", [1, 4]),
        "has no bfloat16 scale for each",
    ),
    "int4-scale-bytes": ("int4", retyped("2.kernel.scale", "U8", [2, 8]), "has no bfloat16 scale for each"),
    "int4-scale-of-a-scale": (
        "int4",
        field(4, arrays={"kernel": "4.kernel.scale"}),
        "'4.kernel.scale' is not kept as int4 files keep it",
    ),
    "int4-without-its-largest": ("int4", poke("2.kernel", bytes(8)), "does not reach -8"),
    "int4-codes-bfloat16": ("int4", retyped("2.kernel", "BF16", [2, 2]), "recurrent_kernel has the shape"),
    "int4-product-wraps-to-fit": ("int4", put("2.kernel", shape=[2**62 + 2, 4]), "'2.kernel' must be"),
    "int4-enormous": ("int4", put("2.kernel", shape=[2**40, 2**20]), "'2.kernel' must be"),
    "int4-size-0": ("int4", put("2.kernel", shape=[0, 4]), "'2.kernel' must be"),
    "int4-scale-size-0": ("int4", put("2.kernel.scale", shape=[0, 8]), "'2.kernel.scale' must be"),
    "int4-scale-enormous": ("int4", put("2.kernel.scale", shape=[2**33, 2**33]), "'2.kernel.scale' must be"),
    "int4-vector": ("int4", field(2, arrays={"bias": "2.kernel"}), "has the arrays"),
    "int4-in-bfloat16": ("int4", metadata(precision="bfloat16"), "is not kept as bfloat16 files keep it"),
    "int8-without-its-largest": ("int8", poke("2.kernel", bytes(8)), "reaches neither 127 nor -127"),
    "int8-scale-subnormal": ("int8", poke("4.kernel.scale", b"\x01\x00\x00\x00"), "finite normal number"),
    "int8-scale-bfloat16": (
        "int8",
        retyped("4.kernel.scale", "BF16", [6]),
        "has no float32 scale for each of its columns",
    ),
    "int8-enormous": ("int8", put("4.kernel", shape=[2**40, 2**20]), "'4.kernel' must be"),
    "bfloat16-enormous": ("bfloat16", put("4.kernel", shape=[2**40, 2**20]), "'4.kernel' must be"),
    "bfloat16-wraps-to-fit": ("bfloat16", put("4.kernel", shape=[2**62 + 2, 4]), "'4.kernel' must be"),
    "int4-as-int8": ("int4", metadata(precision="int8"), "is not kept as int8 files keep it"),
    "int8-as-int4": ("int8", metadata(precision="int4"), "is not kept as int4 files keep it"),
    "precision-unknown": ("int8", metadata(precision="int2"), "its precision must be one of"),
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
    assert "must be F32, BF16, I8, U8" in refusal(tmp_path / "a.cell", forged(joined(header), bytes(blob)))


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
