import importlib
import os
import subprocess
import sys
import types

import pytest

import cellerate
from cellerate import errors


def test_all_is_sorted_and_every_name_leads_to_where_it_is_defined():
    names = [name for name in cellerate.__all__ if name != "__version__"]
    assert names == sorted(names)
    for name, module in cellerate._EXPORTS.items():
        assert module.startswith("cellerate.")
        assert name in names


@pytest.mark.keras
@pytest.mark.parametrize("name", cellerate.__all__)
def test_public_name_can_be_imported_and_is_documented(name):
    value = getattr(cellerate, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__ == cellerate._EXPORTS[name]
        found = getattr(importlib.import_module(cellerate._EXPORTS[name]), name)
        # A package that is called like the function in it takes its place once it was imported by itself.
        assert value is found or (isinstance(value, types.ModuleType) and getattr(value, name) is found)


@pytest.mark.parametrize(
    "first", ["", "import cellerate.optimize.settings; ", "from cellerate import optimize; "]
)
def test_optimize_can_be_called_whatever_was_imported_before(first):
    program = (
        f"{first}import cellerate\n"
        "try: cellerate.optimize('book.keras', data=[], nonsense=1)\n"
        "except cellerate.CellerateError as error: print(error)"
    )
    # Which backend it is makes no difference, and this one starts soonest.
    env = os.environ | {"KERAS_BACKEND": "jax"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert "'nonsense' is not a setting of optimize" in found.stdout


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cellerate.nonsense


def test_error_tree_has_an_exit_code_of_its_own_for_each_kind():
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert all(issubclass(kind, errors.CellerateError) for kind in kinds)
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5, 6, 7}


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, cellerate; "
        "print([n for n in ('keras', 'numpy', 'jax', 'torch', 'tensorflow', 'pyarrow', 'typer') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
