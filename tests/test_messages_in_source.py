"""Every message of the source: arguments are data in it, options are for the command line alone, no mark is left."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "cellerate"
OTHERS = {
    str(path.relative_to(SOURCE)): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.relative_to(SOURCE).parts[0] != "cli"
}
ALL = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Whole commands may be typed as they are: in quotes of code, or what a package manager is told.
COMMAND = re.compile(r"`[^`]*`|\bpip install [^;]*")
MARKS = {"argument", "marked"}
IMPORT = "from cellerate.messages import argument, marked\n"


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of a module that people read, docstrings left out: sentences, so with a space in them."""
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            whole = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.lineno, node.value


def options_named(text: str) -> list[str]:
    """The options in the messages of a module."""
    return [
        f"{line}: {option}"
        for line, said in texts(ast.parse(text))
        if " " in said.strip()
        for option in OPTION.findall(COMMAND.sub("", said))
    ]


@pytest.mark.parametrize("module", OTHERS)
def test_options_are_named_by_the_command_line_alone(module: str) -> None:
    assert options_named(OTHERS[module].read_text()) == []


def test_planted_option_is_found() -> None:
    assert options_named('say(f"hold out more of {x} (--validation-fraction)")') == [
        "1: --validation-fraction"
    ]
    assert options_named('say("pip install --upgrade a, or `docker run --gpus all`")\nrun("--resume")') == []


def renders(call: ast.Call) -> bool:
    """True if a call puts marks into Python's words: `Message`, or an error of Cellerate's."""
    named = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    own_error = named.endswith("Error") and not hasattr(builtins, named)
    return (
        own_error
        or named in ("Message", "__init__")
        or any(getattr(one, "id", "") == "Message" for one in call.args)
    )


def unrendered(text: str) -> list[int]:
    """The lines of a module where the marks of arguments leave a function, but not in an error or a `Message`.

    Until then local names may hold them.
    """
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    marks = {
        one.name for node in imports if node.module == "cellerate.messages" for one in node.names
    } & MARKS
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    holders: set[tuple[int, str]] = set()

    def end(node: ast.AST) -> tuple[ast.stmt | None, int]:
        """The statement that marks get to, None if they are rendered before; and its function."""
        while not isinstance(node, ast.stmt):
            if isinstance(node, ast.Call) and renders(node):
                return None, 0
            node = parents[id(node)]
        inside: ast.AST = node
        while not isinstance(inside, ast.FunctionDef | ast.Module):
            inside = parents[id(inside)]
        return node, id(inside)

    while True:
        found, before = [], len(holders)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            statement, inside = end(node)
            if statement is None or (node.id not in marks and (inside, node.id) not in holders):
                continue
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
                    holders.add((inside, name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    holders.add((inside, name))
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"))):
                    holders.add((inside, name))
                case ast.For(target=ast.Name(id=name)):
                    holders.add((inside, name))
                case ast.If():
                    pass
                case _:
                    found.append(node.lineno)
        if len(holders) == before:
            return sorted(set(found))


@pytest.mark.parametrize("module", [name for name in ALL if name not in ("messages.py", "cli/words.py")])
def test_marks_are_rendered_before_they_leave_a_function(module: str) -> None:
    assert unrendered(ALL[module].read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "return argument('a')",
        "notify(f'{argument(name)}')",
        "raise ValueError(argument('a'))",
        "self.told = marked(error)",
        "hint = f'{argument(1)}'\n    yield hint",
        "found.append(argument('a'))\n    other = found\n    return tuple(other)",
    ],
)
def test_planted_mark_is_found(line: str) -> None:
    planted = f"{IMPORT}def function(found):\n    {line}\n"
    assert len(unrendered(planted)) == 1
    rendered = planted.replace("argument(", "Message(argument)(").replace("marked(", "Message(marked)(")
    assert unrendered(rendered.replace("ValueError", "DataError")) == []


def test_hint_in_an_error_is_rendered() -> None:
    assert (
        unrendered("def f(a):\n    hint = argument('a')\n    a += hint\n    raise DataError(a + hint)") == []
    )
