import dataclasses

import numpy as np
import pytest
import typer

from cellerate.cli.main import app
from cellerate.cli.words import in_options, verb_of
from cellerate.data.series.series import SeriesData
from cellerate.data.times.frequency import parse_frequency
from cellerate.tasks.judging.verdict import hints_for, verdict_of
from cellerate.tasks.settings import SeriesOptions


def report(model, **baselines):
    return {"model": model, **baselines}


def test_model_that_is_better_on_both_figures_says_by_how_much_below_the_best():
    found = verdict_of(
        report(
            {"mae": 0.88, "mase": 0.5},
            last_value={"mae": 2.0, "mase": 1.2},
            nlinear={"mae": 1.0, "mase": 0.6},
        )
    )
    assert found["beats_baselines"] is True
    assert (found["best_baseline"], found["figure"]) == ("nlinear", "mae")
    assert found["change"] == pytest.approx(-0.12)
    assert found["sentence"] == "Better than every baseline: MAE 12 % below that of NLinear (0.88 against 1)."


def test_model_that_is_worse_on_mase_alone_is_not_better():
    found = verdict_of(
        report(
            {"mae": 0.9, "mase": 1.1},
            last_value={"mae": 1.0, "mase": 1.5},
            seasonal_naive={"mae": 2.0, "mase": 1.0},
        )
    )
    assert found["beats_baselines"] is False
    assert (found["best_baseline"], found["figure"]) == ("seasonal_naive", "mase")
    assert found["sentence"].startswith(
        "Not better than the baselines: MASE 10 % above that of seasonal naive (1.1 against 1). To try: a longer window"
    )
    assert "use seasonal naive itself" in found["sentence"]


@pytest.mark.parametrize(
    ("baseline", "amount"),
    [
        (0.02, "800.0 times that of NLinear (16 against 0.02). To try:"),
        (2e-12, "more than 1,000 times that of NLinear (16 against 2e-12). To try:"),
    ],
)
def test_model_that_is_many_times_worse_says_how_many(baseline: float, amount: str):
    found = verdict_of(report({"mae": 16.0, "mase": 1.0}, nlinear={"mae": baseline, "mase": 0.1}))
    assert found["sentence"].startswith(f"Not better than the baselines: MAE {amount}")


def test_model_of_several_targets_is_judged_in_standard_deviations():
    found = verdict_of(report({"scaled_mae": 0.5}, last_value={"scaled_mae": 0.502}))
    assert found["figure"] == "scaled_mae"
    assert "MAE in standard deviations 0.4 % below" in found["sentence"]


def test_model_is_not_called_better_than_a_baseline_without_errors():
    found = verdict_of(report({"mae": 1.0}, last_value={"mae": 0.0}))
    assert found["beats_baselines"] is False
    assert "MAE not below that of last value" in found["sentence"]


@pytest.mark.parametrize(("model", "better"), [(2.0, False), (2.0004, False), (1.9996, True)], ids=str)
def test_model_that_is_as_good_as_the_best_baseline_is_called_so(model, better):
    found = verdict_of(report({"mae": model}, last_value={"mae": round(model)}))
    assert found["beats_baselines"] is better
    assert found["sentence"].startswith("As good as the best baseline, last value: MAE")
    assert "To do better, try: a longer window, more training" in found["sentence"]


def test_model_of_values_that_do_not_change_is_told_so_and_given_no_hints():
    found = verdict_of(report({"mae": 0.0}, last_value={"mae": 0.0}, nlinear={"mae": 0.0}))
    assert found["beats_baselines"] is False
    assert found["sentence"].startswith("As good as last value, and without any error: ")
    assert "To do better" not in found["sentence"]


def hints(**options):
    times = np.datetime64("2024-01-01", "us") + np.arange(8) * np.timedelta64(1, "h")
    segments = ((0, 4, "a"), (4, 8, "b"))
    data = SeriesData(np.zeros((8, 2)), ("y", "x"), (0, 1), (0,), times, segments, None, "f")
    return hints_for(SeriesOptions(target=["y"], **options), data), data


def test_hints_name_what_the_model_does_not_use_and_the_data_allow():
    found, data = hints()
    assert found == (
        "a longer window (window)",
        "the hour, the weekday or the month (calendar)",
        "a scale for each series (scaling='series')",
        "columns that are known in advance (future)",
    )
    assert hints(calendar=["hour"], scaling="series", future=["x"])[0] == ("a longer window (window)",)
    alone = dataclasses.replace(data, times=None, segments=((0, 8, ""),), feature_columns=(0,))
    assert hints_for(SeriesOptions(target=["y"]), alone) == ("a longer window (window)",)
    worse = verdict_of(report({"mae": 2.0}, last_value={"mae": 1.0}), found)["sentence"]
    assert in_options(worse, verb_of(typer.main.get_command(app), ["train", "series"])).endswith(
        "To try: a longer window (--window), the hour, the weekday or the month (--calendar), a scale for each series "
        "(--scaling series), columns that are known in advance (--future), more training, a smaller model; or use last "
        "value itself, which needs no network."
    )


@pytest.mark.parametrize(
    ("frequency", "parts"),
    [
        ("15min", "the hour, the weekday or the month"),
        ("day", "the weekday or the month"),
        ("business-day", "the weekday or the month"),
        ("week", "the month"),
        ("quarter", "the month"),
        ("year", None),
    ],
)
def test_hint_at_the_calendar_names_what_differs_between_rows(frequency, parts):
    data = dataclasses.replace(hints()[1], frequency=parse_frequency(frequency))
    named = [hint for hint in hints_for(SeriesOptions(target=["y"]), data) if "(calendar)" in hint]
    assert named == ([f"{parts} (calendar)"] if parts else [])
