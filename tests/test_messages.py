"""Messages name arguments as data: each reader is told in the words that he types."""

import copy
import json
import pickle

import pytest

from cellerate.errors import CellerateError, ConfigError, OutputError, in_a_line
from cellerate.messages import Message, argument, from_json, in_python, marked, reworded, to_json
from cellerate.serving.answers import ClientGoneError
from cellerate.serving.sessions.pushes import StorageError
from cellerate.serving.workers import DeadlineError


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((), "missing"),
        (("drop",), "missing='drop'"),
        (("drop", "ffill"), "missing='drop' or 'ffill'"),
        (("drop", "ffill", "mean"), "missing='drop', 'ffill' or 'mean'"),
        ((True,), "missing=True"),
        ((None,), "missing=None"),
        ((0.5,), "missing=0.5"),
        ((["a b", "c"],), "missing=['a b', 'c']"),
        (("it's \ue000",), 'missing="it\'s \\ue000"'),
    ],
)
def test_argument_is_told_in_python(values: tuple[object, ...], told: str) -> None:
    assert Message(f"Choose {argument('missing', *values)}.") == f"Choose {told}."


# Those of `cellerate.errors`, and those here that take a sentence alone, too.
KINDS = [kind for kind in CellerateError.__subclasses__() if kind.__module__ == CellerateError.__module__]


@pytest.mark.parametrize("kind", [CellerateError, *KINDS, StorageError, DeadlineError, ClientGoneError])
def test_error_is_plain_everywhere_and_keeps_its_marks(kind: type[CellerateError]) -> None:
    error = kind(f"{argument('units')} must be at least 1.")
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(one), f"{one}", one.args) == (*["units must be at least 1."] * 2, one.args)
        assert repr(one) == f"{type(error).__name__}('units must be at least 1.')"
        assert in_a_line(one) == json.loads(json.dumps(one.args[0])) == "units must be at least 1."
        assert marked(one) == f"{argument('units')} must be at least 1."
    assert type(str(error)) is str


@pytest.mark.keras
def test_error_of_a_stage_is_plain_everywhere_too() -> None:
    from cellerate.optimization.stages.base import NotNeededError

    test_error_is_plain_everywhere_and_keeps_its_marks(NotNeededError)


def test_message_is_part_of_another_with_its_marks() -> None:
    inner = OutputError(f"Leave {argument('plot')} out.")
    outer = ConfigError(f"line 3: {marked(inner)}")
    assert str(outer) == "line 3: Leave plot out."
    assert reworded(marked(outer), lambda name, _: f"--{name}") == "line 3: Leave --plot out."
    assert marked(ValueError("no marks")) == marked("no marks") == "no marks"
    assert marked(KeyError("a")) == "'a'"


@pytest.mark.parametrize(
    "text", ["\ue000", "a\ue000b\ue001", "\ue0005\ue001", "\ue000{}\ue001", "\ue001\ue000"]
)
def test_characters_of_others_stay(text: str) -> None:
    assert reworded(text, in_python) == text


def test_message_in_a_file_has_no_marks_and_comes_back_with_them() -> None:
    message = Message(f"Choose {argument('gaps', 'split')}, or leave {argument('gaps')} out.")
    written = json.dumps(to_json(message))
    assert written == '["Choose ", ["gaps", "split"], ", or leave ", ["gaps"], " out."]'
    assert marked(from_json(json.loads(written))) == marked(message)
    assert to_json("as it is") == from_json("as it is") == "as it is"
    # Of a damaged file, or one by others.
    assert [from_json(parts) for parts in (3, [], [[], 3], {})] == ["3", "", "[]3", "{}"]
