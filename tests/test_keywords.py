"""The types of keyword arguments are those of the records that public functions take the fields of."""

import ast
import inspect
import typing
from collections.abc import Sequence

import pytest

from cellerate import keywords
from support.keyword_types import MODULE, keywords_of, module_text, public_functions

pytestmark = pytest.mark.keras


def test_module_is_what_the_records_say() -> None:
    written, wanted = (ast.dump(ast.parse(text)) for text in (MODULE.read_text(), module_text()))
    assert written == wanted, "the records of settings have changed: run `make keywords`"


def test_every_function_unpacks_its_own_type() -> None:
    functions = public_functions()
    assert {*functions} >= {
        "train_text",
        "train_series",
        "train_embed",
        "forecast",
        "optimize",
        "build_text_model",
    }
    for name, function in functions.items():
        kind = getattr(keywords, keywords_of(name))
        own = inspect.signature(inspect.unwrap(function)).parameters
        taken = inspect.signature(function).parameters
        assert own["options"].annotation == typing.Unpack[kind]
        assert taken.keys() - own.keys() == {*typing.get_type_hints(kind)}
        needed = {name for name, one in taken.items() if one.default is inspect.Parameter.empty}
        assert kind.__required_keys__ == needed - own.keys()


def test_a_list_may_be_a_single_entry_and_some_fields_take_more() -> None:
    series = typing.get_type_hints(keywords.TrainSeriesKeywords)
    assert series["quantile"] == float | Sequence[float]
    assert series["missing_values"] == str | float | Sequence[str | float]
    assert series["header"] == typing.Literal["auto", "yes", "no"] | bool | None
