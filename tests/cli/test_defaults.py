"""An omitted option has the same default on the command line and in Python."""

import dataclasses
import inspect

import pytest

pytestmark = pytest.mark.keras


def plain(value):
    """A default in one form: None, () and [] all mean that nothing is chosen."""
    return None if value in ([], ()) else value


def test_omitted_options_have_the_same_default_in_python_and_on_the_command_line():
    from cellerate.cli.inference import backtest, embed, evaluate, generate
    from cellerate.cli.shipping import export, pack
    from cellerate.tasks import exporting, inference, packing
    from cellerate.tasks.backtest import run as backtesting

    pairs = (
        (generate.generate, inference.generate),
        (embed.embed, inference.embed),
        (evaluate.evaluate, inference.evaluate),
        (backtest.backtest, backtesting.backtest),
        (pack.pack, packing.pack),
        (export.export, exporting.export),
    )
    compared = 0
    for command, function in pairs:
        here, there = (inspect.signature(one).parameters for one in (command, function))
        for name in set(here) & set(there):
            if inspect.Parameter.empty not in (here[name].default, there[name].default):
                assert plain(here[name].default) == plain(there[name].default), (command.__name__, name)
                compared += 1
    assert compared >= 15


def test_omitted_training_settings_have_the_same_default_in_both():
    from cellerate.cli.training import embed as train_embed, series as train_series, text as train_text
    from cellerate.tasks import settings
    from cellerate.training.settings import TrainingSettings

    commands = {
        train_text.train_text: (settings.TextOptions, settings.TextArchitecture),
        train_series.train_series: (settings.SeriesOptions, settings.ForecastArchitecture),
        train_embed.train_embed: (settings.LineOptions, settings.AutoencoderArchitecture),
    }
    compared = 0
    for command, kinds in commands.items():
        here = inspect.signature(command).parameters
        for field in (field for kind in (*kinds, TrainingSettings) for field in dataclasses.fields(kind)):
            told = {inspect.Parameter.empty, dataclasses.MISSING}
            if field.name in here and not {id(here[field.name].default), id(field.default)} & set(
                map(id, told)
            ):
                assert plain(here[field.name].default) == plain(field.default), (command.__name__, field.name)
                compared += 1
    assert compared >= 40
