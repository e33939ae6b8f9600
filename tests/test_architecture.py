"""The house rules, held by walking every import of every module; each is tried on a planted import first."""

import ast
import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
BENCHMARKS = SOURCE.parent / "benchmarks"
# A room imports what stands further down; those of one line know nothing of each other.
ORDER = [
    {"__main__"},
    {"cli"},
    {"optimization", "observe"},
    {"serving", "report", "adapters"},
    {"tasks"},
    {"compress", "exports", "distributed"},
    {"training", "runtime"},
    {"models", "data", "layers"},
    {"keras_graph"},
    {"bridges"},
    {"kernels"},
    {"machine"},
    {"format", "listener", "live_line", "measure", "files", "keywords", "program", "settings", "web"},
    {"activations"},
    {"errors"},
    {"messages"},
    {"cellerate"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FRAMEWORKS = {"tensorflow", "jax", "torch"}
KERAS_FREE = ("cellerate.runtime.", "cellerate.serving.", "cellerate.data.", "cellerate.kernels.")
KERAS_ALLOWED = {"cellerate.data.pipeline"}
KERAS_ROOMS = {"models", "layers", "keras_graph", "bridges"}
MOST_LINES = 500
MOST_SIBLINGS = 20
TESTS = SOURCE.parent / "tests"
MOST_LINES_OF_FUNCTION = 60
MOST_PARAMETERS = 8
# Their parameters are those of the libraries that call them.
CALLED_BY_LIBRARIES = {
    ("cellerate.adapters.darts", "__init__"),
    ("cellerate.adapters.darts", "predict"),
    ("cellerate.adapters.sktime", "__init__"),
}
# A docstring says "True if …", "The number of …" or "Draw …": what holds or is done.
QUESTIONS = re.compile(r"What\b|Whether\b|How\b|That\b|Which\b|The one that\b")
# What each framework, or each engine, has of its own: one idea under one name.
FAMILIES = {"Call", "Recording", "StageLink", "StagePart", "StageUpdate", "Stepper"}
# Their names are for users.
PUBLIC = ("cellerate", "cellerate.adapters")


def classes_named_alike(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The modules of each public class whose name others have, too."""
    found: dict[str, list[str]] = {}
    for module, text in texts.items():
        for node in ast.iter_child_nodes(parts(text)[0]):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1 and name not in FAMILIES}


def modules_of(folder: Path, root: Path) -> dict[str, Path]:
    """The files below a folder, by their names as modules."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in folder.rglob("*.py")
    }


FILES = modules_of(SOURCE, SOURCE)
MODULES = sorted(FILES)
BENCHMARK_FILES = modules_of(BENCHMARKS, SOURCE.parent)


@functools.cache
def parts(text: str) -> list[ast.AST]:
    """All nodes of a module's text, which is read once for all tests."""
    return list(ast.walk(ast.parse(text)))


def imports(text: str, names: Iterable[str] = MODULES) -> set[str]:
    """What a module's text imports, anywhere in it: modules of ours as far as they are one, others in full."""
    found = set()
    for node in parts(text):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    known = set(names)
    return {next((one for one in _upwards(name) if one in known), name) for name in found}


def names_from(package: str, text: str) -> set[str]:
    """The names that a module's text imports from a package, or takes from it by a dot."""
    parent, _, leaf = package.rpartition(".")
    nodes = parts(text)
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    named = {
        alias.asname or leaf
        for node in imported
        if node.module == parent
        for alias in node.names
        if alias.name == leaf
    }
    dotted = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in named
    ]
    return {alias.name for node in imported if node.module == package for alias in node.names} | {*dotted}


def _upwards(name: str) -> Iterable[str]:
    """cellerate.a.b, cellerate.a, cellerate"""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(len(parts), 0, -1))


def room(module: str) -> str:
    """The first name behind the package's."""
    return [*module.split("."), "cellerate"][1]


def broken(module: str, imported: Iterable[str]) -> list[str]:
    """What is wrong with a module's imports, in words."""
    found = []
    for name in sorted(set(imported) - {module}):
        top = name.split(".")[0]
        if top == "cellerate" and room(name) != room(module) and RANK[room(name)] <= RANK[room(module)]:
            found.append(f"{name} is not to its right")
        # And the export to a framework's own format, which only that framework writes.
        owners = rf"cellerate\.bridges\.{top}(_\w+)?"
        if top == "tensorflow":
            owners += r"|cellerate\.exports\.(savedmodel|tensorflow_operations|tensorflow_sequences)"
        if top in FRAMEWORKS and not re.fullmatch(owners, module):
            found.append(f"{name} belongs into bridges/{top}.py")
        if top == "cuda" and not re.match(r"cellerate\.kernels\.(\w+\.)?cuda\.", module):
            found.append(f"{name} belongs into kernels/*/cuda")
        if name.startswith("keras.src") and room(module) not in ("layers", "keras_graph"):
            found.append(f"{name} is undocumented Keras, which layers and keras_graph may use")
        keras_free = module.startswith(KERAS_FREE) and module not in KERAS_ALLOWED
        if keras_free and (top == "keras" or (top == "cellerate" and room(name) in KERAS_ROOMS)):
            found.append(f"{name} brings Keras along")
    return found


@functools.cache
def has_door(package: str) -> bool:
    """A folder is entered by its `__init__` if that says what it exports."""
    path = FILES.get(package)
    return path is not None and path.name == "__init__.py" and "\n__all__ = [" in path.read_text()


def past_doors(module: str, imported: Iterable[str]) -> list[str]:
    """The modules that a module imports from behind the door of a folder that it is not in."""
    folders = {name: name.rpartition(".")[0] for name in imported}
    return sorted(
        name
        for name, folder in folders.items()
        if has_door(folder) and not f"{module}.".startswith(f"{folder}.")
    )


def circle(imported: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other around a circle, in its order; empty if there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        found = next(
            filter(None, (walk(other, [*path, module]) for other in sorted(imported.get(module, ())))), []
        )
        done.add(module)
        return found

    return next(filter(None, (walk(module, []) for module in sorted(imported))), [])


def imported_by_all() -> dict[str, set[str]]:
    """Of each module what it imports of ours; the package itself, which loads names when they are used, left out."""
    texts = {module: path.read_text() for module, path in FILES.items() if module != "cellerate"}
    return {
        module: {name for name in imports(text) if name in FILES} - {module, "cellerate"}
        for module, text in texts.items()
    }


def test_every_room_has_a_place_in_the_order():
    assert {room(module) for module in MODULES} <= RANK.keys()


@pytest.mark.parametrize("module", [module for module in MODULES if module != "cellerate"])
def test_module_imports_only_to_its_right(module):
    assert broken(module, imports(FILES[module].read_text())) == []


def test_no_modules_import_each_other_in_a_circle():
    assert circle(imported_by_all()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("cellerate.layers.fused", "from cellerate.tasks import text"),
        ("cellerate.layers.fused", "from cellerate.models.storage import load_model"),
        ("cellerate.runtime.program.engine", "import cellerate.training.loop"),
        ("cellerate.files", "from cellerate.measure import time_alternating"),
        ("cellerate.kernels.native", "import jax"),
        ("cellerate.bridges.jax", "from torch import nn"),
        ("cellerate.kernels.lstm.cpu", "import cuda.core"),
        ("cellerate.training.loop", "from keras.src import backend"),
        ("cellerate.data.text.text", "import keras"),
        ("cellerate.runtime.program.engine", "from cellerate.keras_graph import graph"),
    ],
)
def test_planted_import_to_the_left_is_found(module, line):
    text = FILES[module].read_text()
    assert broken(module, imports(text)) == []
    assert len(broken(module, imports(f"{text}\ndef planted():\n    {line}\n"))) == 1


@pytest.mark.parametrize("module", [module for module in MODULES if module != "cellerate"])
def test_folder_with_a_door_is_entered_by_it(module):
    assert past_doors(module, imports(FILES[module].read_text())) == []


def test_planted_import_past_a_door_is_found():
    line = "from cellerate.data.series.build import build"
    assert past_doors("cellerate.tasks.series.train", imports(line)) == ["cellerate.data.series.build"]
    assert past_doors("cellerate.data.series.read", imports(line)) == []


@pytest.mark.parametrize(
    "package", [module for module in MODULES if has_door(module) and module not in PUBLIC]
)
def test_door_exports_only_what_is_used_behind_it(package):
    users = [path for name, path in FILES.items() if name != package and not name.startswith(f"{package}.")]
    users += BENCHMARK_FILES.values()
    used = {name for path in users for name in names_from(package, path.read_text())}
    exported = ast.literal_eval(FILES[package].read_text().partition("\n__all__ = ")[2])
    assert sorted(set(exported) - used) == []


@functools.cache
def doors_of_benchmarks() -> dict[str, set[str]]:
    """The modules by which others may enter each folder of the benchmarks."""
    texts = {name: path.read_text() for name, path in BENCHMARK_FILES.items() if path.name == "__init__.py"}
    return {
        package: {f"{package}.{name}" for name in ast.literal_eval(text.partition("\n__all__ = ")[2])}
        for package, text in texts.items()
        if "\n__all__ = " in text
    }


def entered(package: str, texts: Mapping[str, str]) -> set[str]:
    """The modules of a folder of the benchmarks that modules outside it import."""
    outside = [text for name, text in texts.items() if not name.startswith(package)]
    names = {name for text in outside for name in imports(text, BENCHMARK_FILES)}
    return {name for name in names if name.startswith(f"{package}.")}


@pytest.mark.parametrize("package", doors_of_benchmarks())
def test_folder_of_the_benchmarks_is_entered_by_the_modules_that_it_names(package):
    texts = {name: path.read_text() for name, path in BENCHMARK_FILES.items()}
    assert entered(package, texts) == doors_of_benchmarks()[package]


def test_planted_import_past_the_modules_that_a_folder_names_is_found():
    planted = {
        "benchmarks.run": "from benchmarks.gpu.sizes import V",
        "benchmarks.gpu.part": "from benchmarks.gpu import watch",
    }
    assert entered("benchmarks.gpu", planted) == {"benchmarks.gpu.sizes"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cellerate.layers.accelerate", "cellerate.layers.fused"),
        ("cellerate.kernels.lstm.cuda.plan", "cellerate.kernels.cuda.kernel"),
        ("cellerate.optimization.workloads.text", "cellerate.optimization.workloads.base"),
    ],
)
def test_planted_import_inside_a_room_that_closes_a_circle_is_found(one, other):
    imported = imported_by_all()
    assert other in imported[one] and one not in imported[other]
    imported[other] = imported[other] | {one}
    assert {one, other} <= set(circle(imported))


@pytest.mark.parametrize("module", [*MODULES, *BENCHMARK_FILES])
def test_docstrings_say_what_is_true_or_done(module):
    for node in ast.walk(ast.parse((FILES | BENCHMARK_FILES)[module].read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            told = ast.get_docstring(node) or ""
            assert not QUESTIONS.match(told), f"{module}: {told.splitlines()[0]}"


@pytest.mark.parametrize("module", [*MODULES, *BENCHMARK_FILES])
def test_module_stays_readable_and_says_what_it_is_for(module):
    text = (FILES | BENCHMARK_FILES)[module].read_text()
    assert text.count("\n") <= MOST_LINES, f"{module} has outgrown one file: make it a folder"
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"


def outgrown_tests(tests: Path) -> set[str]:
    """The modules below a folder with too many lines, and the folders in it with too many siblings."""
    modules = {path for path in tests.rglob("*.py") if path.read_text().count("\n") > MOST_LINES}
    siblings = Counter(
        path.parent for path in tests.rglob("*") if path.parent != tests and path.name != "__pycache__"
    )
    folders = {folder for folder, count in siblings.items() if count > MOST_SIBLINGS}
    return {str(path.relative_to(tests)) for path in modules | folders if "__pycache__" not in path.parts}


def test_tests_stay_readable_and_folders_of_them_small(tmp_path: Path) -> None:
    assert outgrown_tests(TESTS) == set()
    for number in range(MOST_SIBLINGS + 1):
        (tmp_path / "room" / f"part_{number}").mkdir(parents=True)
        (tmp_path / f"test_{number}.py").touch()  # beside the rooms, which are as many as they are
    (tmp_path / "test_0.py").write_text("\n" * (MOST_LINES + 1))
    assert outgrown_tests(tmp_path) == {"room", "test_0.py"}


def outgrown_sources(root: Path) -> set[str]:
    """The files of C++ and CUDA below a folder with too many lines."""
    found = [path for suffix in ("h", "cpp", "cuh") for path in root.rglob(f"*.{suffix}")]
    return {path.name for path in found if path.read_text().count("\n") > MOST_LINES}


def test_files_of_cpp_stay_readable(tmp_path: Path) -> None:
    found = set().union(*(outgrown_sources(SOURCE.parent / name) for name in ("csrc", "src", "tests")))
    assert not found
    for suffix in ("h", "cpp", "cuh", "md"):
        (tmp_path / f"long.{suffix}").write_text("\n" * (MOST_LINES + 1))
        (tmp_path / f"short.{suffix}").write_text("\n" * MOST_LINES)
    assert outgrown_sources(tmp_path) == {"long.h", "long.cpp", "long.cuh"}


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def outgrown(module: str, text: str) -> list[str]:
    """The functions of a module that are too long, or have too many parameters, with the figure."""
    found = []
    for node in parts(text):
        if not isinstance(node, _Function):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        lines = 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1
        named = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        parameters = len([name for name in named if name not in ("self", "cls")])
        if lines > MOST_LINES_OF_FUNCTION:
            found.append(f"{node.name} has {lines} lines")
        if parameters > MOST_PARAMETERS and (module, node.name) not in public_verbs() | CALLED_BY_LIBRARIES:
            found.append(f"{node.name} has {parameters} parameters")
    return found


@functools.cache
def public_verbs() -> set[tuple[str, str]]:
    """The functions that users call by many names: those of the package, and the verbs of the command line."""
    import cellerate
    from cellerate.cli.main import app

    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    verbs = [command.callback for group in groups for command in group.registered_commands]
    return {(module, name) for name, module in cellerate._EXPORTS.items()} | {
        (verb.__module__, verb.__name__) for verb in verbs
    }


@pytest.mark.parametrize("module", MODULES)
def test_function_stays_readable_and_takes_few_arguments(module):
    assert outgrown(module, FILES[module].read_text()) == []


def test_planted_function_that_has_outgrown_a_limit_is_found() -> None:
    names = [f"a{number}" for number in range(MOST_PARAMETERS + 1)]
    header = f"def {{}}(self, {', '.join(names[:4])}, *, {', '.join(names[4:])}):\n"
    lines = ["    pass\n"] * (MOST_LINES_OF_FUNCTION + 1)
    said = '    """Says what it does."""\n'
    assert outgrown("cellerate.files", header.format("many") + lines[0]) == ["many has 9 parameters"]
    assert outgrown("cellerate.files", f"async def long():\n{said}{''.join(lines)}") == ["long has 61 lines"]
    assert outgrown("cellerate.files", f"def short():\n{said}{''.join(lines[1:])}") == []
    # A public verb may take as many arguments as its users need, but not more lines.
    assert outgrown("cellerate.compress.prune", header.format("prune") + lines[0]) == []
    assert outgrown("cellerate.cli.inference.forecast", header.format("forecast") + "".join(lines)) == [
        "forecast has 61 lines"
    ]


@pytest.mark.parametrize("module", BENCHMARK_FILES)
def test_functions_of_the_benchmarks_stay_short(module):
    assert outgrown(module, BENCHMARK_FILES[module].read_text()) == []


def test_folders_stay_small():
    # The house itself has a folder a room, and the leaves.
    folders = {path.parent for path in FILES.values() if path.name == "__init__.py"}
    rooms = sorted(folders - {SOURCE / "cellerate"})
    for folder in (BENCHMARKS, *(path.parent for path in BENCHMARKS.glob("*/__init__.py")), *rooms):
        siblings = [path.name for path in folder.iterdir() if path.name != "__pycache__"]
        assert len(siblings) <= MOST_SIBLINGS, f"{folder} has outgrown one folder"


def test_class_name_has_one_meaning() -> None:
    assert not classes_named_alike({module: path.read_text() for module, path in FILES.items()})
    planted = {
        "a": "class Plan: ...",
        "b": "class Plan: ...",
        "c": "class _Plan: ...",
        "d": "class _Plan: ...",
    }
    assert classes_named_alike(planted) == {"Plan": ["a", "b"]}


def paths_named(text: str) -> Iterable[str]:
    """The paths that a page names in its code quotes, one for each alternative in braces."""
    for quoted in re.findall(r"`([\w./{},<>*-]+)`", text):
        head, *tail = re.split(r"\{([\w,]+)\}", quoted)
        some = [head] if not tail else [head + one + tail[1] for one in tail[0].split(",")]
        yield from (one for one in some if "/" in one or one.endswith((".h", ".cpp", ".py")))


def missing_paths(text: str) -> list[str]:
    """Those of the paths that no file and no folder of the project has, whole or as its end."""
    root = SOURCE.parent
    folders = (root / name for name in ("src", "csrc", "cmake", "tests", "docs", "benchmarks"))
    there = [f"/{path.relative_to(root)}" for folder in folders for path in (folder, *folder.rglob("*"))]
    return [
        name
        for name in paths_named(text)
        if not any(fnmatch.fnmatch(path, f"*/{name.rstrip('/')}") for path in there)
    ]


def test_page_of_the_architecture_names_what_is_there() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text()
    # A GRU's are to be written, and <name> is any.
    assert [name for name in missing_paths(page) if "gru" not in name and "<" not in name] == []
    rooms = {name for name in RANK if name != "cellerate"}
    named = set(re.findall(r"`(\w+)/?`", page.partition("## The rooms")[2].partition("## Words")[0]))
    assert rooms <= named
    assert missing_paths("`kernels/nothing.py` and `simd/{scalar,none}.h`") == [
        "kernels/nothing.py",
        "simd/none.h",
    ]
