"""`cellerate generate`."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Device, Json, Vocabulary, operand, option
from cellerate.cli.output import notify, print_json, show
from cellerate.cli.prompts import at_terminal, prompts
from cellerate.cli.words import in_options
from cellerate.errors import CellerateError, ConfigError
from cellerate.messages import argument
from cellerate.training.settings import Implementation

# The options that say how to draw an id.
_DRAWING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def generate(
    context: typer.Context,
    model: Annotated[Path, operand("A model of `train text`, packed, or your own Keras model.")],
    prompt: Annotated[
        str | None, operand("What to continue. Without it: each line that you type, or of stdin.")
    ] = None,
    vocabulary: Vocabulary = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Characters (or bytes, or tokens) to generate at most.")
    ] = 400,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 always takes the likeliest; 1 is the model's own.")
    ] = 1.0,
    top_k: Annotated[int | None, option("Draw from the k likeliest only.")] = None,
    top_p: Annotated[float | None, option("Draw from the likeliest that make up this share.")] = None,
    min_p: Annotated[
        float, typer.Option(help="Draw from those at least this share as likely as the likeliest.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, makes what stands in the text already less likely.")
    ] = 1.0,
    seed: Annotated[int | None, option("The same seed draws the same text.")] = None,
    beams: Annotated[
        int | None, option("Draw nothing: search the likeliest continuation with this many candidates.")
    ] = None,
    stop: Annotated[list[str] | None, option("Stop before this text; may be repeated.")] = None,
    errors: Annotated[
        Literal["strict", "ignore"],
        typer.Option(help="Characters of the prompt that the model never saw: refuse or leave out."),
    ] = "strict",
    implementation: Annotated[
        Implementation,
        typer.Option(
            help="Who computes: cellerate-cpu, the native engine; cellerate-cuda, the same on an NVIDIA GPU (of a "
            "packed model with --device cuda); keras, step by step; auto, the first that can."
        ),
    ] = "auto",
    device: Device = "cpu",
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Continue a text, shown as it is written.

    Examples:
        cellerate generate book.keras "Well, Prince," --seed 7

        cellerate generate book.cell "Chapter " -n 1000 -t 0.6 --stop "Chapter"

        cellerate generate book.cell "Well, Prince," -n 60 --beams 8

        cellerate generate book.cell "Well, Prince," -n 100000 --device cuda

        cellerate generate mine.keras "Well, Prince," --vocabulary book.txt

        cellerate generate book.keras

        cellerate generate book.keras -n 40 < prompts.txt
    """
    from cellerate.runtime.text import sampling_rules
    from cellerate.tasks.writing import WritingSettings, open_writer

    rules = sampling_rules(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    settings = WritingSettings(
        max_tokens=max_tokens,
        rules=rules,
        stop=stop or (),
        beams=beams,
        errors=errors,
        implementation=implementation,
    )
    if beams is not None:
        _check_search(context)
    start_backend_for(model, backend)
    writer = open_writer(model, settings, vocabulary=vocabulary, device=device)

    def answer(line: str) -> None:
        # A search takes its time before its first piece.
        began = time.perf_counter()
        _write(writer.readable(line), writer.write(line), began if json else None)

    if prompt is not None:
        answer(prompt)
    elif at_terminal() and not json:
        _converse(answer)
    else:
        asked = False
        for line in prompts():
            answer(line)
            asked = True
        if not asked:
            raise ConfigError("there is no prompt: give one behind the model, or lines on stdin.")


def _write(prompt: str, pieces: Iterable[str], began: float | None) -> None:
    """Shows a prompt and what follows as it is written; or both as JSON, with the seconds since `began`."""
    if began is not None:
        text = "".join(pieces)
        print_json({"prompt": prompt, "text": text, "seconds": time.perf_counter() - began})
        return
    show(prompt)
    for piece in pieces:
        show(piece)
    show("\n")


def _converse(answer: Callable[[str], None]) -> None:
    """Continues what is typed, one line after the other; an error ends only its own line."""
    notify("Type a text to continue. Ctrl-C stops what is being written, Ctrl-D ends.")
    for line in prompts("> "):
        try:
            answer(line)
        except CellerateError as error:
            notify(f"error: {in_options(error)}")
        except KeyboardInterrupt:
            show("\n")


def _check_search(context: typer.Context) -> None:
    """Raises `ConfigError` if the command line has options beside --beams that a search cannot follow."""
    # A configuration file may set these for other calls; on the command line they would be ignored.
    sources = {name: context.get_parameter_source(name) for name in _DRAWING}
    said = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if said:
        ignored = " and ".join(argument(name) for name in said)
        raise ConfigError(
            f"{argument('beams')} draws nothing: it searches the likeliest continuation, and would ignore {ignored}. "
            f"Leave out either {argument('beams')} or what says how to draw."
        )
