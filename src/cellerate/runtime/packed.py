"""A packed model in use: what `cellerate.load` gives, without Keras or a framework.

A module of its own because it is the face of the runtime; the file is `cell`'s, the arithmetic `engine`'s.
"""

import functools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.tokenizer import Tokenizer, tokenizer_from_config
from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.drawing import SamplingRules
from cellerate.kernels.stepping import StepModel
from cellerate.runtime.cell import Cell, read_cell
from cellerate.runtime.engine import Engine
from cellerate.runtime.next_token import chain_of
from cellerate.runtime.streaming import shown, until_stop

# Ids drawn in one native call: few at first, so that the first words show at once.
_FIRST_DRAWN, _MOST_DRAWN = 8, 256


def load(path: str | os.PathLike[str]) -> "PackedModel":
    """Opens a packed model, checking every byte of it; needs neither Keras nor a framework.

    Args:
        path: A `.cell` file, of `cellerate pack` or `cellerate.pack`.

    Raises:
        DataError: There is no such file, it is no `.cell` file, or it was changed since it was written.

    Example:
        >>> model = cellerate.load("book.cell")
        >>> model.generate("Well, Prince,", temperature=0.8, seed=7)
    """
    return PackedModel(read_cell(path))


class PackedModel:
    """A packed model; several threads may use one.

    Args:
        cell: What its file holds.

    Attributes:
        cell: The same.
        task: "text", "series" or "embed"; None for a model that Cellerate did not train.
        precision: How its matrices are kept. Computed is in float32.
        inputs: The shape of each input by its name, the batch first; -1 where a size is free.
        outputs: The names of the outputs.

    Raises:
        DataError: The file's program cannot be run.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.precision = cell.precision
        self.task: str | None = cell.header.get("task")
        self._engine = Engine(cell.program)
        nodes = cell.program.nodes
        self.inputs: dict[str, Any] = {n: nodes[at].options["shape"] for n, at in cell.program.inputs.items()}
        self.outputs = tuple(cell.program.outputs)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """What the ids of a text or line model mean.

        Raises:
            ModelError: The model has none, or a damaged one.
        """
        payload = self.cell.header.get("payload")
        if not isinstance(payload, dict) or "tokenizer" not in payload:
            raise ModelError(
                "this packed model has no tokenizer: give ids, or pack a model that `cellerate train` made."
            )
        return tokenizer_from_config(payload["tokenizer"])

    def predict(
        self, inputs: Mapping[str, np.ndarray] | np.ndarray, outputs: Sequence[str] | None = None
    ) -> np.ndarray | dict[str, np.ndarray]:
        """What Keras's `model.predict` gives, to float32's precision or that of the file.

        Args:
            inputs: The array of each input by its name, or one array where there is one input; the batch first,
                any number of rows.
            outputs: Which outputs to compute; None for all.

        Returns:
            The output, or the outputs by name where there are several.

        Raises:
            ConfigError: A name is not one of the model's.
            DataError: An array has another shape or type, or an id that the model does not know.
        """
        results = self._engine.run(inputs, outputs)
        return next(iter(results.values())) if len(results) == 1 else results

    @functools.cached_property
    def steps(self) -> StepModel:
        """The model a time step at a time, its state held by the caller; made when it is first asked for.

        Its weights are packed in the precision of the file, and so its products are computed.

        Raises:
            ModelError: The model is no next-token chain; the message says why.
            BackendError: The native core is not installed.
        """
        return StepModel(chain_of(self.cell.program), precision=self.precision)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 400,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> str:
        """Continues `prompt` and returns the whole continuation; `generate_text` gives it piece by piece.

        Args:
            prompt: What to continue; at least one character.
            max_tokens: Characters (or bytes, or tokens) to generate at most.
            temperature: Divides the logits; 0 always takes the likeliest.
            top_k: Draws from the k likeliest only.
            top_p: Draws from the likeliest that make up this share.
            min_p: Draws from those at least this share as likely as the likeliest.
            repetition_penalty: Above 1, makes what stands in the text already less likely.
            seed: The same seed draws the same text, on every instruction set and number of threads in float32
                and int8; None draws another each time.
            stop: Texts that end the generation; they are not returned.

        Raises:
            ConfigError: The prompt is empty, or a setting is out of range.
            DataError: The prompt has a character that the model never saw.
            ModelError: The model has no tokenizer, or is no next-token model.

        Example:
            >>> cellerate.load("book.cell").generate("Well, Prince,", temperature=0.8, seed=7)
        """
        rules = SamplingRules(
            repetition_penalty=repetition_penalty,
            temperature=temperature,
            top_k=top_k,
            top_p=1.0 if top_p is None else top_p,
            min_p=min_p,
            seed=secrets.randbits(64) if seed is None else seed,
        )
        return "".join(self.generate_text(prompt, max_tokens=max_tokens, rules=rules, stop=stop))

    def generate_text(
        self,
        prompt: str,
        *,
        max_tokens: int = 400,
        rules: SamplingRules | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Continues `prompt`, piece by piece as it is drawn; the prompt itself is not repeated.

        Args:
            prompt: What to continue; at least one character.
            max_tokens: Characters (or bytes, or tokens) to generate at most.
            rules: How they are drawn; None for `SamplingRules()`.
            stop: Texts that end the generation; they are not shown.

        Returns:
            An iterator over pieces that are safe to show: no half of a UTF-8 character, no beginning of a stop
            text. The arguments are checked at once.

        Raises:
            ConfigError: The prompt or a stop text is empty, or `max_tokens` is no whole number of at least 0.
            DataError: The prompt has a character that the model never saw.
            ModelError: The model has no tokenizer, or is no next-token model.
        """
        if not prompt:
            raise ConfigError("the prompt is empty: give at least one character to continue.")
        if any(not text for text in stop):
            raise ConfigError("a stop text is empty: it would end every generation at once.")
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int | np.integer) or max_tokens < 0:
            raise ConfigError(f"max_tokens must be an integer of at least 0, got {max_tokens!r}.")
        ids = self.tokenizer.encode(prompt)
        if not self.tokenizer.vocabulary_size == self.steps.vocabulary_size == self.steps.outputs:
            raise ModelError(
                f"the model reads {self.steps.vocabulary_size} ids and predicts {self.steps.outputs}, its tokenizer "
                f"has {self.tokenizer.vocabulary_size}: pack it with the tokenizer that it was trained with."
            )
        drawn = self._drawn(ids, int(max_tokens), rules or SamplingRules())
        return until_stop(shown(drawn, self.tokenizer), stop)

    def _drawn(self, ids: np.ndarray, left: int, rules: SamplingRules) -> Iterator[int]:
        steps, position, count = self.steps, 0, _FIRST_DRAWN
        if left == 0:
            return
        state, logits = steps.read(steps.initial_state(), ids[None])
        following = logits[0]
        while left > 0:
            found, _, state, following = steps.generate(
                state, following, min(count, left), rules, position=position, previous=ids
            )
            yield from found.tolist()
            left, position, count = left - len(found), position + len(found), min(2 * count, _MOST_DRAWN)
            if rules.repetition_penalty != 1:
                ids = np.concatenate([ids, found])
