"""Files changed at random: each ends in one `DataError`, or in a valid program."""

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.program import OPERATIONS, Program
from cellerate.runtime.cell import Cell, read_cell
from support.runtime.cell_files import checked_message, forged, joined, sealed, split


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


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 127, 2**20, 2**31, 2**53, 2**63, 2**64, 10**300, -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\ud800", "😀", "\x1b[31m", "../../etc/passwd", "__class__", "a" * 3000, "0", "x?", "*"),
    *(
        "F32",
        "BF16",
        "I8",
        "U8",
        "F64",
        "float32",
        "int8",
        "int4",
        "relu",
        "softmax",
        "linear",
        "h",
        *OPERATIONS,
    ),
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
    """A copy of a hostile value, because a later mutation may change it."""
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
    """A file whose JSON tree is changed one to three times, with correct lengths and digest."""
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
                # A copy through text, so that no value comes to contain itself.
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
    """Read `count` mutated files and count how they ended."""
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
            # A changed file can load only if its digest was corrected.
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
