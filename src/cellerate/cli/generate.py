"""`cellerate generate`."""

import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json
from cellerate.cli.output import emit_json, show


def generate(
    model: Annotated[Path, typer.Argument(help="A model of `train text`, or packed.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="What to continue.", show_default=False)],
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Characters (or bytes, or tokens) to generate at most.")
    ] = 400,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 always takes the likeliest; 1 is the model's own.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest only.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the likeliest that make up this share.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed draws the same text.", show_default=False)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text; may be given again.", show_default=False)
    ] = None,
    backend: Backend = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Continue a text, shown as it is written.

    Examples:
        cellerate generate book.keras "Well, Prince," --seed 7

        cellerate generate book.cell "Chapter " -n 1000 -t 0.6 --stop "Chapter"
    """
    if model.suffix == ".cell":
        from cellerate.kernels.drawing import SamplingRules
        from cellerate.runtime.packed import load

        rules = SamplingRules(
            temperature=temperature,
            top_k=top_k,
            top_p=1.0 if top_p is None else top_p,
            seed=secrets.randbits(64) if seed is None else seed,
        )
        pieces = load(model).generate_text(prompt, max_tokens=max_tokens, rules=rules, stop=stop or ())
    else:
        start_backend(backend)
        from cellerate.runtime.sampling import Sampling
        from cellerate.tasks.text import generate_text, load_text_model

        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        text_model = load_text_model(model)
        pieces = generate_text(text_model, prompt, max_tokens=max_tokens, sampling=sampling, stop=stop or ())
    began = time.perf_counter()
    if json:
        text = "".join(pieces)
        emit_json({"prompt": prompt, "text": text, "seconds": time.perf_counter() - began})
        return
    show(prompt)
    for piece in pieces:
        show(piece)
    show("\n")
