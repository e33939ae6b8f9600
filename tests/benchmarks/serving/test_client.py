"""The client of the serving case speaks as our server demands."""

from benchmarks.serving import load


def test_server_opens_the_sessions_that_the_client_asks_for(tmp_path):
    load.streams_cell(tmp_path / "streams.cell")
    asked = {"idle": 3, "connections": 2, "streams": 4, "features": load.FEATURES, "seconds": 1}
    with load.server(tmp_path, "streams.cell") as port:
        found = load.client(kind="sessions", port=port, **asked)
    assert (found["failed"], found["pushes"]) == (0, 4)
