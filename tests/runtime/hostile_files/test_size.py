"""Files that claim to be large, or are: they take little memory and time."""

import contextlib
import json
import time
import tracemalloc

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.program import PRECISIONS, Node, Program
from cellerate.runtime.cell import read_cell, write_cell
from cellerate.runtime.cell_format import LARGEST_HEADER
from support.runtime.cell_files import edited, field, forged, joined, option, put, refusal, split


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
    # A list takes 3 bytes of JSON and 64 of memory, a dictionary of one key 8 and 250.
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
        # A quote takes two or four bytes in a text within a text.
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
    # Several copies of the characters at four bytes each, and a million small values.
    assert peak < 22 * size + 100 * 2**20
    # It takes some tenths of a second, and ten times that while memory is traced.
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
