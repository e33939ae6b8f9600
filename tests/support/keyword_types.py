"""The text of `cellerate.keywords`, made from the records whose fields public functions take.

`make keywords` rewrites the module.
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
from typing import Any, Literal, Required, TypedDict
'''


def public_functions() -> dict[str, Callable[..., Any]]:
    """The functions that take the fields of records, by name: public functions and builders of models."""
    values = {name: getattr(cellerate, name) for name in cellerate.__all__}
    # Imported here, once `cellerate.keywords`, whose types they use, can be imported.
    from cellerate.models.forecast import build_forecast_model
    from cellerate.models.text import build_text_model

    values |= {build.__name__: build for build in (build_text_model, build_forecast_model)}
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
                f"    {field.name}: {_annotation(field, hints[field.name])}"
                for field in dataclasses.fields(record)
                if field.name not in left_out[record]
            )
        )
    for name, (records, _) in sorted(functions.items()):
        bases = ", ".join(f"{record.__name__}Fields" for record in records)
        blocks.append(
            f"class {keywords_of(name)}({bases}, total=False):\n"
            f'    """Keyword arguments of `{_place(name)}`, beside those in its definition."""'
        )
    return "\n\n\n".join(blocks) + "\n"


def _place(name: str) -> str:
    """The name by which users import a function."""
    return (
        f"cellerate.{name}" if name in cellerate.__all__ else f"{public_functions()[name].__module__}.{name}"
    )


def _annotation(field: dataclasses.Field[Any], hint: Any) -> str:
    """The type of a field as source; a list may be a single entry, as `settings.record_of` reads it."""
    hint = field.metadata.get("accepts", hint)
    written = _written(hint)
    if typing.get_origin(hint) is Sequence:
        written = f"{_written(typing.get_args(hint)[0])} | {written}"
    return f"Required[{written}]" if field.default is dataclasses.MISSING else written


def _written(hint: Any) -> str:
    """A type as source."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "Literal[" + ", ".join(f'"{one}"' for one in arguments) + "]"
    if typing.get_origin(hint) is Sequence:
        return f"Sequence[{_written(arguments[0])}]"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        return " | ".join(map(_written, arguments))
    return "None" if hint is types.NoneType else hint.__name__


class _AnyName(types.ModuleType):
    """A stand-in for the module before it is written, so that functions may name types that do not exist yet."""

    def __getattr__(self, name: str) -> type:
        # `inspect` asks each module for its file.
        if name.startswith("__"):
            raise AttributeError(name)
        return dict


if __name__ == "__main__":
    sys.modules["cellerate.keywords"] = _AnyName("cellerate.keywords")
    MODULE.write_text(module_text())
