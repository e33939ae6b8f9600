import pytest

from cellerate.data.text.gutenberg import has_licence, without_licence

START = "*** START OF THIS PROJECT GUTENBERG EBOOK A LONG\nTITLE ***\n"
END = "*** END OF THE PROJECT GUTENBERG EBOOK A LONG TITLE ***\nAll the terms.\n"
BOOK = "Chapter I\n\n\nIt *** was.\n"


def stripped(text: str, size: int) -> str:
    return "".join(without_licence(text[at : at + size] for at in range(0, len(text), size)))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_licence_around_a_book_is_left_out_wherever_the_chunks_are_cut(size: int) -> None:
    assert stripped(f"Header\n{START}\n\n{BOOK}\n\n\n{END}", size) == BOOK
    assert stripped(f"Header\n***START OF THE PROJECT GUTENBERG EBOOK X***\n{BOOK}{END}", size) == BOOK


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("text", ["", "\n\n", BOOK, f"{BOOK}\n\n", f"{BOOK}{END}", "PROJECT GUTENBERG EBOOK"])
def test_text_without_the_first_mark_stays_as_it_is(text: str, size: int) -> None:
    assert stripped(text, size) == text


def test_book_without_the_second_mark_keeps_its_end() -> None:
    assert stripped(f"Header\n{START}{BOOK}\n\n", 5) == f"{BOOK}\n\n"


def test_first_mark_far_behind_the_beginning_is_text() -> None:
    text = "x" * 70_000 + "\n" + START + BOOK
    assert stripped(text, 1000) == text


def test_all_chunks_are_read_so_that_a_file_can_be_hashed() -> None:
    read = []

    def chunks():
        for part in (START, BOOK, END, "more", "and more"):
            read.append(part)
            yield part

    assert "".join(without_licence(chunks())) == BOOK
    assert len(read) == 5


def test_has_licence_looks_at_the_beginning_only_and_at_utf16_too() -> None:
    assert has_licence(START.encode())
    assert has_licence(START.encode("utf-16"))
    assert not has_licence(b"x" * 70_000 + START.encode())
