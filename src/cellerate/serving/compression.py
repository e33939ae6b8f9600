"""Compression of bodies with gzip or deflate: decompresses within a bound, compresses for clients that ask."""

from __future__ import annotations

import gzip
import zlib

from cellerate.serving.answers import RequestError

# Smaller bodies are not worth compressing.
_LEAST = 1024
# More of them cost more than they hold.
_MOST_MEMBERS = 64
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body without its `Content-Encoding`.

    Args:
        body: The body.
        encoding: The header's value.
        most: The most bytes of the result.

    Raises:
        RequestError: The encoding is unknown, the body is damaged, or the result is too large.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise RequestError(415, f"the body is packed as {encoding!r:.40}; expected gzip or deflate.")
    found, left = b"", body
    # RFC 1952 lets several members follow one another; of deflate there is one.
    for _ in range(_MOST_MEMBERS if encoding == "gzip" else 1):
        unpacker = zlib.decompressobj(_WINDOWS[encoding])
        try:
            found += unpacker.decompress(left, most + 1 - len(found))
        except zlib.error as error:
            raise RequestError(400, f"the body is damaged {encoding}: {error}.") from error
        if len(found) > most:
            raise RequestError(413, f"the body has more than {most} bytes when it is unpacked; send less.")
        if not unpacker.eof:
            raise RequestError(400, f"the body is damaged {encoding}: its end is missing.")
        left = unpacker.unused_data
        if not left:
            return found
    raise RequestError(400, f"the body is damaged {encoding}: something follows its end.")


def packed(body: bytes, accepted: str) -> tuple[bytes, str | None]:
    """Return a body compressed as a client asks, with the encoding; unchanged with None if it is not worth it.

    Args:
        body: The body.
        accepted: The value of `Accept-Encoding`.
    """
    names = [each.split(";")[0].strip() for each in accepted.split(",")]
    if len(body) < _LEAST:
        return body, None
    if "gzip" in names:
        return gzip.compress(body, 1, mtime=0), "gzip"
    if "deflate" in names:
        return zlib.compress(body, 1), "deflate"
    return body, None
