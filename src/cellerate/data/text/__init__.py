"""Text: books and lines of many files, encoded once into a file that is mapped into memory, and batches of lines.

`open_text` reads a book or a folder; `LineBatches` batches lines of any lengths.
"""

from cellerate.data.text.in_memory import TextLines, given_lines
from cellerate.data.text.line_files import find_line_files, line_blocks, read_lines
from cellerate.data.text.lines import (
    BOS,
    BOUND_MULTIPLE,
    EOS,
    PAD,
    LineBatches,
    LineVocabulary,
    encode_batches,
)
from cellerate.data.text.text import EncodedText, TextReading, open_text

__all__ = [
    "BOS",
    "BOUND_MULTIPLE",
    "EOS",
    "PAD",
    "EncodedText",
    "LineBatches",
    "LineVocabulary",
    "TextLines",
    "TextReading",
    "encode_batches",
    "find_line_files",
    "given_lines",
    "line_blocks",
    "open_text",
    "read_lines",
]
