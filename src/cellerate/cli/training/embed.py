"""`cellerate train embed`."""

import dataclasses
import shlex
import time
from pathlib import Path
from typing import Annotated

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
from cellerate.cli.tables import given_words
from cellerate.distributed.settings import ProcessSettings
from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions
from cellerate.training.settings import TrainingSettings

# The options that say how the file is read, which the next command needs, too.
_READING = ("column", "field", "encoding", "errors")


@with_settings("data", LineOptions, leave_out=["path"], panel="Lines")
@with_settings("architecture", AutoencoderArchitecture, panel="Model")
@with_settings("training", TrainingSettings, panel="Training")
@with_settings("parallel", ProcessSettings, panel="Processes")
def train_embed(
    lines: Annotated[Path, operand("A text file with one line each, JSON lines, or Parquet.")],
    output: Output,
    data: LineOptions,
    architecture: AutoencoderArchitecture,
    training: TrainingSettings,
    parallel: ProcessSettings,
    model: Annotated[Path | None, option("Continue with this line model instead of a new one.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a sequence autoencoder, whose encoder turns lines into vectors.

    Examples:
        cellerate train embed lines.txt -o lines.keras

        cellerate train embed products.parquet --column title --latent 64 -o titles.keras

        cellerate train embed products.jsonl --field title -o titles.keras
    """
    began = time.perf_counter()
    start_training(backend, parallel, [str(lines)], output, quiet, resume=resume, overwrite=overwrite)
    from cellerate.tasks.embed import train_on_lines
    from cellerate.training.run import RunOptions

    with training_display(quiet, output) as display:
        run = train_on_lines(
            dataclasses.replace(data, path=lines),
            RunOptions(
                output=output,
                training=training,
                resume=resume,
                overwrite=overwrite,
                display=display,
                began=began,
            ),
            architecture=architecture,
            model=model,
        )
    if run.truncated and not quiet:
        notify(
            f"{run.truncated:,} lines are longer than {data.max_length} characters and were cut (--max-length)"
        )
    if json:
        print_json({"training": training_report(run.training), "held_out": run.evaluation})
    elif run.evaluation is not None:
        judged = judged_on(run.evaluation, "lines", "lines")
        print_result(
            f"held-out lines: {run.evaluation['token_accuracy']:.1%} of characters right with all before them "
            f"given, {run.evaluation['free_token_accuracy']:.1%} written freely, "
            f"{run.evaluation['exact_lines']:.1%} of lines whole; judged on {judged}"
        )
    again = ["cellerate", "embed", str(output), str(lines), *given_words(data, _READING), "-o", "vectors.npy"]
    finish_training(run.training, quiet, next_steps=[shlex.join(again)])
