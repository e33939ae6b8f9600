"""`cellerate train text`."""

import dataclasses
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.figures import judged_on
from cellerate.cli.options import Backend, Json, Output, Quiet, Resume, operand, option, with_settings
from cellerate.cli.output import notify, print_json, print_result
from cellerate.cli.running import (
    Overwrite,
    finish_training,
    start_training,
    training_display,
    training_report,
)
from cellerate.distributed.settings import ProcessSettings
from cellerate.tasks.presets import Preset, preset_options, preset_sentence
from cellerate.tasks.settings import TextArchitecture, TextOptions
from cellerate.training.settings import TrainingSettings


@with_settings("data", TextOptions, leave_out=["paths"], panel="Text")
@with_settings("architecture", TextArchitecture, panel="Model")
@with_settings("training", TrainingSettings, panel="Training")
@with_settings("parallel", ProcessSettings, panel="Processes")
def train_text(
    context: typer.Context,
    paths: Annotated[list[str], operand("Text files, folders or glob patterns.")],
    output: Output,
    data: TextOptions,
    architecture: TextArchitecture,
    training: TrainingSettings,
    parallel: ProcessSettings,
    model: Annotated[Path | None, option("Train this .keras model instead of building one.")] = None,
    preset: Annotated[
        Preset | None, option("A size of model with the settings to train it; options given beside it win.")
    ] = None,
    sample: Annotated[str | None, option("Generate from this prompt before and after training.")] = None,
    sample_every: Annotated[
        int | None,
        option(
            "Show what the model writes after so many steps and after each epoch, from the prompt of --sample "
            "or the beginning of the held-out part."
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a next-character model on text.

    Examples:
        cellerate train text book.txt -o book.keras

        cellerate train text src/ --include '*.py' --preset medium --layers 2 -o code.keras

        cellerate train text posts.jsonl --field body --sample-every 500 -o posts.keras

        cellerate train text book.txt -o book.keras --resume
    """
    began = time.perf_counter()
    if preset is not None:
        architecture, training, said = _with_preset(preset, context, model, architecture, training)
        if not quiet:
            notify(said)
    several = start_training(backend, parallel, paths, output, quiet, resume=resume, overwrite=overwrite)
    from cellerate.kernels.decoder.sampling import SamplingRules
    from cellerate.tasks.text import TextModel, generate_text, load_text_model, train_on_text
    from cellerate.training.run import RunOptions

    def show_sample(title: str, text_model: TextModel) -> None:
        if sample is not None:
            pieces = generate_text(
                text_model, sample, max_tokens=300, rules=SamplingRules(temperature=0.6, seed=training.seed)
            )
            notify(f"--- sample {title} ---\n{sample}{''.join(pieces)}\n---")

    def on_ready(untrained: TextModel) -> None:
        if not quiet:
            notify(
                f"{untrained.record['data']['characters']:,} characters, vocabulary of "
                f"{untrained.tokenizer.vocabulary_size}, {untrained.model.count_params():,} weights"
            )
        # The untrained weights may lie in arrays that span all processes.
        if not several:
            show_sample("before training", untrained)

    with training_display(quiet, output, "reading", in_bytes=True) as display:
        run = train_on_text(
            dataclasses.replace(data, paths=paths),
            RunOptions(
                output=output,
                training=training,
                resume=resume,
                overwrite=overwrite,
                sample_every=sample_every,
                display=display,
                began=began,
            ),
            architecture=architecture,
            model=model,
            prompt=sample,
            on_ready=on_ready,
        )
    report = {"training": training_report(run.training), "held_out": run.evaluation}
    if sample is not None and run.training.can_be_judged:
        show_sample("after training", load_text_model(output))
    if json:
        print_json(report)
    elif run.evaluation is not None:
        _print_quality(run.evaluation, run.tokenizer.unit, quiet)
    finish_training(
        run.training,
        quiet,
        next_steps=[
            f'cellerate generate {shlex.quote(str(output))} "..."',
            f"cellerate explain {shlex.quote(str(output))}",
        ],
    )


def _with_preset(
    preset: Preset,
    context: typer.Context,
    model: Path | None,
    architecture: TextArchitecture,
    training: TrainingSettings,
) -> tuple[TextArchitecture, TrainingSettings, str]:
    """The settings with those of a preset where the user gave none, and the preset in words."""
    chosen = preset_options(preset, _given(context), model=model)
    sizes = {name: value for name, value in chosen.items() if hasattr(architecture, name)}
    others = {name: value for name, value in chosen.items() if name not in sizes}
    return (
        dataclasses.replace(architecture, **sizes),
        dataclasses.replace(training, **others),
        preset_sentence(preset, chosen),
    )


def _print_quality(evaluation: Mapping[str, Any], unit: str, quiet: bool) -> None:
    """Prints how well the model predicts the held-out text, and notes what to compare that with."""
    print_result(f"held-out: {evaluation['bits_per_character']:.3f} bits per character")
    if "sampled_from" in evaluation:
        print_result(f"judged on {judged_on(evaluation, 'tokens', unit)}")
    if quiet:
        return
    if not evaluation["verdict"]["beats_counting"]:
        notify(evaluation["verdict"]["sentence"])
    notify(
        f"for comparison: {evaluation['unigram_bits_per_character']:.2f} by how often each of the {unit} occurs "
        "alone; LSTMs on English prose reach 1.2 to 2.2 (docs/guide/training.md)"
    )


def _given(context: typer.Context) -> list[str]:
    """The options that the user gave, on the command line or in a file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
