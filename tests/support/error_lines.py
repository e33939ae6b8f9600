"""The lines that a program prints when it fails."""


def one_error(err: str) -> str:
    """Return the single line of an error, and fail if anything else was printed."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]
