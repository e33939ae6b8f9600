"""Bytes and text of files: which files are meant, how a file is decoded, and its digest.

Everything here works on any file; tables, text and series build on it.
"""

from cellerate.data.files.decoding import (
    CHUNK_BYTES,
    READ_AS,
    Errors,
    check_codec,
    check_errors,
    decoded,
    read_bytes,
    read_text,
    with_newlines,
)
from cellerate.data.files.digests import file_digest
from cellerate.data.files.paths import Paths, check_exist, check_paths, resolve_paths
from cellerate.data.files.text_encoding import likely_encoding

__all__ = [
    "CHUNK_BYTES",
    "READ_AS",
    "Errors",
    "Paths",
    "check_codec",
    "check_errors",
    "check_exist",
    "check_paths",
    "decoded",
    "file_digest",
    "likely_encoding",
    "read_bytes",
    "read_text",
    "resolve_paths",
    "with_newlines",
]
