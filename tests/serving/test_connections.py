"""The limit of connections: a new one closes the longest idle one, of a client above its share first."""

import contextlib
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellerate.serving.protocol import Connections, most_connections
from support.servers import plain_cell, serving


class Connection:
    def __init__(self, name: str) -> None:
        self.name, self.gone = name, False

    def give_way(self) -> None:
        self.gone = True


def several(count: int) -> list[Connection]:
    return [Connection(str(n)) for n in range(count)]


def test_longest_idle_connection_is_closed_for_a_new_one():
    connections, all_ = Connections(4), several(6)
    for n, one in enumerate(all_[:4]):
        assert connections.add(one, f"peer {n}")
    connections.note(all_[0], idle=False)
    assert connections.add(all_[4], "peer 4")
    assert [one.gone for one in all_] == [False, True, False, False, False, False]
    # After its answer the connection is idle again, last in the queue.
    connections.note(all_[0], idle=True)
    assert connections.add(all_[5], "peer 5")
    assert [one.gone for one in all_] == [False, True, True, False, False, False]


def test_client_over_its_share_loses_its_own_connections():
    connections, own, other = Connections(8), several(7), Connection("other")
    assert connections.add(other, "other")
    for one in own:
        assert connections.add(one, "crowd")
    assert [one.gone for one in own] == [True, False, False, False, False, False, False]
    assert not other.gone
    for one in own[1:]:
        connections.note(one, idle=False)
    # All connections of the crowd are busy: the crowd gets no new connection, but other clients do.
    assert not connections.add(Connection("more"), "crowd")
    assert connections.add(Connection("more"), "another")
    assert not other.gone


def test_closed_connections_are_forgotten():
    connections = Connections(4)
    for one in several(100):
        assert connections.add(one, "peer")
        connections.note(one, idle=False)
        connections.remove(one)
        connections.remove(one)
        connections.note(one, idle=True)
    assert connections.add(Connection("last"), "peer")


@pytest.mark.parametrize(("hard", "expected"), [(256, 128), (1000, 500)])
def test_connection_limit_follows_the_file_limit_of_the_system(hard, expected):
    code = (
        "import resource, sys; from cellerate.serving.protocol import most_connections;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard})); print(most_connections(500))"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the system allows fewer files")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected
    assert most_connections(1) == 1


def test_half_open_connections_do_not_block_other_clients(tmp_path: Path):
    path = plain_cell(tmp_path / "plain.cell")
    with (
        serving(path, options=("--connections", "40", "--receive-s", "30")) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(100):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
            with contextlib.suppress(OSError):
                half.sendall(b"G")
        begin = time.monotonic()
        with server.client() as http:
            for _ in range(20):
                assert http.get("/healthz").status_code == 200
        assert time.monotonic() - begin < 5
        server.until("were closed or refused")
        assert sum("were closed or refused" in line for line in server.lines) == 1
