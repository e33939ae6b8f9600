"""Records of settings as keyword arguments of functions."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.settings import check_choice, check_counts, check_number, record_of, takes_fields_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """How to cut.

    Attributes:
        paths: Files.
        length: Characters per window,
            at least one.
        column: Columns to read.
    """

    paths: Sequence[str] = ()
    length: int = 100
    column: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to build.

    Attributes:
        units: Units of each layer.
    """

    units: int = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kinds:
    """Settings of every kind.

    Attributes:
        units: Units of each layer.
        layer_norm: Whether to normalise.
        rates: Rates.
        tokenizer: A file.
    """

    units: int = 8
    layer_norm: bool = False
    rates: float | Sequence[float] = 0.5
    tokenizer: str = ""


@takes_fields_of(Cut, Model, leave_out=["paths"])
def fit(data, *, resume=False, **options):
    """Fits a model.

    Args:
        data: The data.
    """
    return record_of(Cut, options, paths=[data]), record_of(Model, options), resume


def test_each_record_gets_its_fields_and_the_function_its_own_arguments():
    cut, model, resume = fit("a.txt", length=5, units=3, resume=True)
    assert cut == Cut(paths=["a.txt"], length=5)
    assert model == Model(units=3)
    assert resume
    assert fit("a.txt")[:2] == (Cut(paths=["a.txt"]), Model())


@pytest.mark.parametrize("given", ["OT", Path("OT"), 0.5])
def test_a_single_value_stands_for_a_list_of_one(given):
    assert fit("a.txt", column=given)[0].column == (given,)
    assert fit("a.txt", column=["a", "b"])[0].column == ["a", "b"]


def test_numbers_of_numpy_and_paths_become_those_of_python():
    given = {"units": np.int64(3), "layer_norm": np.bool_(True), "rates": [np.float32(0.5), 1]}
    found = record_of(Kinds, {**given, "tokenizer": Path("t.json")})
    assert found == Kinds(units=3, layer_norm=True, rates=[0.5, 1], tokenizer="t.json")
    assert [type(value) for value in (found.units, found.layer_norm, found.rates[0])] == [int, bool, float]
    assert record_of(Kinds, {"rates": np.arange(2.0)}).rates == [0.0, 1.0]


def test_word_is_not_taken_for_a_truth():
    with pytest.raises(ConfigError, match=r"layer_norm must be True or False, not 'no'"):
        record_of(Kinds, {"layer_norm": "no"})


def test_signature_and_help_list_every_field():
    parameters = inspect.signature(fit).parameters
    assert list(parameters) == ["data", "resume", "length", "column", "units"]
    assert parameters["length"].default == 100
    assert parameters["length"].annotation is int
    assert "length: Characters per window, at least one." in fit.__doc__
    assert "units: Units of each layer." in fit.__doc__
    assert "paths" not in fit.__doc__


@pytest.mark.parametrize(
    ("name", "hint"), [("unit", r"; did you mean 'units'\?"), ("zzz", r"\."), ("paths", r"\.")]
)
def test_unknown_argument_is_refused_with_those_there_are(name, hint):
    with pytest.raises(
        ConfigError,
        match=rf"'{name}' is not an argument of fit{hint} It takes column, data, length, resume, units\.$",
    ):
        fit("a.txt", **{name: 1})


def test_checks_name_the_value_and_what_was_expected():
    check_choice("kind", "a", ("a", "b"))
    with pytest.raises(ConfigError, match="kind must be one of a, b, not 'c'"):
        check_choice("kind", "c", ("a", "b"))
    check_counts(rows=1, columns=2)
    for wrong in (0, 1.5, True, None):
        with pytest.raises(ConfigError, match="columns must be a whole number at least 1"):
            check_counts(rows=1, columns=wrong)
    check_number("rate", None, above=0, optional=True)
    for wrong in (0, 1, float("nan"), "0.5"):
        with pytest.raises(ConfigError, match="rate must be a number above 0 and below 1"):
            check_number("rate", wrong, above=0, below=1)
