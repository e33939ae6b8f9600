"""Records of settings: their fields are checked, have help, and can be a function's keyword arguments.

A setting is declared once, as the field of a frozen dataclass with an `Attributes` section. The command line turns the
fields into options (`cli.options`), and Python functions turn them into keyword arguments (`takes_fields_of`).
"""

import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cellerate.errors import ConfigError
from cellerate.messages import argument

_F = typing.TypeVar("_F", bound=Callable[..., Any])
_Record = typing.TypeVar("_Record")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{argument(name)} must be one of {', '.join(choices)}, not {value!r}.")


def check_number(
    name: str,
    value: float | None,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    optional: bool = False,
) -> None:
    """Raises `ConfigError` unless `value` is a finite number within the bounds."""
    if value is None and optional:
        return
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    wanted = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    kind = "a whole number" if whole else "a number"
    usable = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if (
        not usable
        or value is None
        or not math.isfinite(value)
        or (at_least is not None and value < at_least)
        or (above is not None and value <= above)
        or (at_most is not None and value > at_most)
        or (below is not None and value >= below)
    ):
        raise ConfigError(f"{argument(name)} must be {kind} {wanted}, not {value!r}.")


def check_counts(**counts: int) -> None:
    """Raises `ConfigError` unless each value is a whole number of at least 1."""
    for name, value in counts.items():
        check_number(name, value, at_least=1, whole=True)


def attribute_docs(settings: type) -> dict[str, str]:
    """Gives the text of each entry in the `Attributes` section of a docstring, by attribute name."""
    section = inspect.getdoc(settings) or ""
    section = section.partition("Attributes:\n")[2]
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if match := re.match(r"    (\w+): (.*)", line):
            name, entries[match[1]] = match[1], match[2]
        elif line.startswith("        ") and name:
            entries[name] += " " + line.strip()
        elif line.strip():
            break
    return entries


def takes_fields_of(*records: type, leave_out: Sequence[str] = ()) -> Callable[[_F], _F]:
    """Lets a function with `**options` take the fields of dataclasses, and refuse every other keyword.

    The fields appear in the function's signature and in its docstring, so `help` shows them. Type checkers and editors
    read the type of `**options` in `keywords`, which `make keywords` generates from the records.

    Args:
        records: Dataclasses with an `Attributes` section; no two share a field's name.
        leave_out: Fields that the function fills in itself.

    Returns:
        A decorator. The function makes its records with `record_of`.
    """
    fields = {
        field.name: (field, hint)
        for record in records
        for field, hint in _fields(record)
        if field.name not in leave_out
    }

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hint)
            for name, (field, hint) in fields.items()
        ]

        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            known = [one.name for one in (*own, *added)]
            for name in options:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    meant = f"; did you mean {near[0]!r}?" if near else "."
                    raise ConfigError(
                        f"{name!r} is not an argument of {function.__name__}{meant} It takes "
                        f"{', '.join(sorted(known))}."
                    )
            return function(*arguments, **options)

        checked.takes_fields_of = records, leave_out  # type: ignore[attr-defined]
        checked.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        helps = [text for record in records for text in attribute_docs(record).items() if text[0] in fields]
        listed = "\n".join(f"    {name}: {text}" for name, text in helps)
        checked.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n{listed}"
        return typing.cast(_F, checked)

    return decorate


def record_of(kind: type[_Record], options: Mapping[str, Any], **filled_in: Any) -> _Record:
    """Makes one record from the options of a function; options of other records are left alone.

    A single value, such as one column's name, may stand for a list of one.

    Args:
        kind: A dataclass.
        options: The keyword arguments that the caller gave.
        filled_in: Fields that are not among them.

    Raises:
        ConfigError: A field cannot be used.
    """
    values = {
        field.name: _usable(field.name, options[field.name], hint)
        for field, hint in _fields(kind)
        if field.name in options
    }
    return kind(**values, **filled_in)


def _usable(name: str, value: Any, hint: Any) -> Any:
    """A value with NumPy's numbers as Python's and a path as text, and in a tuple if it stands for a list of one."""
    value = os.fspath(value) if hint is str and isinstance(value, os.PathLike) else _as_python(value)
    if _is_list(hint):
        return one_or_more(value)
    if hint is bool and not isinstance(value, bool):
        raise ConfigError(f"{argument(name)} must be True or False, not {value!r}.")
    return value


def _as_python(value: Any) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return [_as_python(one) for one in value] if type(value) is list else value


def one_or_more(value: Any) -> Any:
    """A tuple of one for a single text, path or number; any other value as it is."""
    return (value,) if isinstance(value, str | os.PathLike | int | float) else value


def changed_fields(settings: Any) -> dict[str, Any]:
    """The fields of a record that are not the defaults."""
    fields = [(field, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
    return {field.name: value for field, value in fields if not _same(value, field.default)}


def every_option(settings: Any) -> Iterator[str]:
    """Settings as options of a command: all sizes, so that the command shows its model, and all non-defaults."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if type(value) is int or not _same(value, field.default):
            yield from _option(field.name, value, field.default is True)


def differing_options(
    kind: type, recorded: Mapping[str, Any], chosen: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """The chosen settings, and those of a record that differ from the defaults, as options of a command."""
    words: list[str] = []
    for field in dataclasses.fields(kind):
        name = field.name
        if name in chosen:
            words += _option(name, chosen[name], False)
        elif name not in ("paths", "path") and name in recorded and not _same(recorded[name], field.default):
            words += _option(name, recorded[name], field.default is True)
    return words


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, list | tuple):
        return list(value) == list(default or ())
    return bool(value == default)


def _option(name: str, value: Any, on_by_default: bool) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool) and name == "jit_compile":
        yield from (flag, "on" if value else "off")
    elif isinstance(value, bool):
        if value is not on_by_default:
            yield flag if value else f"--no-{flag[2:]}"
    elif isinstance(value, list | tuple):
        for one in value:
            yield from (flag, str(one))
    elif isinstance(value, str | int | float):
        whole = isinstance(value, float) and value.is_integer()
        yield from (flag, str(int(value) if whole else value))


def _fields(record: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(record)
    return [(field, hints[field.name]) for field in dataclasses.fields(record)]


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field as that of a parameter."""
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is Sequence
