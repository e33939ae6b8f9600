from cellerate.cli.figures import judged_on, show_figures, shown
from cellerate.messages import Message, argument


def errors(value, **more):
    return {"mae": value, "mse": value**2, "rmse": value, "smape": 9.0, "scaled_mae": value / 2, **more}


def report(**changes):
    figures = {"model": errors(1.0, mase=0.5), "last_value": errors(2.0, mase=1.25)}
    return {
        **figures,
        "by_target": {"load": figures},
        "verdict": {"sentence": "Better than every baseline."},
    } | changes


def test_figures_of_one_target_are_a_table_with_units_and_a_verdict(capsys):
    show_figures(report())
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "load             MAE     MSE    RMSE    MASE  sMAPE %  MAE in standard deviations",
        "  the model   1.0000  1.0000  1.0000  0.5000      9.0                      0.5000",
        "  last value  2.0000  4.0000  2.0000  1.2500      9.0                      1.0000",
        "Better than every baseline.",
    ]


def test_figures_of_several_targets_omit_averages_with_a_unit(capsys):
    figures = {"model": {"smape": 9.0, "scaled_mae": 0.5}, "last_value": {"smape": 9.0, "scaled_mae": 1.0}}
    targets = {f"t{n}": {"model": errors(1.0), "last_value": errors(2.0)} for n in range(10)}
    show_figures(report(by_target=targets) | figures)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("t")] == [f"t{n}" for n in range(8)]
    assert "and 2 more targets (all of them: --json)" in lines
    place = lines.index("all targets   sMAPE %  MAE in standard deviations")
    assert lines[place + 1].split() == ["the", "model", "9.0", "0.5000"]


def test_coverage_is_shown_for_each_interval(capsys):
    show_figures(report(coverage={"q0.1": 0.123, "q0.9": 0.9}, interval_coverage={"80%": 0.777}))
    assert capsys.readouterr().out.splitlines()[-2] == (
        "coverage: the 80 % interval holds 77.7 % of the true values; "
        "at or below each quantile: q0.1 12.3 %, q0.9 90.0 %"
    )


def test_calibrated_intervals_show_coverage_and_width_in_the_target_unit(capsys):
    found = report(intervals={"0.8": {"coverage": 0.791, "width": 3.5}})
    show_figures(found)
    told = "calibrated 80 % interval: holds 79.1 % of the true values"
    assert f"{told}, 3.5000 wide on average" in capsys.readouterr().out.splitlines()
    show_figures(found | {"by_target": found["by_target"] | {"other": found["by_target"]["load"]}})
    assert told in capsys.readouterr().out.splitlines()


def test_worst_series_are_limited_to_the_requested_number(capsys):
    rows = [{"series": f"s{n}", "windows": 5, **report()} for n in range(4)]
    rows = [{key: row[key] for key in ("series", "windows", "model", "last_value")} for row in rows]
    show_figures(report(by_series=rows), rank=2)
    out = capsys.readouterr().out
    assert "the worst of 4 series, by MASE" in out
    assert "s1" in out
    assert "s2" not in out
    show_figures(report(by_series=rows), rank=0)
    assert "the worst" not in capsys.readouterr().out


def test_missing_baseline_is_named_with_its_reason(capsys, speak_of):
    speak_of("evaluate")
    why = Message(f"it is judged on it ({argument('part', 'held-out')} has it)")
    show_figures(report(left_out={"nlinear": why}))
    assert "left out: NLinear, because it is judged on it (--part held-out has it)" in capsys.readouterr().out


def test_unknown_figure_is_a_dash():
    assert shown(None) == "-"
    assert shown(12_345_678.9) == "1.2346e+07"


def test_evaluated_sample_is_described_with_its_source():
    assert judged_on({"windows": 1000}, "windows", "windows") == "1,000 windows"
    said = judged_on({"windows": 1000, "sampled_from": 20000}, "windows", "windows")
    assert said == "1,000 of 20,000 windows, spread evenly, for lack of time"
