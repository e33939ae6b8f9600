"""An open packed model, as `cellerate.load` returns it: the public face of the runtime.

`cell` reads the file and `engine` runs the program. Neither Keras nor a framework is needed.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cellerate.data.tokenizers import HAS_OWN_VOCABULARY, Vocabulary, open_vocabulary
from cellerate.errors import ConfigError, ModelError
from cellerate.runtime.cell import Cell, read_cell
from cellerate.runtime.program import Engine, Inputs, Out, Stepping, stepping_of
from cellerate.runtime.record import Recorded
from cellerate.runtime.text import NextTokenModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from cellerate.data.tables import Frame, Tables
    from cellerate.data.text import TextLines
    from cellerate.runtime.embedding import Embedder
    from cellerate.runtime.explanation import ProgramExplanation
    from cellerate.runtime.forecast import Example, Forecaster
    from cellerate.runtime.prepared_call import PreparedCall
    from cellerate.runtime.streams import Streams


def load(
    path: str | os.PathLike[str], *, device: str = "cpu", public_key: str | os.PathLike[str] | None = None
) -> PackedModel:
    """Opens a packed model, checking every byte of it; needs neither Keras nor a framework.

    Args:
        path: A `.cell` file that `cellerate pack` or `cellerate.pack` wrote.
        device: Where to generate, score and step: "cpu", "cuda", or "cuda:N" with the number of an NVIDIA GPU,
            from Hopper on. `predict`, `embed` and `forecast` always run on the CPU.
        public_key: A file with the public key (PEM, Ed25519) that must have signed the model; None for the file that
            the variable CELLERATE_PUBLIC_KEY names, if it is set.

    Raises:
        BackendError: The requested GPU cannot be used (the message says why), or the package that checks signatures
            is not installed.
        ConfigError: `device` has another form, or `public_key` does not hold such a key.
        DataError: There is no such file, it is not a `.cell` file, it was changed since it was written, or it is not
            signed by that key.
        ModelError: The program in it cannot be run.

    Example:
        >>> model = cellerate.load("book.cell")
        >>> model.generate("Well, Prince,", temperature=0.8, seed=7)
    """
    return PackedModel(read_cell(path, public_key), device)


class PackedModel(Recorded, NextTokenModel):
    """A packed model; several threads may use one.

    The attributes of one task (`features`, `targets`, `window`, `horizon` and `quantiles` of a forecaster,
    `vocabulary_size` of a text or line model) are None for models of other tasks.

    Args:
        cell: What its file holds.
        device: Where to generate, score and step, as `load` takes it.

    Attributes:
        cell: The argument.
        device: The argument.
        task: "text", "series" or "embed"; None for a model that Cellerate did not train.
        parameters: The number of its weights; one that is shared counts once.
        precision: How its matrices are kept and multiplied; without the native core, they are multiplied in float32.
        inputs: The shape of each input by its name, the batch first; -1 where a size is free.
        outputs: The names of the outputs.

    Raises:
        BackendError: The requested GPU cannot be used.
        ConfigError: `device` has another form.
        DataError: The task in the header is not a string.
        ModelError: The program cannot be run.
    """

    def __init__(self, cell: Cell, device: str = "cpu") -> None:
        Recorded.__init__(self, cell)
        NextTokenModel.__init__(self, cell, device)
        self._engine = Engine(cell.program, cell.precision)
        nodes = cell.program.nodes
        self.inputs: dict[str, Any] = {n: nodes[at].options["shape"] for n, at in cell.program.inputs.items()}
        self.outputs = tuple(cell.program.outputs)

    def predict(
        self, inputs: Inputs, outputs: Sequence[str] | None = None, *, out: Out = None
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Compute the result of Keras's `model.predict`, in the precision of the file.

        Args:
            inputs: The array of each input by its name, or one array if there is one input; the batch first, any
                number of rows. NumPy and Arrow arrays, and tensors of a framework on the CPU (DLPack), are taken
                without a copy; of these, C-contiguous float32 numbers and int32 ids are read in place.
            outputs: Which outputs to compute; None for all.
            out: Where the result goes, (B, ...) float32; if there are several, arrays by name. None for new arrays.

        Returns:
            The output, or the outputs by name if there are several; those of `out` if it is given.

        Raises:
            ConfigError: A name is not one of the model's.
            DataError: An array has the wrong shape or type, or holds an id that the model does not know.
        """
        results = self._engine.run(inputs, outputs, out)
        return next(iter(results.values())) if len(results) == 1 else results

    def result_sizes(
        self, shapes: Mapping[str, tuple[int, ...]], outputs: Sequence[str] | None = None
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the size of the results of `predict`, from the shapes of the inputs alone: nothing is computed.

        Args:
            shapes: The shape of each input by its name, the batch first.
            outputs: As `predict` takes them.

        Returns:
            The shape and the dtype of each output by its name.

        Raises:
            ConfigError: A name is not one of the model's, or an input is missing.
            DataError: A shape does not fit the model.

        Example:
            >>> cellerate.load("ett.cell").result_sizes({"series": (32, 96, 7)})
            {'forecast': ((32, 24, 1), 'float32')}
        """
        return self._engine.result_sizes(shapes, outputs)

    def prepared(
        self, batch: int = 1, steps: int | None = None, outputs: Sequence[str] | None = None
    ) -> PreparedCall:
        """The model for batches of one size, for loops that call it again and again; it is run once to prepare.

        Args:
            batch: Rows of a call.
            steps: Time steps of a call; None if the model has a fixed number of them, or none.
            outputs: Which outputs to compute; None for all.

        Returns:
            A function of an array, or of arrays by name, and `out`; its `inputs` and `outputs` say their shapes.

        Raises:
            ConfigError: A size does not fit the model, or a name is not one of its outputs.
            DataError: The model does not take batches of this size.

        Example:
            >>> forecast = cellerate.load("ett.cell").prepared(steps=96)
            >>> forecast(window)  # (1, 96, features) float32
        """
        from cellerate.runtime.prepared_call import PreparedCall

        return PreparedCall(self._engine, batch, steps, outputs)

    def explain(
        self, batch: int = 1, steps: int | None = None, outputs: Sequence[str] | None = None
    ) -> ProgramExplanation:
        """Explain how `predict` runs here, with the time of each operation; measure for about a second.

        Args:
            batch: Rows of the measured call.
            steps: Its time steps; None for 100 where the model takes any number.
            outputs: Which outputs to compute; None for all.

        Returns:
            The explanation; print it, or take `to_dict()`.

        Raises:
            ConfigError: A size does not fit the model, or a name is not one of its outputs.
            DataError: The model does not take batches of this size.
        """
        from cellerate.runtime.explanation import explain

        return explain(self._engine, self.precision, batch, steps, outputs)

    def embed(
        self,
        lines: TextLines,
        *,
        batch_size: int = 256,
        errors: Literal["strict", "replace"] = "strict",
        progress: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """Return one vector a line, with a packed model of `train embed`.

        Args:
            lines: N lines as a list, an array, a column, or a table with one; an empty one has a vector, too.
            batch_size: Lines a batch; lines of similar length share one.
            errors: A character the model never saw: "strict" raises, "replace" reads it as unknown.
            progress: Called after each batch with the number of lines done and their total.

        Returns:
            (N, latent) float32, in the order of the lines.

        Raises:
            ConfigError: An argument has a value it cannot have.
            DataError: There is no line, or a character is unknown.
            ModelError: This is not a line model, or its record is damaged.

        Example:
            >>> vectors = cellerate.load("lines.cell").embed(["red hat", "blue"])
        """
        return self._embedder.embed(lines, batch_size=batch_size, errors=errors, progress=progress)

    def forecast(
        self,
        rows: npt.ArrayLike | Frame | Sequence[Frame],
        *,
        future: npt.ArrayLike | Frame | Sequence[Frame] | None = None,
        times: npt.ArrayLike | None = None,
        series: str | Sequence[str] | None = None,
    ) -> np.ndarray:
        """Forecast the rows after the end of a series, with a packed model of `train series`.

        Args:
            rows: (T, features) or (B, T, features), in the units of the data, with the features of the training;
                the last `window` of the T rows are used. Of a frame (pandas, polars, Arrow, a dict of columns) the
                features are taken by name, and a list of frames is B windows.
            future: (horizon, K) or (B, horizon, K), the K columns that are known in advance (`future` of the
                training), in the units of the data, or frames as `rows`; only for a model that has some.
            times: (T,) or (B, T) datetime64 in local time, ending with the times of the window and of the horizon;
                only for a model that sees a calendar.
            series: The name of the series, or of each of the B; only for a model that tells series apart. A series
                without a name, or with a name that the training did not have, is forecast as an unknown series.

        Returns:
            (horizon, targets) or (B, horizon, targets), with quantiles (..., Q); float64, in the same units.

        Raises:
            ConfigError: An argument is for another kind of model.
            DataError: An array has the wrong shape or type, too few rows, or a number that is NaN or infinite, or one
                that the model needs is missing.
            ModelError: This is not a forecaster, or its record is damaged.

        Example:
            >>> cellerate.load("ett.cell").forecast(readings[-96:])
        """
        return self.forecaster.forecast(rows, future, times, series)

    def forecast_files(
        self,
        paths: Tables,
        *,
        levels: Sequence[float] | None = None,
        future: Tables | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[Example, ...]:
        """Forecast the rows after the end of each series in files or frames, which are read as in training.

        Args:
            paths: Tables, in files or frames; the last `window` rows of each series are used.
            levels: The levels of intervals; see `cellerate.forecast`.
            future: A table of the columns that are known in advance, with the time of each row and its series; None
                takes them from rows without targets at the end of the files.
            progress: Called now and then with the number of series done and their total.

        Returns:
            One `Example` a series, without truth.

        Raises:
            BackendError: The package `pyarrow` is not installed, and the files are CSV or Parquet.
            DataError: A file cannot be used, or a series has fewer than `window` rows after its last gap.
            ModelError: This is not a forecaster, or its record is damaged.

        Example:
            >>> cellerate.load("ett.cell").forecast_files(["ETTh1.csv"])[0].forecast
        """
        from cellerate.runtime.forecast import forecast_with_intervals

        made = self.forecaster
        return forecast_with_intervals(
            made.predict, made.settings.open(paths, future), made.settings, progress, levels
        )

    def with_vocabulary(self, vocabulary: Vocabulary) -> PackedModel:
        """Return this model with a vocabulary, if it was packed without one; the weights are shared.

        Args:
            vocabulary: The path of the training text, a list of its characters in the order of their ids, or another
                form that `data.tokenizers.open_vocabulary` takes.

        Raises:
            ConfigError: The model has its own, or the vocabulary has no such form.
            DataError: The file cannot be used.
            ModelError: The model is not a next-token model, or predicts another number of ids.

        Example:
            >>> cellerate.load("mine.cell").with_vocabulary("book.txt").generate("Well, ")
        """
        if self.task == "text":
            raise ConfigError(HAS_OWN_VOCABULARY)
        tokenizer = open_vocabulary(vocabulary, self.steps.outputs)
        made = copy.copy(self)
        made.tokenizer = tokenizer
        return made

    def streams(self, count: int = 1) -> Streams:
        """Return streams through the model, each with its own state: push steps as they come, get the outputs so far.

        Args:
            count: The number of streams at the start; more can join.

        Raises:
            ConfigError: `count` is not a whole number from 0 on.
            ModelError: A layer needs steps that are still to come; the message names it.

        Example:
            >>> streams = cellerate.load("any.cell").streams(100)
            >>> outputs = streams.push(new_steps)  # (100, k, features) to what predict would give up to here
        """
        from cellerate.runtime.streams import Streams

        return Streams(*self._stepping, count, self.fingerprint)

    @functools.cached_property
    def _stepping(self) -> tuple[Stepping, Engine]:
        made = stepping_of(self.cell.program)
        return made, Engine(made.program, self.precision)

    @functools.cached_property
    def _embedder(self) -> Embedder:
        from cellerate.runtime.embedding import Embedder

        return Embedder(self._of_task("embed", "embed"), self._engine)

    @functools.cached_property
    def forecaster(self) -> Forecaster:
        """The model as a forecaster. Raises `ModelError` if it is not one."""
        from cellerate.runtime.forecast import Forecaster

        return Forecaster(self._of_task("series", "forecast"), self._engine)

    def _of_task(self, task: str, verb: str) -> Cell:
        if self.task != task:
            known = "is not known" if self.task is None else f"is {self.task!r:.40}"
            raise ModelError(
                f"this packed model's task {known}, but {verb} needs a model of the task {task!r}: "
                f"train one with `cellerate train {task}`."
            )
        return self.cell
