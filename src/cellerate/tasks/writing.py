"""Continues texts with a model that is opened once: `generate` continues one text, the command line several.

Keras is imported only if a model needs it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from cellerate.data.tokenizers import Vocabulary
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.messages import argument, marked
from cellerate.program import PRECISIONS
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import check_implementation
from cellerate.settings import check_choice
from cellerate.tasks.opening import Model, open_model
from cellerate.training.settings import Implementation

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord
    from cellerate.tasks.text import TextModel

Unknown = Literal["strict", "ignore"]
_OTHER_TASKS = {"series": ("a forecaster", "forecast"), "embed": ("a model of lines", "embed")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingSettings:
    """The settings of continuing texts; `cellerate.generate` describes them.

    Attributes:
        max_tokens: The most characters (or bytes, or tokens) to generate.
        rules: How they are drawn.
        stop: Texts that end the generation.
        beams: The number of candidates of a search; None draws.
        errors: What to do with characters of a prompt that the model never saw.
        implementation: What computes the logits.
        precision: The precision of the engine's matrices.
    """

    max_tokens: int = 400
    rules: SamplingRules | None = None
    stop: Sequence[str] = ()
    beams: int | None = None
    errors: Unknown = "strict"
    implementation: Implementation = "auto"
    precision: str = "float32"

    def __post_init__(self) -> None:
        """Checks what can be checked without the model.

        Raises:
            ConfigError: A setting has an invalid value, or two of them contradict each other.
        """
        check_choice("errors", self.errors, get_args(Unknown))
        check_choice("implementation", self.implementation, get_args(Implementation))
        check_choice("precision", self.precision, PRECISIONS)
        if self.beams is not None and self.implementation == "keras":
            raise ConfigError(
                f"{argument('beams')} needs the native engine, which does the search: leave "
                f"{argument('implementation', 'keras')} out."
            )


@dataclasses.dataclass(frozen=True)
class TextWriter:
    """A text model that continues prompts.

    Attributes:
        model: The model.
        settings: How it continues them.
    """

    model: PackedModel | TextModel
    settings: WritingSettings

    def readable(self, prompt: str) -> str:
        """The prompt for the model: without unknown characters if they are to be ignored."""
        return self.model.tokenizer.known(prompt) if self.settings.errors == "ignore" else prompt

    def write(self, prompt: str) -> Iterable[str]:
        """Continues a prompt, piece by piece as it is drawn; everything is checked at once.

        Raises:
            CellerateError: The prompt, a setting or the model cannot be used; see `cellerate.generate`.
        """
        prompt = self.readable(prompt)
        try:
            return self._pieces(prompt)
        except DataError as error:
            if self.model.tokenizer.known(prompt) == prompt:
                raise
            raise DataError(
                f"{marked(error)} {argument('errors', 'ignore')} leaves such characters out."
            ) from error

    def _pieces(self, prompt: str) -> Iterable[str]:
        model, how = self.model, self.settings
        if how.beams is not None:
            if not isinstance(model, PackedModel):
                from cellerate.models.storage import TaskRecord
                from cellerate.tasks.packing import packed

                device = "cuda" if how.implementation == "cellerate-cuda" else "cpu"
                record = TaskRecord("text", model.record)
                model = packed(model.model, record, precision=how.precision, device=device)
            found = model.beam_search(prompt, beams=how.beams, max_tokens=how.max_tokens, stop=how.stop)
            return [found[0].text]
        if isinstance(model, PackedModel):
            return model.generate_text(prompt, max_tokens=how.max_tokens, rules=how.rules, stop=how.stop)
        from cellerate.tasks.text import generate_text

        return generate_text(
            model,
            prompt,
            max_tokens=how.max_tokens,
            rules=how.rules,
            stop=how.stop,
            implementation=how.implementation,
            precision=how.precision,
        )


def open_writer(
    model: Model,
    settings: WritingSettings,
    *,
    record: TaskRecord | None = None,
    vocabulary: Vocabulary | None = None,
    device: str = "cpu",
) -> TextWriter:
    """Opens a model that continues texts. The arguments are those of `cellerate.generate`.

    Raises:
        CellerateError: The model cannot be used with these settings; see `cellerate.generate`.
    """
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else "this model"
    if isinstance(model, PackedModel):
        if device not in ("cpu", model.device):
            raise ConfigError(
                f"{argument('device')} is {device!r}, but the packed model is on device {model.device!r}."
            )
        device = model.device
    elif not name.endswith(".cell") and device != "cpu":
        raise ConfigError(
            f"{name} is not packed, and {argument('device', device)} is for a packed model: give "
            f"{argument('implementation', 'cellerate-cuda')} to generate on a GPU, or pack it."
        )
    if isinstance(model, PackedModel) or name.endswith(".cell"):
        check_implementation(settings.implementation, device)
    opened = open_model(model, record, device=device)
    if not isinstance(opened, PackedModel):
        from cellerate.tasks.text import text_model_of

        return TextWriter(text_model_of(*opened, vocabulary), settings)
    if opened.task in _OTHER_TASKS:
        kind, verb = _OTHER_TASKS[opened.task]
        raise ModelError(f"{name} is {kind} and writes no text. Use it with `cellerate {verb}`.")
    if vocabulary is not None:
        opened = opened.with_vocabulary(vocabulary)
    if settings.precision not in ("float32", opened.precision):
        raise ConfigError(
            f"{argument('precision')} is {settings.precision!r}, but the packed model is of {opened.precision}."
        )
    return TextWriter(opened, settings)
