"""Generates text from a trained model: on the native engine if possible, else with Keras, one step at a time.

Both draw by the same rules and random numbers, so their texts are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.errors import BackendError, ConfigError, ModelError
from cellerate.keras_graph.keras_stepper import KerasStepper
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.messages import argument
from cellerate.program import PRECISIONS
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.text import ProgramSteps, generate_ids, pieces
from cellerate.settings import check_choice
from cellerate.tasks.packing import packed
from cellerate.tasks.text.train import TextModel
from cellerate.training.settings import Implementation


def generate_text(
    model: TextModel,
    prompt: str,
    *,
    max_tokens: int = 400,
    rules: SamplingRules | None = None,
    stop: Sequence[str] = (),
    implementation: Implementation = "auto",
    precision: str = "float32",
) -> Iterator[str]:
    """Continues `prompt`, piece by piece as it is drawn; the prompt itself is not repeated.

    Args:
        model: The model and its tokenizer.
        prompt: The text to continue; at least one character.
        max_tokens: The most characters (or bytes, or tokens) to generate.
        rules: How they are drawn; None for `SamplingRules()`.
        stop: Texts that end the generation; they are not shown.
        implementation: What computes the logits. "cellerate-cpu": the native engine; the model is packed in memory,
            which takes milliseconds; if it cannot be, an error says why. "cellerate-cuda": the same on an NVIDIA
            GPU. "keras": Keras's own layers, compiled, one step at a time. "auto": the native engine, or Keras if
            the native core is not installed or cannot run the model. The core runs an Embedding (or one-hot vectors
            as wide as the output), LSTMs, causal convolutions and the layers it knows between them and the logits; it
            does not run other recurrent layers or custom layers.
        precision: The precision in which the engine keeps and multiplies matrices: "float32", "bfloat16", "int8" or
            "int4". Any but "float32" requires the engine.

    Returns:
        An iterator over pieces that are safe to show: no part of a UTF-8 character, no beginning of a stop text.
        The arguments are checked at once.

    Raises:
        ConfigError: The prompt is empty, a setting is out of range, or two of them contradict each other.
        DataError: The prompt has a character that the model never saw.
        ModelError: The model cannot be stepped (by the named implementation, if one is named), or its vocabulary
            differs from its tokenizer's.
        BackendError: "cellerate-cpu" is requested but the native core is not installed, or "cellerate-cuda" but
            there is no GPU for it.
    """
    check_choice("implementation", implementation, get_args(Implementation))
    check_choice("precision", precision, PRECISIONS)
    if implementation == "keras" and precision != "float32":
        raise ConfigError(
            f"{argument('precision')} is {precision!r}, which the native engine has: leave it or "
            f"{argument('implementation', 'keras')} out."
        )
    if implementation != "keras":
        demanded = implementation != "auto" or precision != "float32"
        device = "cuda" if implementation == "cellerate-cuda" else "cpu"
        if device == "cuda":
            from cellerate.kernels.decoder.cuda.model import check_gpu

            check_gpu(0, implementation)
        engine = _packed(model, precision, device, demanded=demanded)
        if engine is not None:
            return engine.generate_text(prompt, max_tokens=max_tokens, rules=rules, stop=stop)
    if not prompt:
        raise ConfigError("the prompt is empty: give at least one character to continue.")
    ids = model.tokenizer.encode_prompt(prompt)
    stepper = KerasStepper(model.model)
    _check_vocabulary(stepper.vocabulary_size, model.tokenizer)
    drawn = generate_ids(stepper, ids, max_tokens=max_tokens, rules=rules)
    return pieces((np.array([token]) for token in drawn), model.tokenizer, stop, ids)


def _packed(model: TextModel, precision: str, device: str, *, demanded: bool) -> PackedModel | None:
    """The model on the native engine or a GPU; None if it cannot run there and that is not `demanded`."""
    try:
        engine = packed(model.model, precision=precision, device=device)
        steps = engine.steps
        if isinstance(steps, ProgramSteps):
            steps.check_core()
    except (BackendError, ModelError):
        if demanded:
            raise
        return None
    _check_vocabulary(steps.outputs, model.tokenizer)
    # The tokenizer object itself, because rebuilding a large one from a record takes tenths of a second.
    engine.tokenizer = model.tokenizer
    return engine


def _check_vocabulary(predicted: int, tokenizer: Tokenizer) -> None:
    if predicted != tokenizer.vocabulary_size:
        raise ModelError(
            f"the model predicts {predicted} different ids, its tokenizer has {tokenizer.vocabulary_size}: give the "
            "vocabulary that the model was trained with."
        )
