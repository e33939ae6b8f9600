"""Options that verbs share, and settings records turned into options.

A setting is declared once, in its dataclass and its docstring. Every verb that takes it has the same option,
help and default.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import typer

from cellerate.errors import ConfigError, DataError
from cellerate.files import read_regular
from cellerate.settings import attribute_docs

_F = typing.TypeVar("_F", bound=Callable[..., Any])

_MOST_CONFIG = 1 << 20


def option(help_text: str, *names: str, **more: Any) -> Any:
    """An option that may be left out: the help says what happens then, in place of a default."""
    return typer.Option(*names, help=help_text, show_default=False, **more)


def operand(help_text: str, **more: Any) -> Any:
    """An argument that a verb takes without a name."""
    return typer.Argument(help=help_text, show_default=False, **more)


def _load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Takes the defaults of the verb's options from a TOML file."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    try:
        content = tomllib.loads(
            read_regular(path, _MOST_CONFIG, "give a TOML file", "the configuration file").decode()
        )
    except DataError as error:
        raise ConfigError(str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}.") from error
    # One file may serve several verbs, each with its own table: [train.text], [generate] ... Keys above all
    # tables apply to every verb.
    own: Any = content
    for word in context.command_path.split()[1:]:
        own = own.get(word) if isinstance(own, dict) else None
    table = content
    if isinstance(own, dict):
        table = {key: value for key, value in content.items() if not isinstance(value, dict)} | own
    known = {parameter.name: parameter for parameter in context.command.params if parameter.name != "config"}
    given: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known or isinstance(value, dict):
            options = ", ".join(sorted(n.replace("_", "-") for n in known if n and n != "help"))
            raise ConfigError(
                f"{path}: {key!r} is not an option of {context.command_path!r}. It has: {options}."
            )
        # TOML has its own words for on and off.
        value = ("off", "on")[value] if name in _WRITTEN and isinstance(value, bool) else value
        if isinstance(value, bool) and not getattr(known[name], "is_flag", False):
            raise ConfigError(f"{path}: {key!r} takes a value, not {str(value).lower()}.")
        if getattr(known[name], "multiple", False) and not isinstance(value, list):
            value = [value]
        given[name] = value
    context.default_map = {**(context.default_map or {}), **given}
    return path


_Config = Annotated[
    Path | None,
    option(
        "A TOML file with values for these options; what is given on the command line wins.",
        "--config",
        is_eager=True,
        callback=_load_config,
    ),
]
Vocabulary = Annotated[
    str | None,
    option(
        "What the ids of your own model mean: the text that it was trained on (its sorted characters), a JSON "
        "list of characters, a tokenizer.json, or bytes.",
        "--vocabulary",
    ),
]
Backend = Annotated[
    str | None,
    option(
        "The Keras backend: tensorflow, jax or torch. Default: KERAS_BACKEND, else an installed one.",
        "--backend",
    ),
]
Output = Annotated[Path, option("Where to write the model, *.keras.", "--output", "-o")]
Device = Annotated[
    str,
    typer.Option(
        "--device", help="Where a packed model generates: cpu, cuda, or cuda:N, the number of an NVIDIA GPU."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint beside the output.")]

# Fields whose types the command line lacks, and how they are written there.
_WRITTEN: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "jit_compile": (
        Literal["auto", "on", "off"],
        "auto",
        lambda word: {"on": True, "off": False}.get(word, "auto"),
    ),
}


def with_settings(
    keyword: str, settings: type, *, leave_out: Sequence[str] = (), panel: str
) -> Callable[[_F], _F]:
    """Adds an option for each field of a settings dataclass to a verb.

    Args:
        keyword: The verb's argument that receives the finished `settings` record.
        settings: A dataclass with an `Attributes` section in its docstring, which is the help of the options. The
            metadata "choices" of a field are names that the help adds.
        leave_out: Fields without an option; the verb fills them in with `dataclasses.replace`.
        panel: The heading of these options in the help.

    Returns:
        A decorator.
    """
    helps = attribute_docs(settings)
    hints = typing.get_type_hints(settings)
    fields = [field for field in dataclasses.fields(settings) if field.name not in leave_out]

    def read(values: dict[str, Any]) -> Any:
        for name in values.keys() & _WRITTEN.keys():
            values[name] = _WRITTEN[name][2](values[name])
        return settings(**values)

    added = [_parameter(field, hints[field.name], helps[field.name], panel) for field in fields]
    return with_parameters(keyword, added, read)


def with_config(verb: _F) -> _F:
    """Adds the option --config to a verb, which never sees it: it fills in the others before the verb is called."""
    added = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Config)
    return with_parameters("", [added], lambda _: None)(verb)


def _unwrapped(docstring: str | None) -> str | None:
    """A docstring with a line for each paragraph or example: terminals wrap at their own width, and keep line ends."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        words = line.strip()
        begins = not words or words.startswith("cellerate ") or not lines or not lines[-1]
        if begins or _indent(line) != _indent(lines[-1]):
            lines.append(line)
        else:
            lines[-1] += f" {words}"
    return "\n".join(lines) or None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def with_parameters(
    keyword: str, added: Sequence[inspect.Parameter], read: Callable[[dict[str, Any]], Any]
) -> Callable[[_F], _F]:
    """Replaces an argument of a verb by options.

    Args:
        keyword: The argument; "" for options that the verb does not see.
        added: The options, as parameters of a function that typer understands.
        read: Makes the argument's value of the options' values, by name.

    Returns:
        A decorator.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        parameters = [*(p for p in signature.parameters.values() if p.name != keyword), *added]

        def verb(*arguments: Any, **options: Any) -> Any:
            values = {one.name: options.pop(one.name) for one in added}
            made = {keyword: read(values)} if keyword else {}
            return function(*arguments, **options, **made)

        verb.__name__, verb.__doc__, verb.__module__ = (
            function.__name__,
            _unwrapped(function.__doc__),
            function.__module__,
        )
        verb.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: p.annotation for p in parameters}
        return typing.cast(_F, verb)

    return decorate


def _parameter(field: Any, hint: Any, help_text: str, panel: str) -> inspect.Parameter:
    default = field.default if field.default is not dataclasses.MISSING else None
    if field.name in _WRITTEN:
        hint, default, _ = _WRITTEN[field.name]
    elif typing.get_origin(hint) is Sequence:
        (entry,) = typing.get_args(hint)
        # Lists of choices are none of typer's types; the record checks them.
        entry = str if typing.get_origin(entry) is Literal else entry
        hint, default = list[entry], list(default or [])  # type: ignore[valid-type]
    if choices := field.metadata.get("choices"):
        help_text = f"{help_text.rstrip('.')}. Names: {', '.join(choices)}."
    flag = "--" + field.name.replace("_", "-")
    if hint in (bool, bool | None):
        flag += f"/--no-{field.name.replace('_', '-')}"
    optional = NoneType in typing.get_args(hint)
    option = typer.Option(
        flag, help=help_text, rich_help_panel=panel, show_default=not optional and default not in ([], "")
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option]
    )
