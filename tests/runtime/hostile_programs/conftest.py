"""The memory and the time that every hostile program may take."""

import time
import tracemalloc
from collections.abc import Iterator

import pytest

MOST_BYTES = 128 << 20
MOST_SECONDS = 30.0  # tracing memory makes it all some ten times as slow


@pytest.fixture(autouse=True)
def little(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every case of this file ends at once and with little memory, whatever its outcome."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    tracemalloc.start()
    begin = time.process_time()
    yield
    seconds, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert seconds < MOST_SECONDS
