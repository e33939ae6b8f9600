import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import cellerate
from cellerate import errors


def test_all_is_sorted_and_every_name_leads_to_where_it_is_defined():
    names = [name for name in cellerate.__all__ if name != "__version__"]
    assert names == sorted(names)
    for name, module in cellerate._EXPORTS.items():
        assert module.startswith("cellerate.")
        assert name in names
    # One obvious way each: a new name has to replace another, or to be worth a change of this number.
    assert len(names) <= 35


def test_type_checkers_see_every_name_where_it_is_defined():
    tree = ast.parse(Path(cellerate.__file__).read_text())
    block, otherwise = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    # A module that has a `__getattr__` would have any name.
    assert ast.unparse(otherwise.test) == "not TYPE_CHECKING"
    assert [node.name for node in otherwise.body] == ["__getattr__"]
    names = [(alias, node.module) for node in block.body for alias in node.names]
    assert {alias.asname: module for alias, module in names} == cellerate._EXPORTS
    assert all(alias.asname == alias.name for alias, _ in names)


@pytest.mark.keras
@pytest.mark.parametrize("name", cellerate.__all__)
def test_public_name_can_be_imported_and_is_documented(name):
    value = getattr(cellerate, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__ == cellerate._EXPORTS[name]
        assert value is getattr(importlib.import_module(cellerate._EXPORTS[name]), name)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cellerate.nonsense


def test_error_tree_has_an_exit_code_of_its_own_for_each_kind():
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert all(issubclass(kind, errors.CellerateError) for kind in kinds)
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5, 6, 7}


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, cellerate; "
        "print([n for n in ('keras', 'numpy', 'jax', 'torch', 'tensorflow', 'pyarrow', 'typer') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
