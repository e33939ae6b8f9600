"""The checkpoints of a run on the disk: the last few, the newest whole one first.

A checkpoint is written under another name, flushed and renamed, and holds a checksum of all its bytes; then older ones
go. So a kill at any moment leaves at least one whole checkpoint, and a damaged disk costs the steps since the one
before.

    checkpoint-00000017.safetensors   the 17th of the run; a resumed run counts on
    unjudged                          the run has trained to its end, and its model is being judged
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from cellerate.errors import CheckpointError
from cellerate.files import check_writable, output_error
from cellerate.messages import Message, argument, marked
from cellerate.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

_UNJUDGED = "unjudged"


@contextlib.contextmanager
def judging(folder: Path) -> Iterator[None]:
    """Judge the model of a run inside a `with`. If that does not end, the run has not ended either: it can be resumed.

    Args:
        folder: The run's folder.
    """
    mark = folder / _UNJUDGED
    # A full disk must not keep a model from being judged: the mark only matters after a kill.
    with contextlib.suppress(OSError):
        mark.touch()
    yield
    with contextlib.suppress(OSError):
        mark.unlink(missing_ok=True)


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        folder: The run's folder, which the first checkpoint creates.
        keep: The number of latest checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self._folder, self._keep = folder, keep
        # The checkpoints of this run, oldest first; any others in the folder are damaged or from an earlier run.
        self._own: list[Path] = []

    def newest(
        self, on_damage: Callable[[str], None] = lambda _: None, *, arrays: bool = True
    ) -> Checkpoint | None:
        """The newest undamaged checkpoint; None if there are no checkpoints.

        That of a run whose model was not judged counts as one of a run that has yet to end.

        Args:
            on_damage: Called with a message for each newer checkpoint that is damaged.
            arrays: As in `load_checkpoint`.

        Raises:
            CheckpointError: All checkpoints are damaged.
        """
        paths = self._paths()
        failure: CheckpointError | None = None
        while paths:
            try:
                found = load_checkpoint(paths[-1], arrays=arrays)
            except CheckpointError as error:
                on_damage(Message(f"{marked(error)} Trying the checkpoint before it."))
                failure = error
                paths.pop()
                continue
            self._own = paths
            if (self._folder / _UNJUDGED).exists():
                return dataclasses.replace(found, progress={**found.progress, "finished": ""})
            return found
        if failure is not None:
            raise CheckpointError(
                f"{marked(failure)} No older one is whole. Leave {argument('resume', True)} out."
            ) from failure
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, then removes those that need not stay.

        Raises:
            OutputError: The file could not be written; those before it stay.
        """
        try:
            numbers = [int(path.stem.rpartition("-")[2]) for path in self._paths()]
        except OSError as error:
            raise output_error(self._folder, error) from error
        path = self._folder / f"checkpoint-{max(numbers, default=0) + 1:08d}.safetensors"
        save_checkpoint(path, checkpoint)
        self._own = [*self._own, path][-self._keep :]
        # A file that cannot be removed now is removed with the next checkpoint, and only costs disk space.
        with contextlib.suppress(OSError):
            for other in self._paths():
                if other not in self._own:
                    other.unlink()

    def check_writable(self) -> None:
        """Raises `OutputError` if no checkpoint could be written."""
        check_writable(self._folder / "checkpoint.safetensors")

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("checkpoint-????????.safetensors"))
