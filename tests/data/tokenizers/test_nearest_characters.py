import pytest

from cellerate.data.tokenizers.nearest_characters import nearest_known

KNOWN = "abefis .-\"*'12/\n"


@pytest.mark.parametrize(
    ("character", "nearest"),
    [
        ("é", "e"), ("É", "e"), ("B", "b"), ("\ufb01", "fi"), ("\u2026", "..."), ("\u201c", '"'), ("\u2019", "'"),
        ("\u2013", "-"), ("\u00a0", " "), ("\t", " "), ("ß", "ss"), ("7", "2"), ("0", "1"), ("\u2022", "*"),
        ("z", None), ("ж", None), ("\U0001f600", None), ("\0", None), ("\u4e2d", None),
    ],
)  # fmt: skip
def test_nearest_known_is_what_a_reader_would_take_for_it(character: str, nearest: str | None) -> None:
    assert nearest_known(character, KNOWN) == nearest
