import dataclasses

import pytest
from markdown_it import MarkdownIt

from cellerate.report import markdown
from cellerate.report.record import SampleOutput, StageRecord
from cellerate.report.tables import FigureTable, TableCell


def tokens(text):
    """What GitHub makes of it: CommonMark with tables, strikethrough and HTML."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found = []
    for token in parser.parse(text):
        found += [token, *(token.children or [])]
    return found


def test_report_of_any_run_has_no_markup_of_its_data(any_run):
    kinds = {token.type for token in tokens(markdown.markdown(any_run))}
    assert not kinds & {
        "html_block",
        "html_inline",
        "link_open",
        "image",
        "s_open",
        "em_open",
        "hr",
        "blockquote_open",
    }


def test_tables_of_any_run_are_full(any_run):
    text = markdown.markdown(any_run)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [token for token in tokens(text) if token.type == "tr_open"]
    assert len(lines) == len(rows) + sum(token.type == "table_open" for token in tokens(text))


def test_report_says_what_the_page_says(text_run):
    text = markdown.markdown(text_run)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## What to use now", "## Where the gains come from", "## Quality against latency", "## Stages",
        "## Training", "## Models", "## Samples", "## Kernels", "## Environment", "## Settings",
    ]  # fmt: skip
    assert f"**{text_run.verdict.sentence}**" in text
    assert f"```text\n{text_run.command}\n```" in text
    assert "| training | 26.3 k characters/s | 186 k characters/s | ▲\N{NO-BREAK SPACE}7.09x faster |" in text


def test_report_of_a_verdict_has_its_table_of_the_test_part(tested_run):
    text = markdown.markdown(tested_run)
    assert "Quality on the test part:" in text
    assert "| Chosen, and not kept (Packed, int8) | 1.990 (1.970 to 2.010) | 2 % worse" in text


def test_report_of_a_run_that_failed_says_why(failed_run):
    text = markdown.markdown(failed_run)
    assert (
        "**This run failed before it came to a verdict; 3 of its stages were done: Packed: ModelError" in text
    )
    assert "**Why it failed:** ModelError" in text


def test_report_of_nothing_is_short(empty_run):
    text = markdown.markdown(empty_run)
    assert "This run was interrupted" in text
    assert "##" not in text.partition("\n")[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("`a`", "\\`a\\`"),
        ("a\r\n\x00b", "a b"),
        ("# a", "\\# a"),
        ("1. a", "1\\. a"),
        ("1.5 ms", "1.5 ms"),
        ("- a", "\\- a"),
        ("[a](b)", "\\[a\\](b)"),
        ("<b>&amp;", "\\<b>\\&amp;"),
        ("per_s", "per\\_s"),
        ("a - b", "a - b"),
        ("\u202eb", "b"),
    ],
)
def test_plain_text_shows_as_it_is(text, shown):
    assert markdown.plain(text) == shown
    inline = [token for token in tokens(markdown.plain(text)) if token.type == "inline"]
    assert [child.type for child in inline[0].children if child.type != "text_special"] == ["text"] * (
        len(inline[0].children) - sum(c.type == "text_special" for c in inline[0].children)
    )


@pytest.mark.parametrize("text", ["a", "`", "``a`", "a|b", "", "` ` `"])
def test_code_in_a_table_stays_in_its_cell(text):
    table = FigureTable("c", ("a", "b"), ((TableCell(text, code=True), TableCell("next")),))
    found = tokens(markdown.table(table))
    codes = [token.content for token in found if token.type == "code_inline"]
    assert [code.strip() for code in codes] == [text.strip()]
    assert "next" in [token.content for token in found if token.type == "text"]


@pytest.mark.parametrize("text", ["a", "```", "````\n# a", "a\n```\n<b>"])
def test_block_is_not_left(text):
    (fence,) = [token for token in tokens(markdown.block(text)) if token.type == "fence"]
    assert fence.content == f"{text}\n"


def test_block_holds_nothing_that_moves_the_cursor_of_a_terminal():
    text = "a\x1b[2J\x07\r\x00\x7f\x9b\u2028\u202eb\n\tc"
    (fence,) = [token for token in tokens(markdown.block(text)) if token.type == "fence"]
    assert fence.content == "a [2J       b\n\tc\n"


def test_report_with_control_characters_in_texts_and_commands_shows_none(text_run):
    first = dataclasses.replace(
        text_run.candidates[0], sample=SampleOutput("\x1b[1mgiven", "made\x1b]0;title\x07")
    )
    run = dataclasses.replace(text_run, candidates=(first,), command="cellerate \x1b[2J")
    text = markdown.markdown(run)
    assert "given" in text and "made" in text
    assert not [c for c in text.replace("\n", "") if not c.isprintable() and c != "\N{NO-BREAK SPACE}"]


def test_note_with_newlines_is_one_point_of_the_list(text_run):
    run = dataclasses.replace(text_run, passes=(StageRecord("a", "A", "done", notes=("one\n\n# two",)),))
    assert "\n- one # two\n" in markdown.markdown(run)


def test_write_markdown_gives_the_path(text_run, tmp_path):
    path = markdown.write_markdown(text_run, tmp_path)
    assert path == tmp_path / "report.md"
    assert path.read_text() == markdown.markdown(text_run)
