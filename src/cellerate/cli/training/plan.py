"""`cellerate plan`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cellerate.cli.options import Json, operand, option
from cellerate.cli.output import print_json, print_result
from cellerate.errors import ConfigError
from cellerate.messages import argument

if TYPE_CHECKING:
    from cellerate.distributed.plan import StagePlan


def plan(
    command: Annotated[list[str] | None, operand("The training, after --: train series data.csv ...")] = None,
    devices: Annotated[str, typer.Option(help="Numbers of devices, separated by commas.")] = "1,8,64,512",
    bandwidth: Annotated[float, typer.Option(help="Between two devices, in GB/s.", min=1e-6)] = 3.0,
    latency: Annotated[float, typer.Option(help="Between two devices, in microseconds.", min=0)] = 30.0,
    items: Annotated[
        float | None,
        option(
            "Windows, characters or lines of an epoch, such as 1e9; those of the data if not given.", min=1
        ),
    ] = None,
    stages: Annotated[
        str | None,
        option("Numbers of stages, separated by commas, for a stack of layers that is divided over devices."),
    ] = None,
    check: Annotated[
        int | None,
        option(
            "Also run the training in this many processes here, beside a prediction for them; with --stages, each has "
            "a stage.",
            min=2,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Predict what a training takes on more devices, from a few of its steps on this machine.

    Nothing is trained or written. Each device is taken to be as fast as this machine.

    Examples:
        cellerate plan -- train series prices.series --target close -o close.keras --batch-size 8192

        cellerate plan --devices 2,4 --items 1e9 --check 2 -- train text book.txt -o book.keras

        cellerate plan --stages 2,4 --check 2 -- train text book.txt -o book.keras --layers 4
    """
    from cellerate.distributed import plan as planning
    from cellerate.format import duration, milliseconds, short, size
    from cellerate.settings import check_number

    for name, value in {"items": items, "bandwidth": bandwidth, "latency": latency}.items():
        check_number(name, value, at_least=0, optional=True)
    numbers = _whole_numbers("devices", devices)
    divided = [] if stages is None else _whole_numbers("stages", stages)
    training = planning.training_command(command or [], [sys.executable, sys.argv[0]])
    link = planning.Link(bandwidth * 1e9, latency * 1e-6)
    measured = planning.measure(training, numbers, divided)
    epoch = None if items is None else int(items)
    predictions = planning.predict(measured, numbers, link, epoch)
    by_stages = planning.predict_stages(measured, link, epoch) if divided else []
    run = planning.check_stages if divided else planning.check
    checked = run(training, check) if check is not None else None
    if json:
        print_json(
            {
                "measured": measured,
                "link": dataclasses.asdict(link),
                "items": int(items or measured["batches"] * measured["items"]),
                "predictions": [dataclasses.asdict(each) for each in predictions],
                "stages": [dataclasses.asdict(each) for each in by_stages],
                "check": checked and {**dataclasses.asdict(checked), "error": checked.error},
            }
        )
        return
    whole = int(items or measured["batches"] * measured["items"])
    print_result(
        f"{whole:,} {measured['item']} an epoch, {measured['items']:,} a step; "
        f"{size(measured['gradient_bytes'])} of gradients a step"
    )
    print_result(
        f"assumed: each device is as fast as this machine, {bandwidth:g} GB/s and {latency:g} µs between two, which "
        "exchange after they have computed"
    )
    print_result(
        "devices   rows each    compute   exchange     a step   efficiency     an epoch   memory each"
    )
    for each in predictions:
        took = [milliseconds(1e3 * seconds) for seconds in (each.compute_s, each.exchange_s, each.step_s)]
        memory = "" if each.memory_bytes is None else size(each.memory_bytes)
        print_result(
            f"{each.devices:>7}{each.rows:>12,}{took[0]:>11}{took[1]:>11}{took[2]:>11}{each.efficiency:>13.0%}"
            f"{duration(each.epoch_s):>13}{memory:>14}"
        )
    _show_stages(by_stages)
    if checked is not None:
        link, predicted, found = checked.link, 1e3 * checked.predicted_s, 1e3 * checked.measured_s
        print_result(
            f"checked with {checked.devices} {'stages in ' if divided else ''}processes here, "
            f"{short(link.bytes_per_s)}B/s and {link.latency_s * 1e6:.0f} µs between them: predicted "
            f"{milliseconds(predicted)} a step, measured {milliseconds(found)}, {checked.error:+.0%}"
        )


def _show_stages(plans: Sequence["StagePlan"]) -> None:
    """Prints what the training takes with each number of stages."""
    from cellerate.format import duration, milliseconds

    for each in plans:
        took = [
            milliseconds(1e3 * one) for one in (each.step_s, each.compute_s, each.bubble_s, each.exchange_s)
        ]
        print_result(
            f"{each.stages} stages, {each.chunks} chunks of time: {took[0]} a step ({took[1]} of the most expensive "
            f"stage, {took[2]} of bubble, {took[3]} of messages), efficiency {each.efficiency:.0%}, an epoch in "
            f"{duration(each.epoch_s)}: {' | '.join(', '.join(stage) for stage in each.layers)}"
        )


def _whole_numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(
            f"{argument(name)} is {text!r}; expected whole numbers from 1 on, separated by commas: 8,64,512."
        )
    return found
