"""The house rules, held by walking every import of every module."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "cellerate"
# A package may import what stands further down, and its own kind; never what stands above.
ORDER = [
    {"cli"},
    {"optimize", "serving", "report"},
    {"tasks"},
    {"training", "compress", "export", "runtime"},
    {"models", "data", "layers"},
    {"bridges"},
    {"kernels"},
    {"errors", "config", "environment", "gpu", "measure", "files", "format", "cellerate"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
FRAMEWORKS = {"tensorflow", "jax", "torch"}
KERAS_FREE = ("runtime", "data", "kernels")
KERAS_ALLOWED = {"data/pipeline.py"}
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(module: str) -> list[str]:
    """The full names a module imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def package(module: str) -> str:
    first = module.split("/")[0].removesuffix(".py")
    return "cellerate" if first in ("__init__", "__main__") else first


def test_every_package_has_a_place_in_the_order():
    assert {package(module) for module in MODULES} <= RANK.keys()


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_to_its_right(module):
    own = package(module)
    for name in imports(module):
        if not name.startswith("cellerate."):
            continue
        other = name.split(".")[1]
        other = other if other in RANK else "cellerate"
        neighbours = RANK[other] == RANK[own] and (other == own or len(ORDER[RANK[own]]) > 0)
        assert RANK[other] > RANK[own] or neighbours, f"{module} imports {name}, which is to its left"


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_a_framework_only_in_its_bridge(module):
    for name in imports(module):
        top = name.split(".")[0]
        if top in FRAMEWORKS:
            assert re.fullmatch(rf"bridges/{top}(_\w+)?\.py", module), f"{module} imports {name}"
        if top == "cuda":
            assert module.startswith("kernels/cuda/"), f"{module} imports {name}"
        if name.startswith("keras.src"):
            assert module.startswith("layers/"), f"{module} imports {name}"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m.startswith(KERAS_FREE) and m not in KERAS_ALLOWED]
)
def test_module_that_is_deployed_or_reads_data_imports_no_keras(module):
    for name in imports(module):
        assert name.split(".")[0] != "keras", f"{module} imports {name}"
        parts = name.split(".")
        assert parts[:2] not in (
            ["cellerate", "models"],
            ["cellerate", "layers"],
            ["cellerate", "bridges"],
        ), name


@pytest.mark.parametrize("module", MODULES)
def test_module_stays_readable_and_says_what_it_is_for(module):
    text = (ROOT / module).read_text()
    assert text.count("\n") <= 440, f"{module} has outgrown one file: make it a folder"
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
