"""A text for the user's own `fit`: windows of ids, or streams that continue from batch to batch."""

import dataclasses
from collections.abc import Sequence
from typing import Unpack, cast

import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.files import Paths, check_paths
from cellerate.data.loaders.loader import ArrayLike, Loader, drawn_seed, is_array, numbers_of
from cellerate.data.text import TextReading, open_text
from cellerate.data.tokenizers import Tokenizer
from cellerate.data.windows import MeanOverItems, StreamBatches, TextBatches
from cellerate.errors import ConfigError, DataError
from cellerate.keywords import TextBatchesKeywords
from cellerate.messages import argument
from cellerate.settings import check_number, takes_fields_of


@dataclasses.dataclass(frozen=True)
class _TextForm:
    """The form of the batches of a text, for each part of it; see `text_batches`."""

    length: int
    batch_size: int
    stride: int | None
    carry_states: bool
    drop_last: bool
    unit: str

    def source(self, ids: np.ndarray, seed: int | None) -> BatchSource:
        """The batches of some ids."""
        if self.carry_states:
            return StreamBatches(ids, length=self.length, batch_size=self.batch_size, item=self.unit)
        plain = TextBatches(
            ids,
            length=self.length,
            batch_size=self.batch_size,
            seed=seed,
            stride=self.stride,
            drop_last=self.drop_last,
            item=self.unit,
        )
        return plain if self.drop_last else MeanOverItems(plain, len(ids) - 1)


class TextWindows(Loader):
    """A text as batches `(x, y)` of ids, the second shifted by one; see `cellerate.text_batches`.

    Attributes:
        tokenizer: What the ids mean, with its `vocabulary_size`; None for ids of your own.
        seed: The seed of the shuffle, or None.
    """

    def __init__(
        self, ids: np.ndarray, form: _TextForm, tokenizer: Tokenizer | None, seed: int | None
    ) -> None:
        self._ids, self._form = ids, form
        self.tokenizer, self.seed = tokenizer, seed
        super().__init__(form.source(ids, seed))

    def split(self, validation: float = 0.05) -> "tuple[TextWindows, TextWindows]":
        """Cut off the end of the text to validate on.

        Args:
            validation: Its share of the text, above 0 and below 1.

        Returns:
            The training part, and the validation part, in order. Unless states are carried, each id of the validation
            part but the first is predicted once, and weights make the loss the mean over these ids.

        Raises:
            ConfigError: The share is out of range.
            DataError: A part is too short for a batch.
        """
        check_number("validation", validation, above=0, below=1)
        cut = len(self._ids) - int(len(self._ids) * validation)
        held = dataclasses.replace(self._form, stride=None, drop_last=False)
        return (
            TextWindows(self._ids[:cut], self._form, self.tokenizer, self.seed),
            TextWindows(self._ids[cut:], held, self.tokenizer, None),
        )


@takes_fields_of(TextReading)
def text_batches(
    data: Paths | ArrayLike,
    length: int = 100,
    batch_size: int = 128,
    shuffle: bool = False,
    seed: int | None = None,
    *,
    stride: int | None = None,
    carry_states: bool = False,
    drop_last: bool = True,
    tokenizer: str = "characters",
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    **options: Unpack[TextBatchesKeywords],
) -> TextWindows:
    """Make batches of a text for `fit`: ids as inputs, and the same ids shifted by one as targets.

    The text is encoded once into a file that is mapped into memory, so it may have any size.

    Args:
        data: Files, folders or glob patterns; or (N,) ids of your own, whole numbers.
        length: Ids per window, T.
        batch_size: Windows per batch, B.
        shuffle: Draws the windows of each epoch in a new order, and cuts the text at another place.
        seed: The seed of that order; None draws one.
        stride: Ids between the starts of two windows; None is `length`, so that windows do not overlap.
        carry_states: Makes each row of a batch continue the same row of the previous batch, for stateful layers.
        drop_last: Leaves out the ids that do not fill a batch. False predicts each id but the first once: batches are
            `(x, y, sample_weight)` then, whose loss is the mean over ids.
        tokenizer: "characters" (the vocabulary is the text's own), "bytes", or the path of a `tokenizer.json`.
        include: Glob patterns for the files to read from folders; without any, every text file.
        exclude: Glob patterns for files and folders to leave out.
        options: How files are read, listed below.

    Returns:
        A `keras.utils.PyDataset` for `fit`, `evaluate` and `predict`: x and y are (B, T) int32. `split(validation)`
        cuts off the end to validate on, `tokenizer.vocabulary_size` is the number of ids, and the rest is as for
        `cellerate.windows`.

    Raises:
        ConfigError: An argument cannot be used.
        DataError: The text cannot be read, or is too short.

    Example:
        >>> train, validation = cellerate.text_batches("book.txt", 100, 64, shuffle=True, seed=0).split()
        >>> model.fit(train, validation_data=validation, epochs=3)
    """
    drawn = drawn_seed(shuffle, seed)
    if carry_states and (shuffle or stride is not None):
        raise ConfigError(
            f"{argument('carry_states', True)} reads the text in order, without gaps: leave {argument('shuffle')} "
            f"and {argument('stride')} out."
        )
    known: Tokenizer | None = None
    if is_array(data):
        if options:
            raise ConfigError(
                f"{', '.join(argument(name) for name in options)} say how files are read, and the data are ids: leave "
                "that out."
            )
        ids, unit = _ids_of(data), "ids"
    else:
        text = open_text(
            check_paths(cast(Paths, data)), tokenizer=tokenizer, include=include, exclude=exclude, **options
        )
        ids, known, unit = text.ids, text.tokenizer, text.tokenizer.unit
    form = _TextForm(length, batch_size, stride, carry_states, drop_last, unit)
    return TextWindows(ids, form, known, drawn)


def _ids_of(data: object) -> np.ndarray:
    """The user's own ids. Raises an error in words if one is below 0, or too large for int32."""
    ids = numbers_of("data", data)
    # Other types are refused where windows are made, and the short unsigned types hold only such ids.
    if ids.dtype.kind == "i" or ids.dtype in (np.uint32, np.uint64):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= 1 << 31:
            raise DataError(
                f"{argument('data')} holds ids from {low} to {high}; expected ids from 0 to {(1 << 31) - 1}, each the "
                "number of a row of an Embedding. Number the ids anew from 0."
            )
    return ids
