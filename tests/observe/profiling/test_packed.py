"""A profile of a packed model: operations of a call that add up to it, and what drawing a token takes."""

from types import SimpleNamespace

import pytest

from cellerate.kernels import native
from cellerate.observe.profiling.packed import _parts, profile_packed
from cellerate.runtime.packed import load
from support.servers import embed_cell, text_cell


def test_parts_of_a_call_and_of_a_token_add_up(tmp_path):
    threads = native.num_threads()
    found = profile_packed(load(text_cell(tmp_path / "text.cell")), batch_size=2, steps=20)
    assert found.rows == 2 and found.backend.startswith("packed in float32")
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms, rel=0.01)
    assert any("lstm" in part.name for part in found.parts)
    assert [part.name.split()[0] for part in found.generation] == ["the", "sampling"]
    assert sum(part.share for part in found.generation) == pytest.approx(1)
    assert all(change.optional and change.after_ms < change.before_ms for change in found.changes)
    assert native.num_threads() == threads
    told = str(found)
    assert "where the time of a token goes" in told and found.bottleneck in told


def test_a_model_that_draws_nothing_has_no_tokens(tmp_path):
    found = profile_packed(load(embed_cell(tmp_path / "lines.cell")), changes=False)
    assert found.generation == () and found.changes == ()


@pytest.mark.parametrize("slower", [1.5, 0.5])
def test_operations_that_took_longer_than_the_call_leave_nothing_below_zero(slower):
    operation = SimpleNamespace(name="a", operation="lstm", kernel="core", seconds=1e-3, share_of_peak=None)
    found = _parts(SimpleNamespace(seconds=1e-3 / slower, operations=[operation] * 3))
    assert sum(part.ms for part in found) == pytest.approx(1 / slower)
    assert min(part.ms for part in found) >= 0
    (alone,) = _parts(SimpleNamespace(seconds=1e-3, operations=[]))
    # NumPy computes in this time.
    assert (alone.kind, alone.idle_ms, alone.share) == ("other", 0.0, 1.0)
