"""The text of `cellerate.keywords`, made from the records that public functions take the fields of.

`make keywords` writes the module anew.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Union

import cellerate

MODULE = Path(cellerate.__file__).with_name("keywords.py")
_HEAD = '''"""The settings that public functions take as keyword arguments, as types.

`make keywords` writes this module from the records of settings: type checkers and editors cannot see what
`settings.takes_fields_of` adds when a function is defined.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict
'''


def public_functions() -> dict[str, Callable[..., Any]]:
    """The public functions that take the fields of records, by name."""
    values = {name: getattr(cellerate, name) for name in cellerate.__all__}
    return {name: value for name, value in values.items() if hasattr(value, "takes_fields_of")}


def keywords_of(name: str) -> str:
    """The name of the type of a function's keyword arguments."""
    return "".join(word.capitalize() for word in name.split("_")) + "Keywords"


def module_text() -> str:
    """The text of the module."""
    functions = {name: function.takes_fields_of for name, function in public_functions().items()}  # type: ignore[attr-defined]
    left_out: dict[type, set[str]] = {}
    for records, names in functions.values():
        for record in records:
            without = {field.name for field in dataclasses.fields(record)} & {*names}
            assert left_out.setdefault(record, without) == without, "two functions leave out different fields"
    blocks = [_HEAD.rstrip("\n")]
    for record in sorted(left_out, key=lambda one: one.__name__):
        hints = typing.get_type_hints(record)
        blocks.append(
            f"class {record.__name__}Fields(TypedDict, total=False):\n"
            f'    """The fields of `{record.__module__}.{record.__name__}` that are keyword arguments."""\n\n'
            + "\n".join(
                f"    {field.name}: {_written(field.metadata.get('accepts', hints[field.name]))}"
                for field in dataclasses.fields(record)
                if field.name not in left_out[record]
            )
        )
    for name, (records, _) in sorted(functions.items()):
        bases = ", ".join(f"{record.__name__}Fields" for record in records)
        blocks.append(
            f"class {keywords_of(name)}({bases}, total=False):\n"
            f'    """Keyword arguments of `cellerate.{name}`, beside those in its definition."""'
        )
    return "\n\n\n".join(blocks) + "\n"


def _written(hint: Any) -> str:
    """A type as source; a list may be a single entry, as `settings.record_of` reads it."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "Literal[" + ", ".join(f'"{one}"' for one in arguments) + "]"
    if typing.get_origin(hint) is Sequence:
        return f"{_written(arguments[0])} | Sequence[{_written(arguments[0])}]"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        return " | ".join(map(_written, arguments))
    return "None" if hint is types.NoneType else hint.__name__


class _AnyName(types.ModuleType):
    """The module before it is written, so that functions may name types that are yet to come."""

    def __getattr__(self, name: str) -> type:
        # `inspect` asks each module for its file.
        if name.startswith("__"):
            raise AttributeError(name)
        return dict


if __name__ == "__main__":
    sys.modules["cellerate.keywords"] = _AnyName("cellerate.keywords")
    MODULE.write_text(module_text())
