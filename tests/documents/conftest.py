"""How the programs run here."""

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture(scope="module", autouse=True)
def _torch_on_one_thread() -> Iterator[None]:
    """Keras's loops take ten times as long on torch's threads where another program uses one of their cores."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
