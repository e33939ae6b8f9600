"""A packed next-token model: it generates, searches and scores texts, and runs step by step."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from cellerate.data.tokenizers import Tokenizer, tokenizer_from_config
from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_whole
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.messages import argument
from cellerate.runtime.cell import Cell
from cellerate.runtime.text.completion import Completion, complete, stream
from cellerate.runtime.text.device import check_device, step_model
from cellerate.runtime.text.sampling import sampling_rules
from cellerate.runtime.text.scoring import CONTEXT, Score, score_ids
from cellerate.runtime.text.stepper import Stepper
from cellerate.runtime.text.streaming import pieces

Errors = Literal["strict", "ignore"]


class _Sampling(TypedDict, total=False):
    """The options of `sampling_rules`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float
    repetition_penalty: float
    seed: int | None


class _Options(_Sampling, total=False):
    """The options of `PackedModel.complete`."""

    max_tokens: int
    stop: Sequence[str]
    errors: Errors
    cancelled: Callable[[], bool]


class NextTokenModel:
    """The part of `PackedModel` that reads and writes texts.

    Args:
        cell: The contents of a packed model's file.
        device: Where it runs step by step: "cpu", "cuda", or "cuda:N" with the number of an NVIDIA GPU.

    Attributes:
        cell: As given.
        device: As given.
        precision: The precision in which its matrices are kept, and in which steps multiply them; a GPU multiplies
            those of an int8 or int4 file in bfloat16.

    Raises:
        ConfigError: `device` has another form.
        BackendError: The device cannot be used; the message says why.
    """

    def __init__(self, cell: Cell, device: str = "cpu") -> None:
        check_device(device)
        self.cell = cell
        self.device = device
        self.precision = cell.precision

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a text model.

        Raises:
            ModelError: The model is of another task, or has no tokenizer, or a damaged one.
        """
        self._check_task()
        payload = self.cell.header.get("payload")
        if not isinstance(payload, dict) or "tokenizer" not in payload:
            raise ModelError(
                "this packed model has no tokenizer: give ids, or the text that it was trained on, such as "
                f"{argument('vocabulary', 'book.txt')}."
            )
        return tokenizer_from_config(payload["tokenizer"])

    @functools.cached_property
    def steps(self) -> Steps:
        """The model one time step at a time, with the state held by the caller; made at first use.

        Its weights are packed, and its products computed, in the precision of the file.

        Raises:
            ModelError: The model is not a next-token model, or not one that the device runs; the message says why.
            BackendError: The native core is not installed, or the GPU cannot be used.
        """
        self._check_task()
        return step_model(self.cell.program, self.precision, self.device)

    def stepper(self, batch_size: int = 1) -> Stepper:
        """The model as an object with its state, which you can step, clone, save, split and join.

        Args:
            batch_size: How many sequences it starts with.

        Raises:
            ModelError: The model is not a next-token model whose layers only look back; the message says why.
        """
        return Stepper(self.steps, batch_size, fingerprint=self.fingerprint)

    @overload
    def generate(self, prompt: str, **options: Unpack[_Options]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompt: Sequence[str], **options: Unpack[_Options]) -> list[str]: ...
    def generate(self, prompt: str | Sequence[str], **options: Unpack[_Options]) -> str | list[str]:
        """Continues a prompt, or several at once, and returns the continuation of each.

        Args:
            prompt: What to continue, at least one character; or several such texts.
            options: The keyword arguments of `complete`.

        Raises:
            CellerateError: See `complete`.

        Example:
            >>> cellerate.load("book.cell").generate("Well, Prince,", temperature=0.8, seed=7)
        """
        if isinstance(prompt, str):
            return self.complete([prompt], **options)[0].text
        return [completion.text for completion in self.complete(prompt, **options)]

    def complete(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 400,
        stop: Sequence[str] = (),
        errors: Errors = "strict",
        cancelled: Callable[[], bool] = lambda: False,
        **sampling: Unpack[_Sampling],
    ) -> list[Completion]:
        """Continues prompts of any lengths side by side, each as if it were alone.

        Args:
            prompts: What to continue; at least one character each.
            max_tokens: Maximum number of characters (or bytes, or tokens) to generate for each.
            stop: Texts that end a continuation; they are not part of it.
            errors: A character that the model never saw: "strict" raises, "ignore" leaves it out.
            cancelled: Asked every few hundred ids at most whether to end all continuations with what they have;
                such as the `is_set` of a `threading.Event`.
            sampling: How to draw, by any of these names.
                `temperature` divides the logits; 0 always takes the likeliest token. 1 if it is left out.
                `top_k` draws from the k likeliest tokens only.
                `top_p` draws from the likeliest tokens that together have this probability.
                `min_p` draws from tokens with at least this fraction of the likeliest one's probability.
                `repetition_penalty`, above 1, makes tokens that are already in the text less likely.
                `seed`: the same one draws the same texts, on every instruction set and number of threads in float32,
                int8 and int4; None draws different ones each time. Each prompt has its own random numbers; the first
                draws what it would draw alone.

        Returns:
            For each prompt the continuation's text, ids, log probabilities and the reason it ended.

        Raises:
            ConfigError: A prompt is empty, or a setting is out of range.
            DataError: A prompt has a character that the model never saw.
            ModelError: The model has no tokenizer, or is not a next-token model.
        """
        rules = sampling_rules(**sampling)
        if isinstance(prompts, str):
            raise ConfigError("prompts is a text; expected a list of texts.")
        ids = [self._encoded(prompt, errors) for prompt in _several(prompts, "the prompt")]
        return complete(
            self.steps,
            self.tokenizer,
            ids,
            max_tokens=[max_tokens] * len(ids),
            rules=[dataclasses.replace(rules, stream=place) for place in range(len(ids))],
            stop=stop,
            cancelled=cancelled,
        )

    def generate_text(
        self,
        prompt: str,
        *,
        max_tokens: int = 400,
        rules: SamplingRules | None = None,
        stop: Sequence[str] = (),
        errors: Errors = "strict",
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[str]:
        """Continues a prompt, piece by piece as it is drawn; the prompt itself is not repeated.

        Args:
            prompt: What to continue; at least one character.
            max_tokens: Maximum number of characters (or bytes, or tokens) to generate.
            rules: How to draw them; None for `SamplingRules()`.
            stop: Texts that end the generation; they are not shown.
            errors: A character that the model never saw: "strict" raises, "ignore" leaves it out.
            cancelled: Asked every few hundred ids at most whether to end the generation.

        Returns:
            An iterator over pieces that are safe to show: no incomplete UTF-8 character, no beginning of a stop
            text. The arguments are checked at once.

        Raises:
            ConfigError: The prompt or a stop text is empty, or `max_tokens` is not a whole number of at least 0.
            DataError: The prompt has a character that the model never saw.
            ModelError: The model has no tokenizer, or is not a next-token model.
        """
        check_whole("max_tokens", max_tokens, 0, MOST_STEPS)
        ids = self._encoded(prompt, errors)
        drawn = stream(self.steps, ids, int(max_tokens), rules or SamplingRules(), cancelled)
        return pieces(drawn, self.tokenizer, stop, ids)

    def beam_search(
        self,
        prompt: str,
        *,
        beams: int = 4,
        max_tokens: int = 100,
        stop: Sequence[str] = (),
        length_penalty: float = 1.0,
        errors: Errors = "strict",
    ) -> list[Completion]:
        """Finds the likeliest continuations; nothing is drawn.

        Args:
            prompt: What to continue; at least one character.
            beams: How many candidates are kept at each step.
            max_tokens: Maximum number of characters (or bytes, or tokens) of a continuation.
            stop: Texts that end a continuation; they are not part of it.
            length_penalty: Continuations are ranked by ln p / length ** length_penalty.
            errors: A character that the model never saw: "strict" raises, "ignore" leaves it out.

        Returns:
            The `beams` best continuations, best first.

        Raises:
            CellerateError: See `complete`.
        """
        from cellerate.runtime.text.beam import beam_search

        return beam_search(
            self.steps,
            self.tokenizer,
            self._encoded(prompt, errors),
            beams=beams,
            max_tokens=max_tokens,
            stop=stop,
            length_penalty=length_penalty,
        )

    @overload
    def score(  # type: ignore[overload-overlap]
        self, text: str, *, context: int | None = ..., errors: Errors = ...
    ) -> Score: ...
    @overload
    def score(
        self, text: Sequence[str], *, context: int | None = ..., errors: Errors = ...
    ) -> list[Score]: ...
    def score(
        self, text: str | Sequence[str], *, context: int | None = CONTEXT, errors: Errors = "strict"
    ) -> Score | list[Score]:
        """Score a text, or each of several: bits per character, id by id.

        Args:
            text: At least two characters (or bytes, or tokens); or several such texts.
            context: A long text is read in pieces side by side, and each piece starts this many ids early. None
                reads the text from beginning to end in one go, which is exact and slower.
            errors: A character that the model never saw: "strict" raises, "ignore" leaves it out.

        Raises:
            ConfigError: `context` is below 1.
            DataError: A text is too short, or has a character that the model never saw.
            ModelError: The model has no tokenizer, or is not a next-token model.

        Example:
            >>> cellerate.load("book.cell").score("Well, Prince, so Genoa").bits_per_character
        """
        texts = [text] if isinstance(text, str) else _several(text, "the text to score")
        ids = [self._encoded(one, errors, "the text to score") for one in texts]
        read = [self.tokenizer.prompt_text(one) for one in texts]
        if errors == "ignore":
            # The characters left out do not count.
            read = [self.tokenizer.known(one) for one in read]
        lengths = [len(one) for one in read]
        scores = score_ids(self.steps, ids, lengths, context=context)
        return scores[0] if isinstance(text, str) else scores

    def score_files(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        part: Literal["all", "held-out"] = "all",
        errors: Literal["strict", "replace"] = "strict",
        context: int | None = CONTEXT,
        field: str | None = None,
        encoding: str | None = None,
    ) -> Score:
        """Score the text of files of any size, read as training reads them.

        Args:
            paths: Files, folders and globs.
            part: "all", or "held-out": the share at the end that training on the same files held out.
            errors: Bytes that are not of the encoding: "strict" raises, "replace" puts U+FFFD.
            context: As for `score`.
            field: The field of JSON lines that has the text; without it, as in training.
            encoding: The encoding of the files; without it, as in training.

        Raises:
            ConfigError: `context` is below 1, or nothing is held out.
            DataError: A file cannot be used, or has a character that the model never saw.
            ModelError: The model has no tokenizer, or is not a next-token model.
        """
        from cellerate.data.files import READ_AS
        from cellerate.data.text import open_text

        self._check_tokenizer()
        payload = self.cell.header.get("payload")
        payload = payload if isinstance(payload, Mapping) else {}
        given = {
            name: value for name, value in (("field", field), ("encoding", encoding)) if value is not None
        }
        text = open_text(
            [os.fspath(path) for path in paths],
            tokenizer=self.tokenizer,
            errors=errors,
            # Files that training left out of a folder are left out here too.
            include=_texts(payload.get("include")),
            exclude=_texts(payload.get("exclude")),
            **({name: payload[name] for name in READ_AS if name in payload} | given),
        )
        ids, characters = text.ids, text.characters
        if part == "held-out":
            fraction = payload.get("validation_fraction", 0)
            if not isinstance(fraction, int | float):
                raise ModelError(f"the model's record is damaged: validation_fraction is {fraction!r:.40}.")
            ids = text.split(fraction)[1]
            if len(ids) == 0:
                raise ConfigError(
                    f"nothing is held out: the model was trained without {argument('validation_fraction')}."
                )
            characters = len(ids) if self.tokenizer.unit == "characters" else len(self.tokenizer.decode(ids))
        elif part != "all":
            raise ConfigError(f"{argument('part')} is {part!r}; expected 'all' or 'held-out'.")
        return score_ids(self.steps, [ids], [characters], context=context)[0]

    def _encoded(self, text: str, errors: Errors, what: str = "the prompt") -> np.ndarray:
        """The ids of a text, checked against the model's. Raises as `complete` does."""
        tokenizer = self.tokenizer
        if not isinstance(text, str):
            raise ConfigError(f"{what} must be a text, not {type(text).__name__}.")
        if errors not in ("strict", "ignore"):
            raise ConfigError(f"{argument('errors')} is {errors!r}; expected 'strict' or 'ignore'.")
        self._check_tokenizer()
        text = tokenizer.prompt_text(text)
        ids = tokenizer.encode(tokenizer.known(text) if errors == "ignore" else text)
        if len(ids) == 0:
            raise ConfigError(f"{what} is empty: give at least one character that the model knows.")
        return ids

    def _check_task(self) -> None:
        task = self.cell.header.get("task")
        if task in ("series", "embed"):
            what, verb = ("a forecaster", "forecast") if task == "series" else ("a model of lines", "embed")
            raise ModelError(f"this packed model is {what} and has no tokenizer of texts: use `{verb}`.")

    def _check_tokenizer(self) -> None:
        tokenizer, steps = self.tokenizer, self.steps
        if not tokenizer.vocabulary_size == steps.vocabulary_size == steps.outputs:
            raise ModelError(
                f"the model reads {steps.vocabulary_size} ids and predicts {steps.outputs}, its tokenizer "
                f"has {tokenizer.vocabulary_size}: pack it with the tokenizer that it was trained with."
            )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells models apart: what they compute and how they are kept."""
        digest = hashlib.sha256(self.precision.encode())
        for node in self.cell.program.nodes:
            digest.update(repr((node.op, dict(node.inputs), sorted(node.options.items()))).encode())
            for name, array in sorted(node.arrays.items()):
                digest.update(f"{name}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _several(given: Any, what: str) -> list[str]:
    """Several texts, not checked one by one.

    Raises:
        ConfigError: There are none: bytes, for example, would be read as a list of numbers.
    """
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"{what} must be a text or a list of texts, not {type(given).__name__}.")
    return list(given)


def _texts(value: Any) -> list[str]:
    """The file patterns in a record as `train` writes them; none if it is something else."""
    return [str(one) for one in value] if isinstance(value, list | tuple) else []
