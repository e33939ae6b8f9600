"""Reads XLA's programs as text: which operation of a framework each instruction came from."""

import re
from collections import Counter

from cellerate.bridges.profiled import marked

Sources = dict[str, str]
"""For each instruction the name of its operation, with the scopes around it."""
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")


def sources_of(text: str) -> Sources:
    """Gives the operation behind each instruction.

    A fusion has one operation's name, if any, though it may hold many: where it names no part of a model, that which
    most of its instructions belong to stands for it.

    Args:
        text: The program, as XLA prints it.
    """
    found: Sources = {}
    inside: dict[str, list[str]] = {}
    called: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if (begin := _COMPUTATION.match(line)) is not None:
            computation = begin[1]
            continue
        if (instruction := _INSTRUCTION.match(line)) is None:
            continue
        if (source := _SOURCE.search(line)) is not None:
            found[instruction[1]] = source[1]
            inside.setdefault(computation, []).append(source[1])
        if (other := _CALLED.search(line)) is not None:
            called[instruction[1]] = other[1]
    for name, callee in called.items():
        if marked(found.get(name, "")) is None:
            named = Counter(source for source in inside.get(callee, ()) if marked(source) is not None)
            if named:
                found[name] = named.most_common(1)[0][0]
    return found
