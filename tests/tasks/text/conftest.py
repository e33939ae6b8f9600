"""A trained text model, which tests only read."""

import pytest

from support.runs.text_runs import fit


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A text model and what its training said, in a folder that tests only read."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        run = fit(folder, epochs=4)
    return folder / "m.keras", run
