"""The workload of each task: Keras and packed evaluations agree with each other and with `evaluate`."""

import copy
import dataclasses
import shutil

import keras
import numpy as np
import pytest

from cellerate.data.text.line_files import read_lines
from cellerate.data.tokenizers.tokenizer import ByteTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.models.text import build_text_model
from cellerate.optimization import clocks
from cellerate.optimization.judging import paired_loss
from cellerate.optimization.workloads.opening import open_workload
from cellerate.runtime.packed import load
from cellerate.runtime.text.stepper import Stepper
from cellerate.tasks.embed import evaluate_lines, load_line_model, split_lines
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.judging.intervals import calibrate
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.packing import pack, packed
from cellerate.tasks.settings import TextOptions
from cellerate.tasks.text.train import evaluate_text, load_text_model
from support.optimization.small_models import HORIZON, LENGTH, LINES, ROWS, TEXT, WINDOW, filled, text_payload

pytestmark = pytest.mark.keras

DATA = {"text": "t.txt", "series": "s.csv", "embed": "l.txt"}
# float32 rounding of the outputs, after some sums.
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def work(made, tmp_path_factory):
    """The workload of each task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {
            task: open_workload(made / f"{task}.keras", [made / data], seed=0) for task, data in DATA.items()
        }


def bits(model, windows):
    """(windows, T) -log2 p of each id after the first, from logits in float64."""
    logits = np.asarray(model.predict_on_batch(windows[:, :-1]), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, windows[:, 1:, None], -1)[..., 0] / np.log(2)


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("task", DATA)
def test_keras_and_packed_evaluations_agree_on_every_block(work, task, part):
    one = work[task]
    here, there = one.judge(one.model, part), one.judge(packed(one.model, one.record), part)
    assert len(here.values) > 5
    assert here.weights == there.weights
    np.testing.assert_allclose(here.values, there.values, rtol=ROUNDING)
    assert abs(paired_loss(here, there, higher_is_better=False).value) < ROUNDING


def test_text_evaluation_equals_the_evaluate_command_and_bits_by_hand(work, made):
    one = work["text"]
    ids = np.array([sorted(set(TEXT)).index(c) for c in TEXT])[-201:]
    windows = np.stack([ids[k * LENGTH : (k + 1) * LENGTH + 1] for k in range(20)])
    expected = bits(one.model, windows).mean(1)
    # 201 ids: of the first 100 the windows 0 to 8, of the others 10 to 19; window 9 would end among those.
    np.testing.assert_allclose(one.judge(one.model, "validation").values, expected[:9], rtol=ROUNDING)
    np.testing.assert_allclose(one.judge(one.model, "test").values, expected[10:], rtol=ROUNDING)
    options = TextOptions(paths=[made / "t.txt"], length=LENGTH, validation_fraction=0.25)
    said = evaluate_text(load_text_model(made / "text.keras"), options, part="held-out")
    assert expected.mean() == pytest.approx(said["bits_per_character"], rel=ROUNDING)
    known = "half of the last 25 % of the text, by which its training may have chosen the best epoch"
    assert one.metric.source == f"90 characters of the validation part, in windows of 10: the first {known}"
    assert one.metric.test_source == f"100 characters of the test part, in windows of 10: the second {known}"
    assert not one.metric.higher_is_better


def test_text_evaluation_of_bytes_is_per_character(tmp_path):
    (tmp_path / "t.txt").write_text("çà et là, où déjà — \n" * 40)
    model = filled(build_text_model(256, embedding=4, units=8, dropout=0.0))
    payload = text_payload(tokenizer=ByteTokenizer().to_config(), validation_fraction=0.0)
    save_model(model, tmp_path / "b.keras", TaskRecord("text", payload))
    one = open_workload(tmp_path / "b.keras", [tmp_path / "t.txt"], seed=0)
    # Without held-out text the last twentieth counts, which the model may know.
    assert one.metric.source.endswith(", which the model may have been trained on")
    assert one.metric.test_source.endswith(", which the model may have been trained on")
    content = (tmp_path / "t.txt").read_bytes()
    tail = np.frombuffer(content[-int(0.05 * len(content)) :], np.uint8).astype(np.int32)
    tail = tail[len(tail) // 2 :]
    count = (len(tail) - 1) // LENGTH
    windows = np.stack([tail[k * LENGTH : (k + 1) * LENGTH + 1] for k in range(count)])
    characters = len(tail.astype(np.uint8).tobytes().decode(errors="replace"))
    expected = bits(model, windows).mean() * len(tail) / characters
    assert len(tail) > 1.1 * characters
    assert one.judge(one.model, "test").mean == pytest.approx(expected, rel=1e-3)


def last_step(activation=None, **shape):
    inputs = keras.Input((LENGTH,), dtype="int32", **shape)
    x = keras.layers.LSTM(9)(keras.layers.Embedding(len(set(TEXT)), 4)(inputs))
    return filled(keras.Model(inputs, keras.layers.Dense(len(set(TEXT)), activation)(x)))


def test_text_evaluation_accepts_probabilities_of_the_last_step_only(made, tmp_path):
    model = last_step("softmax")
    save_model(model, tmp_path / "m.keras", TaskRecord("text", text_payload()))
    one = open_workload(tmp_path / "m.keras", [made / "t.txt"], seed=0)
    ids = np.array([sorted(set(TEXT)).index(c) for c in TEXT])[-201:]
    windows = np.stack([ids[k * LENGTH : (k + 1) * LENGTH + 1] for k in range(9)])
    p = np.asarray(model.predict_on_batch(windows[:, :-1]), np.float64)
    expected = -np.log2(np.take_along_axis(p, windows[:, -1:], 1)[:, 0])
    for model in (one.model, packed(one.model, one.record)):
        np.testing.assert_allclose(one.judge(model, "validation").values, expected, rtol=ROUNDING)
    assert one.metric.source.startswith("9 characters")


def test_text_model_of_a_fixed_batch_is_evaluated_and_trained_with_it(made, tmp_path):
    save_model(last_step(batch_size=3), tmp_path / "m.keras", TaskRecord("text", text_payload()))
    one = open_workload(tmp_path / "m.keras", [made / "t.txt"], seed=0)
    assert one.batch_size == 3
    assert len(one.judge(one.model, "validation").values) == 9
    assert one.source(one.model, 3).batch(0, 0)[0].shape == (3, LENGTH)


def test_text_evaluation_of_a_stateful_model_starts_each_window_from_zeros(made, tmp_path):
    inputs = keras.Input(batch_shape=(8, LENGTH), dtype="int32")
    x = keras.layers.Embedding(len(set(TEXT)), 4)(inputs)
    x = keras.layers.LSTM(9, return_sequences=True, stateful=True)(x)
    model = filled(keras.Model(inputs, keras.layers.Dense(len(set(TEXT)))(x)))
    save_model(model, tmp_path / "m.keras", TaskRecord("text", text_payload()))
    one = open_workload(tmp_path / "m.keras", [made / "t.txt"], seed=0)
    first, again = one.judge(one.model, "test"), one.judge(one.model, "test")
    assert first == again
    there = one.judge(packed(one.model, one.record), "test")
    np.testing.assert_allclose(first.values, there.values, rtol=ROUNDING)


def test_series_evaluation_equals_the_evaluate_command_and_error_by_hand(work, made):
    one = work["series"]
    found = one.judge(one.model, "test")
    said = evaluate_forecaster(
        forecaster_of(open_model(made / "series.keras")), [made / "s.csv"], part="held-out"
    )
    assert found.mean == pytest.approx(said["model"]["scaled_mae"], rel=ROUNDING)
    values = np.loadtxt(made / "s.csv", delimiter=",", skiprows=1)
    train = values[: int(0.7 * len(values))]
    scaled = ((values - train.mean(0)) / train.std(0)).astype(np.float32)

    def errors(first, last):
        """The error of each window whose targets lie between two shares of the rows."""
        starts = range(int(first * ROWS) - WINDOW, int(last * ROWS) - WINDOW - HORIZON + 1)
        past = np.stack([scaled[s : s + WINDOW] for s in starts])
        future = np.stack([scaled[s + WINDOW : s + WINDOW + HORIZON, :1] for s in starts])
        made_of_it = np.asarray(one.model.predict_on_batch(past)).reshape(future.shape)
        return np.abs(made_of_it - future).mean((1, 2))

    np.testing.assert_allclose(found.values, errors(0.8, 1), rtol=2e-3)
    np.testing.assert_allclose(one.judge(one.model, "validation").values, errors(0.7, 0.8), rtol=2e-3)
    assert one.metric.test_source == f"{len(found.values)} windows of the test part"
    assert one.metric.source == (
        f"{len(errors(0.7, 0.8))} windows of the validation part, by which its training may have chosen the best epoch"
    )


def test_lines_evaluation_equals_the_token_accuracy_of_the_evaluate_command(work, made):
    one = work["embed"]
    _, held_out = split_lines(read_lines(made / "l.txt", column=None, errors="replace"), 0.2, 3)
    for found, half, name, source in (
        (one.judge(one.model, "validation"), held_out[:12], "first", one.metric.source),
        (one.judge(one.model, "test"), held_out[12:], "second", one.metric.test_source),
    ):
        said = evaluate_lines(load_line_model(made / "embed.keras"), half)
        assert 0 < said["token_accuracy"] < 1
        assert found.mean == pytest.approx(said["token_accuracy"], abs=1e-6)
        assert sum(found.weights) == sum(len(line) + 1 for line in half)
        assert source.startswith("12 lines of the ")
        assert f": the {name} half of the lines that are held out, by which its training" in source
    assert one.metric.higher_is_better


@pytest.mark.parametrize("task", DATA)
def test_brief_evaluation_uses_the_first_batch_only(work, monkeypatch, task):
    one = work[task]
    batches = one.held_out["validation"][:1]
    if task == "text":  # a batch may hold windows only
        batches = [batches[0][:4]]
    monkeypatch.setitem(one.held_out, "validation", batches)
    first = one.judge(one.model, "validation").values
    monkeypatch.setitem(one.held_out, "validation", batches * 2)
    whole, brief = (one.judge(one.model, "validation", brief=brief) for brief in (False, True))
    np.testing.assert_allclose(brief.values, first, rtol=ROUNDING)
    assert sum(brief.weights) < sum(whole.weights)


@pytest.mark.parametrize("task", DATA)
def test_partial_evaluation_spreads_its_batches_over_each_part(work, task):
    one = work[task]
    whole = dict(one.held_out)
    # Batches that can be told apart by their identity: nine of one part, two of the other.
    many = {
        part: [copy.copy(whole[part][0]) for _ in range(count)]
        for part, count in {"validation": 9, "test": 2}.items()
    }
    said = []
    try:
        one.hold_out(many)
        for share, kept in ((1, range(9)), (0.4, (0, 4, 8)), (1e-9, (0,))):
            one.judge_on(share)
            found = [id(batch) for batch in one.held_out["validation"]]
            assert found == [id(many["validation"][index]) for index in kept]
            said.append(int(one.metric.source.split()[0].replace(",", "")))
            weights = one.judge(one.model, "validation").weights
            said.append(round(sum(weights)))
        assert one.held_out["test"] == many["test"][:1]
    finally:
        one.hold_out(whole)
    assert said == [9 * said[4], 9 * said[5], 3 * said[4], 3 * said[5], said[4], said[5]]


@pytest.mark.parametrize("task", DATA)
def test_evaluation_of_a_diverged_model_raises_model_error(work, task):
    one = work[task]
    broken = keras.models.clone_model(one.model)
    broken.set_weights([np.full_like(weights, np.nan) for weights in one.model.get_weights()])
    if task == "embed":  # argmax of NaNs is a valid character
        assert one.judge(broken, "validation").mean < 0.5
        return
    with pytest.raises(ModelError, match="not finite"):
        one.judge(broken, "validation")


@pytest.mark.parametrize("task", DATA)
def test_keras_and_packed_models_have_speeds_and_equal_samples(work, quick, task):
    one = work[task]
    model = packed(one.model, one.record)
    speeds = [clocks.speed(use) for use in (*one.keras_uses(one.model), one.packed_use(model))]
    assert [speed.way for speed in speeds] == ["predict", "predict_on_batch", "packed"]
    for speed in speeds:
        assert 0 < speed.latency_p50_ms <= speed.latency_p99_ms
        assert speed.per_s > 0
    assert speeds[1].throughput_per_s
    assert speeds[2].throughput_per_s
    here, there = one.sample(one.model, None), one.sample(one.model, model)
    if task == "series":
        assert len(here.forecasts) == len(there.forecasts) == 3
        for mine, its in zip(here.forecasts, there.forecasts, strict=True):
            assert (mine.past, mine.truth) == (its.past, its.truth)
            assert len(mine.truth) == len(mine.forecast) == HORIZON
            np.testing.assert_allclose(mine.forecast, its.forecast, rtol=1e-4, atol=1e-5)
        # Spread over the windows of a batch, except its filler windows.
        batches = one.held_out["validation"]
        _, future, weight, _ = batches[len(batches) // 2]
        last = int((weight > 0).sum()) - 1
        for found, row in zip(here.forecasts, (0, last // 2, last), strict=True):
            np.testing.assert_allclose(found.truth, future[row, :, one._data.target_columns[0]], rtol=1e-6)
    else:
        assert here == there
        assert 0 < len(here.prompt) <= 60
        assert here.text


def test_packed_text_model_is_timed_one_character_and_many_characters_a_call(work, monkeypatch):
    one, drawn = work["text"], []
    model = packed(one.model, one.record)
    use = one.packed_use(model)
    draw = Stepper.draw
    monkeypatch.setattr(Stepper, "draw", lambda *a, **k: drawn.extend(draw(*a, **k)) or drawn)
    use.one()
    assert sum(len(row.ids) for row in drawn) == 1
    drawn.clear()
    use.several(7)
    assert sum(len(row.ids) for row in drawn) == 7
    texts = []
    generate = type(model).generate
    monkeypatch.setattr(type(model), "generate", lambda *a, **k: texts.extend(generate(*a, **k)))
    use.many()
    assert [len(text) for text in texts] == [use.steps] * use.batch


def test_training_source_is_limited_to_the_data(work):
    text, series, lines = work["text"], work["series"], work["embed"]
    assert text.source(text.model, 4).batch(0, 0)[0].shape == (4, LENGTH)
    assert text.source(text.model, 4, 5).batch(0, 0)[0].shape == (4, 5)
    # 603 characters to train on: 60 windows of 10, less one to begin an epoch anywhere.
    assert text.source(text.model, 10_000).batch_size == 59
    assert series.source(series.model, 10_000).batch_size == 140 - WINDOW - HORIZON + 1
    assert lines.source(lines.model, 10_000).batch_size == len(LINES) - len(LINES) // 5


# Refusals.


def opened(made, folder, task, data, **payload):
    model, record = load_model(made / f"{task}.keras")
    save_model(model, folder / "m.keras", TaskRecord(task, record.payload | payload))
    return open_workload(folder / "m.keras", data, seed=0)


def test_no_data_raises_config_error(made):
    with pytest.raises(ConfigError, match=r"\(data\)"):
        open_workload(made / "text.keras", [], seed=0)


def test_model_without_a_record_says_how_to_get_one(made, tmp_path):
    model, _ = load_model(made / "text.keras")
    save_model(model, tmp_path / "m.keras")
    with pytest.raises(ModelError, match="cellerate train"):
        open_workload(tmp_path / "m.keras", [made / "t.txt"], seed=0)


def test_text_with_unknown_characters_raises_data_error(made, tmp_path):
    (tmp_path / "t.txt").write_text(TEXT + "Ω")
    with pytest.raises(DataError, match="Ω"):
        open_workload(made / "text.keras", [tmp_path / "t.txt"], seed=0)


@pytest.mark.parametrize("characters", [1, 4])
def test_text_too_short_raises_data_error(made, tmp_path, characters):
    (tmp_path / "t.txt").write_text(TEXT[:characters])
    with pytest.raises(DataError, match="longer text"):
        open_workload(made / "text.keras", [tmp_path / "t.txt"], seed=0)


def test_text_too_short_for_a_model_of_fixed_windows_raises_data_error(made, tmp_path):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.LSTM(4, return_sequences=True)(keras.layers.Embedding(len(set(TEXT)), 4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(len(set(TEXT)))(x))
    save_model(model, tmp_path / "m.keras", TaskRecord("text", text_payload()))
    (tmp_path / "t.txt").write_text(TEXT[:80])
    with pytest.raises(DataError, match="each half of the held-out text has only 10 characters: too few"):
        open_workload(tmp_path / "m.keras", [tmp_path / "t.txt"], seed=0)


@pytest.mark.parametrize(
    "payload", [{"length": "ten"}, {"validation_fraction": 7}, {"tokenizer": {}}], ids=str
)
def test_text_model_with_a_damaged_record_raises_model_error(made, tmp_path, payload):
    with pytest.raises(ModelError) as refused:
        opened(made, tmp_path, "text", [made / "t.txt"], **payload)
    assert ".." not in str(refused.value)


def test_series_with_other_columns_raises_model_error(made, tmp_path):
    (tmp_path / "s.csv").write_text((made / "s.csv").read_text().replace("other", "else"))
    with pytest.raises((DataError, ModelError), match="other"):
        open_workload(made / "series.keras", [tmp_path / "s.csv"], seed=0)


def test_series_too_short_to_judge_raises_data_error(made, tmp_path):
    content = (made / "s.csv").read_text().splitlines()
    (tmp_path / "s.csv").write_text("\n".join(content[:8]))
    with pytest.raises(DataError, match="longer series"):
        open_workload(made / "series.keras", [tmp_path / "s.csv"], seed=0)


KNOWN = ", by which its training may have chosen the best epoch"


@pytest.mark.parametrize(
    ("train", "validation", "words"),
    [
        (0.7, 0.3, f"half of training's validation part{KNOWN}"),
        (0.7, 0.0, "half of the rows that training never saw"),
        # Seven rows to validate on and a window back fit, one row to test on does not.
        (0.7, 0.295, f"half of training's validation part{KNOWN}"),
    ],
)
def test_series_without_a_test_or_validation_part_splits_the_other_disjointly(
    made, tmp_path, train, validation, words
):
    shutil.copy(made / "s.csv", tmp_path)
    model, record = load_model(made / "series.keras")
    told = record.payload["options"] | {"train_fraction": train, "validation_fraction": validation}
    save_model(model, tmp_path / "m.keras", TaskRecord("series", record.payload | {"options": told}))
    one = open_workload(tmp_path / "m.keras", [tmp_path / "s.csv"], seed=0)
    assert one.metric.source.endswith(f" windows of the validation part: the first {words}")
    assert one.metric.test_source.endswith(f" windows of the test part: the second {words}")
    rows = {
        tuple(row): n
        for n, row in enumerate(np.loadtxt(made / "s.csv", np.float32, delimiter=",", skiprows=1))
    }
    used, first_targets = {}, {}
    for part in ("validation", "test"):
        seen = set()
        for past, future, weight, _ in one.held_out[part]:
            for x, y, counts in zip(past, future, weight, strict=True):
                if counts:
                    seen |= {rows[tuple(row)] for row in (*x, *y)}
                    first_targets.setdefault(part, rows[tuple(y[0])])
        used[part] = seen
    assert not used["validation"] & used["test"]
    assert min(used["validation"]) == int(train * ROWS) - WINDOW
    assert max(used["test"]) == ROWS - 1
    # A gap of one window and horizon separates the forecast rows of the two parts.
    assert first_targets["test"] - max(used["validation"]) - 1 == WINDOW + HORIZON
    assert one.judge(one.model, "validation").mean != one.judge(one.model, "test").mean


def test_series_with_a_test_part_only_splits_the_held_out_rows(made, tmp_path):
    model, record = load_model(made / "series.keras")
    told = record.payload["options"] | {"train_fraction": 0.7, "validation_fraction": 0.0, "test_size": 40}
    save_model(model, tmp_path / "m.keras", TaskRecord("series", record.payload | {"options": told}))
    one = open_workload(tmp_path / "m.keras", [made / "s.csv"], seed=0)
    assert "half of the rows that training never saw" in one.metric.source
    # Of 40 rows 20 each: those of the second half that share no row with the first.
    assert one.metric.source.startswith(f"{20 - HORIZON + 1} windows")


def test_series_with_one_held_out_window_raises_data_error(made, tmp_path):
    lines = (made / "s.csv").read_text().splitlines()
    (tmp_path / "s.csv").write_text("\n".join(lines[: 1 + 24]))
    # 17 rows to train on, 2 to validate on, 5 to test on; and with half of these, no row is left between them.
    with pytest.raises(DataError, match="too few for two separate windows"):
        model, record = load_model(made / "series.keras")
        told = record.payload["options"] | {"train_fraction": 0.7, "validation_fraction": 0.0}
        save_model(model, tmp_path / "m.keras", TaskRecord("series", record.payload | {"options": told}))
        open_workload(tmp_path / "m.keras", [tmp_path / "s.csv"], seed=0)


def test_steps_of_lines_are_timed_on_batches_of_one_shape(work):
    one = work["embed"]

    def shapes(source):
        batches = [source.batch(0, index) for index in range(len(source))]
        return {tuple(x.shape for x in keras.tree.flatten(batch[0])) for batch in batches}

    usual, timed = one.source(one.model, 8), one.timed_source(one.model, 8)
    # Each further shape costs a compilation.
    assert len(shapes(usual)) == one.shapes > 1
    assert len(shapes(timed)) == 1
    assert shapes(timed) < shapes(usual)
    # There are fewer lines of that length than rows, so lines repeat.
    many = one.timed_source(one.model, 10_000)
    assert many.batch_size == one.source(one.model, 10_000).batch_size
    assert [shape[0][1:] for shape in shapes(many)] == [shape[0][1:] for shape in shapes(timed)]


def test_several_files_of_lines_raise_config_error(made):
    with pytest.raises(ConfigError, match="one file of lines; 2"):
        open_workload(made / "embed.keras", [made / "l.txt", made / "t.txt"], seed=0)


def test_too_few_lines_to_hold_one_out_raise_data_error(made, tmp_path):
    # A fifth of nine is one line, but validation and test need one each.
    (tmp_path / "l.txt").write_text("\n".join(LINES[:9]) + "\n")
    with pytest.raises(
        DataError, match="1 are held out to judge the model on, but two are needed: give more lines"
    ):
        open_workload(made / "embed.keras", [tmp_path / "l.txt"], seed=0)


def test_intervals_of_the_chosen_forecaster_are_calibrated_again(made, tmp_path):
    original, kept, name = open_model(made / "series.keras")
    known = forecaster_of((original, kept, name))
    data = known.settings.open([made / "s.csv"])
    split = known.options.split(data)
    before = calibrate(known, split)[0].to_config()
    record = TaskRecord("series", {**kept.payload, "calibration": before})
    save_model(original, tmp_path / "m.keras", record)
    one = open_workload(tmp_path / "m.keras", [made / "s.csv"], seed=0)
    other = filled(keras.models.clone_model(original), seed=5)
    save_model(other, tmp_path / "chosen.keras", record)
    pack(tmp_path / "chosen.keras", tmp_path / "chosen.cell", precision="int8")
    assert one.finish(tmp_path / "chosen.keras", tmp_path / "chosen.cell")
    (model, chosen, _), cell = open_model(tmp_path / "chosen.keras"), load(tmp_path / "chosen.cell")
    assert cell.precision == "int8"
    for found, predict in (
        (chosen.payload["calibration"], model.predict_on_batch),
        (cell.cell.header["payload"]["calibration"], cell.predict),
    ):
        right = calibrate(dataclasses.replace(known, predict=predict), split)[0].to_config()
        assert found == right != before
    np.testing.assert_array_equal(
        pack_and_load(tmp_path).predict(np.zeros((1, WINDOW, 2), np.float32)),
        cell.predict(np.zeros((1, WINDOW, 2), np.float32)),
    )
    without = {name: value for name, value in kept.payload.items() if name != "calibration"}
    save_model(other, tmp_path / "plain.keras", TaskRecord("series", without))
    plain = open_workload(tmp_path / "plain.keras", [made / "s.csv"], seed=0)
    assert not plain.finish(tmp_path / "plain.keras", None)


def pack_and_load(folder):
    pack(folder / "chosen.keras", folder / "again.cell", precision="int8")
    return load(folder / "again.cell")
