"""Measuring processes from the caller's side; `test_probe_process.py` tests their answers."""

from pathlib import Path

import pytest

from cellerate.data.series.columns import MissingColumnError
from cellerate.errors import DataError, ModelError
from cellerate.optimization import probe_client
from cellerate.optimization.probe_client import MeasuringProcess, ProbeError
from cellerate.optimization.probe_process import _public_name


def test_ctrl_c_during_a_process_start_stays_ctrl_c_on_close(monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    process = MeasuringProcess("a.module", {}, backend="torch")
    monkeypatch.setattr(probe_client.subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.start()
    finally:
        process.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MissingColumnError(Path("t.csv"), "nope", "targets", ["y"]), DataError),
        (ModelError("it is odd"), ModelError),
        (ValueError("of a backend"), None),
    ],
)
def test_error_of_the_process_has_the_class_that_callers_know(error, kind):
    """The class may have a base in `errors`, and then the exit code is that of the base."""
    found = ProbeError(str(error), memory=False, kind=_public_name(error)).original
    assert type(found) is (kind or type(None))
    assert found is None or str(found) == str(error)


def test_unstarted_process_can_be_closed():
    MeasuringProcess("a.module", {}, backend="torch").close()
