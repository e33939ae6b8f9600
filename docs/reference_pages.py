"""Write the reference of the site from the code: public names, commands, routes, and the operations of a `.cell`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

import cellerate
from cellerate.program import OPERATIONS
from cellerate.serving.routes.operations import OPERATIONS as ROUTES


def write_pages(folder: Path) -> None:
    """Write each page into a folder, if it has changed."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    return {
        "python": _python(),
        "command-line": _commands(),
        "http": _routes(),
        "operations": _operations(),
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _python() -> str:
    """All public names with signature and docstring."""
    parts = [
        "# Python",
        "`import cellerate` imports no framework: each name is loaded when it is first used. "
        "Errors are kinds of `cellerate.CellerateError`.",
    ]
    for name in sorted(cellerate.__all__, key=str.lower):
        if name == "__version__":
            continue
        is_class = isinstance(getattr(cellerate, name), type)
        kind = "autoclass" if is_class else "autofunction"
        members = "\n   :members:" if is_class else ""
        parts.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: cellerate.{name}{members}\n```")
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    """Each command with its arguments and options."""
    from cellerate.cli.main import app

    root = typer.main.get_command(app)
    parts = [
        "# Command line",
        "All commands take `--config run.toml` for their options, and most `--json` for programs. Exit codes: 0 done, "
        "2 wrong argument, 3 data, 4 model or checkpoint, 5 backend, 6 output, 7 diverged, 130 interrupted.",
    ]
    for name, command in _leaves("cellerate", root):
        rows = [
            (
                ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
                if parameter.param_type_name == "option"
                else f"`{parameter.name.upper()}`",
                Text.from_markup(getattr(parameter, "help", "") or "").plain,
            )
            for parameter in command.params
            if not getattr(parameter, "hidden", False)
        ]
        text = Text.from_markup(command.help or "").plain.replace("\b", "").strip()
        parts.append(f"## {name}\n\n{_prose(text)}\n\n{_table(('', ''), rows)}")
    return "\n\n".join(parts) + "\n"


def _prose(text: str) -> str:
    """A help text; its examples, which are commands, as code."""
    blocks = []
    for block in text.split("\n\n"):
        lines = [line.strip() for line in block.strip().splitlines()]
        if any(line.startswith(("cellerate ", "pip ", "$ ")) for line in lines):
            blocks.append("```bash\n" + "\n".join(lines) + "\n```")
        else:
            blocks.append(" ".join(lines))
    return "\n\n".join(blocks)


def _leaves(name: str, command: Any) -> Iterable[tuple[str, Any]]:
    """The commands below a command, by their full names."""
    below: Mapping[str, Any] = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word in sorted(below):
        yield from _leaves(f"{name} {word}", below[word])


def _routes() -> str:
    """Each route of a server, by protocol."""
    parts = [
        "# HTTP routes",
        "A server describes itself: `GET /openapi.json` is the OpenAPI document, with the forms of all bodies, "
        "and `GET /` a page to try it. [Serving](../guide/serving.md) says how they are used.",
    ]
    for group in dict.fromkeys(route.group for route in ROUTES):
        rows = [
            (f"`{route.method} {route.path}`", route.text, ", ".join(route.takes) if route.body else "")
            for route in ROUTES
            if route.group == group
        ]
        parts.append(f"## {group}\n\n{_table(('route', '', 'body'), rows)}")
    return "\n\n".join(parts) + "\n"


def _operations() -> str:
    """Each operation of the language of a `.cell`."""
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{one}`" for one in row.inputs),
            ", ".join(f"`{array}` ({', '.join(map(str, axes))})" for array, axes in row.arrays.items()),
            ", ".join(f"`{option}`" for option in row.options),
            row.gives,
        )
        for name, row in sorted(OPERATIONS.items())
    ]
    head = ("operation", "inputs", "arrays", "options", "gives")
    return (
        "# Operations of a `.cell`\n\n"
        "Names that end in `?` are optional; `*` stands for one or more inputs, named `0`, `1`, and so on. "
        "[The format](../guide/cell-format.md) says where they stand in a file.\n\n"
        f"{_table(head, rows)}\n"
    )
