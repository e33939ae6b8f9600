import pytest

from cellerate.errors import DataError, in_a_line

TENSORFLOW = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
TypeError: `generator` yielded an element of shape (8, 12).
Traceback (most recent call last):
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DataError("the file is empty.\nAnother line"), "the file is empty."),
        (ValueError("no such layer"), "ValueError: no such layer"),
        (NotImplementedError(), "NotImplementedError"),
        (RuntimeError("\n  \nlate\n"), "RuntimeError: late"),
        (
            RuntimeError(TENSORFLOW),
            "RuntimeError: Graph execution error: TypeError: `generator` yielded an element of shape (8, 12).",
        ),
        (RuntimeError("it failed:\nfor a reason"), "RuntimeError: it failed: for a reason"),
    ],
)
def test_error_is_told_in_a_line(error: Exception, line: str) -> None:
    assert in_a_line(error) == line
