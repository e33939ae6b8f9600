import itertools

import keras
import numpy as np
import pytest

from cellerate.compress.fitting import Course, Keeper, endless, fine_tune, loss_of, loss_on
from cellerate.compress.prune import prune
from cellerate.compress.quantize import quantize
from cellerate.compress.sparsify import sparsify
from cellerate.data.pipeline import KerasBatches
from cellerate.data.text.lines import LineBatches, LineVocabulary
from cellerate.data.windows.text_windows import TextBatches
from cellerate.errors import ConfigError, DataError, TrainingError
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)
IDS = np.arange(400) % 5
# The same for every reader, in order.
SOURCE = TextBatches(IDS, length=6, batch_size=4, seed=2)


class Rows(keras.utils.PyDataset):
    """Batch i of epoch e is the number 10 e + i."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.epoch, self.calls = batches, 0, []

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        self.calls.append(index)
        return np.array([10 * self.epoch + index]), np.array([0])

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")
        self.epoch += 1


class Counted:
    """The batches of an iterator, and how many were taken."""

    def __init__(self, batches):
        self.batches, self.taken = batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        return next(self.batches)


def firsts(batches, count):
    """The numbers in the first column of x, batch by batch."""
    return [np.asarray(x).reshape(len(x), -1)[:, 0].tolist() for x, *_ in itertools.islice(batches, count)]


def model(seed=1):
    return build_text_model(5, embedding=4, units=6, seed=seed)


def arrays():
    """Whole windows of a text that repeats."""
    windows = IDS[: 60 * 6].reshape(60, 6)
    return windows, (windows + 1) % 5


def test_endless_over_arrays_gives_each_row_once_a_round_in_another_order():
    batches = endless((ROWS, ROWS), 2, seed=0)
    for _ in range(3):
        assert sorted(itertools.chain(*firsts(batches, 5))) == ROWS[:, 0].tolist()
    order = firsts(endless((ROWS, ROWS), 2, seed=0), 10)
    assert order[:5] != order[5:]
    assert order == firsts(endless((ROWS, ROWS), 2, seed=0), 10)
    assert order != firsts(endless((ROWS, ROWS), 2, seed=1), 10)


def test_endless_over_arrays_gives_whole_batches_where_there_is_one():
    assert {len(x) for x, _ in itertools.islice(endless((ROWS, ROWS), 4, seed=0), 6)} == {4}
    assert {len(x) for x, _ in itertools.islice(endless((ROWS, ROWS), 64, seed=0), 2)} == {10}


def test_endless_over_a_dict_of_inputs_and_weights_keeps_rows_together():
    data = ({"a": ROWS, "b": ROWS + 100}, ROWS + 200, ROWS[:, 0] + 300)
    for x, y, weight in itertools.islice(endless(data, 3, seed=4), 5):
        np.testing.assert_array_equal(x["a"] + 100, x["b"])
        np.testing.assert_array_equal(x["a"] + 200, y)
        np.testing.assert_array_equal(x["a"][:, 0] + 300, weight)


def test_endless_over_arrays_with_weights_of_none_leaves_them_out():
    assert len(next(endless((ROWS, ROWS, None), 2, seed=0))) == 2


def test_endless_over_a_dataset_calls_it_as_fit_does():
    data = Rows(2)
    numbers = firsts(endless(data, 64, seed=0), 5)
    assert data.calls == ["end", "begin", 0, 1, "end", "begin", 0, 1, "end", "begin", 0]
    assert numbers == [[10], [11], [20], [21], [30]]


def test_endless_over_keras_batches_follows_the_epochs_of_the_source_and_leaves_them_alone():
    data = KerasBatches(SOURCE, start=1, stop=4, epoch=2)
    expected = [SOURCE.batch(epoch, index)[0][:, 0].tolist() for epoch in (2, 3) for index in (1, 2, 3)]
    assert firsts(endless(data, 64, seed=0), 6) == expected
    assert firsts(endless(data, 64, seed=0), 6) == expected
    assert data.epoch == 2


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="runs when TensorFlow is the backend")
def test_endless_over_a_tf_dataset_gives_its_batches_over_and_over():
    expected = [SOURCE.batch(0, index)[0][:, 0].tolist() for index in range(len(SOURCE))]
    assert firsts(endless(KerasBatches(SOURCE).as_tf_dataset(), 64, seed=0), 2 * len(SOURCE)) == expected * 2


@pytest.mark.backends
@pytest.mark.skipif(keras.config.backend() != "torch", reason="runs when torch is the backend")
def test_endless_over_a_data_loader_gives_its_batches_over_and_over():
    from torch.utils.data import DataLoader

    expected = [SOURCE.batch(0, index)[0][:, 0].tolist() for index in range(len(SOURCE))]
    loader = DataLoader(KerasBatches(SOURCE).as_torch_dataset(), batch_size=None)
    found = list(itertools.islice(endless(loader, 64, seed=0), 2 * len(SOURCE)))
    assert firsts(found, len(found)) == expected * 2
    assert all(isinstance(part, np.ndarray) for batch in found for part in batch)


def test_endless_over_an_iterable_of_arrays_gives_its_batches_over_and_over():
    class Batches:
        def __iter__(self):
            return iter([(ROWS[:4], ROWS[:4]), (ROWS[4:], ROWS[4:])])

    found = list(itertools.islice(endless(Batches(), 64, seed=0), 4))
    assert [len(x) for x, _ in found] == [4, 6, 4, 6]
    assert all(isinstance(part, np.ndarray) for batch in found for part in batch)


@pytest.mark.parametrize("data", [(batch for batch in [(ROWS, ROWS)]), 3, None, iter([])], ids=repr)
def test_endless_over_what_ends_or_is_no_data_raises_config_error(data):
    with pytest.raises(ConfigError, match="walked more than once"):
        endless(data, 2, seed=0)


@pytest.mark.parametrize("data", [(ROWS,), (ROWS, ROWS, ROWS, ROWS)], ids=len)
def test_endless_over_a_tuple_of_another_length_raises_config_error(data):
    with pytest.raises(ConfigError, match=f"tuple of {len(data)}"):
        endless(data, 2, seed=0)


@pytest.mark.parametrize(
    "data", [(ROWS[:0], ROWS[:0]), (ROWS, ROWS[:9]), Rows(0)], ids=["empty", "unlike", "dataset"]
)
def test_endless_over_empty_or_unlike_data_raises_data_error(data):
    with pytest.raises(DataError, match="data"):
        endless(data, 2, seed=0)


def test_endless_over_an_iterable_without_a_batch_raises_data_error_at_the_first():
    with pytest.raises(DataError, match="no batch"):
        next(endless(range(0), 2, seed=0))


def test_fine_tune_takes_as_many_batches_as_steps_and_goes_on_with_the_next():
    tuned, batches = model(), Counted(endless(arrays(), 8, seed=0))
    first = fine_tune(tuned, batches, loss=LOSS, steps=20, learning_rate=0.02)
    assert batches.taken == 20
    second = fine_tune(tuned, batches, loss=LOSS, steps=15, learning_rate=0.02)
    assert batches.taken == 35
    assert second < 0.8 * first


@pytest.mark.backends
def test_fine_tune_trains_as_fit_does_and_leaves_no_compiled_state():
    # Both on the same kernels: TensorFlow gives an optimizer other (sparse) gradients of Keras's own embedding.
    tuned, plain = model(), accelerate(model())
    mean = fine_tune(tuned, endless(arrays(), 8, seed=0), loss=LOSS, steps=7, learning_rate=0.01)
    falling = keras.optimizers.schedules.PolynomialDecay(0.01, 7, end_learning_rate=0.0)
    plain.compile(keras.optimizers.Adam(falling, clipnorm=1.0), LOSS)
    taken = list(itertools.islice(endless(arrays(), 8, seed=0), 7))
    x, y = (np.concatenate(parts) for parts in zip(*taken, strict=True))
    history = plain.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert mean == pytest.approx(history.history["loss"][0], rel=1e-5)
    for mine, its in zip(tuned.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)
    assert not tuned.compiled
    assert getattr(tuned, "optimizer", None) is None
    assert is_accelerated(tuned.get_layer("lstm_1"))


def dense_weights(of: keras.Model) -> list[keras.Variable]:
    return [weight for weight in of.weights if weight.name != "embeddings"]


def test_stretches_of_a_course_share_one_falling_rate():
    tuned, course = model(), Course(8)
    batches = endless(arrays(), 8, seed=0)
    rates = []
    for steps in (3, 5):
        before = [keras.ops.convert_to_numpy(weight) for weight in dense_weights(tuned)]
        # The first step of Adam is as long as its rate, whatever the gradient; on TensorFlow rows of an embedding that
        # a batch reads several times take longer ones.
        fine_tune(tuned, itertools.islice(batches, 1), loss=LOSS, steps=1, learning_rate=0.01, course=course)
        after = [keras.ops.convert_to_numpy(weight) for weight in dense_weights(tuned)]
        moved = [abs(a - b).max() for a, b in zip(after, before, strict=True)]
        rates.append(max(moved))
        fine_tune(tuned, batches, loss=LOSS, steps=steps - 1, learning_rate=0.01, course=course)
    assert rates == pytest.approx([0.01, 0.01 * 5 / 8], rel=1e-3)
    assert (len(course.losses), course.rate) == (8, 0.0)


def test_course_tells_of_each_step_of_all_its_stretches():
    told = []
    course = Course(5, lambda *step: told.append(step))
    tuned, batches = model(), endless(arrays(), 8, seed=0)
    means = [
        fine_tune(tuned, batches, loss=LOSS, steps=steps, learning_rate=0.01, course=course)
        for steps in (2, 3)
    ]
    assert [step[:2] for step in told] == [(done, 5) for done in range(1, 6)]
    assert [step[2] for step in told] == course.losses == course.curve()
    assert means == pytest.approx([np.mean(course.losses[:2]), np.mean(course.losses[2:])])


def test_course_whose_listener_raises_ends_the_training():
    def stop(done, steps, loss):
        if done == 2:
            raise KeyboardInterrupt

    batches = Counted(endless(arrays(), 8, seed=0))
    with pytest.raises(KeyboardInterrupt):
        fine_tune(model(), batches, loss=LOSS, steps=9, learning_rate=0.01, course=Course(9, stop))
    assert batches.taken == 2


@pytest.mark.parametrize("count", [0, 1, 200, 201, 1000])
def test_curve_of_a_course_has_at_most_200_points_and_the_mean_of_all(count):
    course = Course(max(1, count))
    for loss in range(count):
        course.note(float(loss))
    curve = course.curve()
    assert len(curve) == min(count, 200)
    assert curve == sorted(curve)
    if count % 200 == 0 and count:
        assert np.mean(curve) == pytest.approx((count - 1) / 2)


def keeper_of(qualities):
    """A model, its keeper, who is told these qualities, and the weights at each look."""
    watched, seen = model(), []

    def judge(judged):
        seen.append(judged.get_weights())
        return qualities[len(seen) - 1]

    return watched, Keeper(watched, judge), seen


@pytest.mark.parametrize(
    ("qualities", "best"),
    [
        ([4.0, 3.0, 5.0, 6.0], 1),
        ([np.nan, 3.0, np.nan, 2.0], 3),
        ([1.0, np.nan, 1.0, 2.0], 2),
        ([-1.0, -2.0, 0.0, np.inf], 1),
    ],
)
def test_keeper_gives_the_best_weights_of_four_looks_back(qualities, best):
    tuned, keeper, seen = keeper_of(qualities)
    batches = Counted(endless(arrays(), 8, seed=0))
    fine_tune(tuned, batches, loss=LOSS, steps=10, learning_rate=0.05, keeper=keeper)
    assert (len(seen), batches.taken) == (4, 10)
    assert keeper.restore() == keeper.quality == qualities[best]
    for mine, its in zip(tuned.get_weights(), seen[best], strict=True):
        np.testing.assert_array_equal(mine, its)
    assert any(np.any(a != b) for a, b in zip(seen[0], seen[1], strict=True))


def test_keeper_that_never_looked_judges_the_model_as_it_is():
    tuned, keeper, seen = keeper_of([7.0])
    before = tuned.get_weights()
    assert keeper.restore() == 7.0
    assert len(seen) == 1
    for mine, its in zip(tuned.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_keeper_that_is_told_no_number_says_so():
    _, keeper, _ = keeper_of([np.nan])
    assert np.isnan(keeper.restore())


def test_fine_tune_of_no_step_changes_nothing():
    tuned = model()
    before = tuned.get_weights()
    assert np.isnan(fine_tune(tuned, iter(()), loss=LOSS, steps=0, learning_rate=0.1))
    for mine, its in zip(tuned.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_fine_tune_on_lines_of_many_lengths_with_weights_and_a_dict_of_inputs_learns():
    lines = ["a" * count for count in (2, 11, 25)] * 12
    vocabulary = LineVocabulary.from_lines(lines)
    source = LineBatches(lines, vocabulary, batch_size=4, max_length=25, seed=0)
    batches = endless(KerasBatches(source), 4, seed=0)
    tuned = build_autoencoder(vocabulary.size, embedding=4, units=6, latent=3, seed=0)
    shapes = [source.batch(0, index)[1].shape for index in range(9)]
    # The first two do not tell of the third.
    assert len(set(shapes)) == 3
    first = fine_tune(tuned, batches, loss=LOSS, steps=9, learning_rate=0.02)
    assert fine_tune(tuned, batches, loss=LOSS, steps=9, learning_rate=0.02) < first


def test_fine_tune_whose_loss_is_no_number_raises_training_error():
    with pytest.raises(TrainingError, match="NaN or infinity"):
        fine_tune(
            model(),
            endless((np.full((4, 3), 2), np.full((4, 3, 5), np.nan)), 4, seed=0),
            loss="mse",
            steps=2,
            learning_rate=0.1,
        )


def test_loss_on_arrays_with_weights_equals_evaluate_of_keras():
    x, y = arrays()
    weight = np.random.default_rng(0).uniform(0, 1, (60, 1)).astype(np.float32)
    judged = model()
    judged.compile(loss=LOSS)
    for data in ((x, y), (x, y, None)):
        assert loss_on(model(), data, loss=LOSS, batch_size=16) == pytest.approx(
            judged.evaluate(x, y, batch_size=16, verbose=0), rel=1e-5
        )
    expected = judged.evaluate(x, y, sample_weight=weight, batch_size=16, verbose=0)
    assert loss_on(model(), (x, y, weight), loss=LOSS, batch_size=16) == pytest.approx(expected, rel=1e-5)


def test_loss_on_keras_batches_equals_evaluate_and_leaves_their_epoch_and_the_model_alone():
    data, judged = KerasBatches(SOURCE), model()
    before = judged.get_weights()
    found = loss_on(judged, data, loss=LOSS, batch_size=64)
    assert data.epoch == 0
    assert not judged.compiled
    for mine, its in zip(judged.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)
    judged.compile(loss=LOSS)
    assert found == pytest.approx(judged.evaluate(data, verbose=0), rel=1e-5)


def stateful_model(wrapped):
    """A stateful LSTM, alone or within a Bidirectional."""
    rows = keras.Input((3, 2), batch_size=4)
    start = keras.initializers.GlorotUniform(seed=1)
    recurrent = keras.layers.LSTM(
        5,
        stateful=True,
        kernel_initializer=start,
        recurrent_initializer=keras.initializers.Orthogonal(seed=2),
    )
    x = (keras.layers.Bidirectional(recurrent) if wrapped else recurrent)(rows)
    return keras.Model(rows, keras.layers.Dense(1, kernel_initializer=start)(x))


@pytest.mark.backends
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "bidirectional"])
def test_loss_on_a_stateful_model_begins_with_zeros_and_leaves_them(wrapped):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(8, 3, 2)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    one = stateful_model(wrapped)
    first = loss_on(one, (x, y), loss="mse", batch_size=4)
    assert loss_on(one, (x, y), loss="mse", batch_size=4) == first
    fine_tune(one, endless((x, y), 4, seed=0), loss="mse", steps=2, learning_rate=0.01)
    states = [
        state for layer in one.layers for state in keras.tree.flatten(getattr(layer, "states", None) or ())
    ]
    assert len(states) == (4 if wrapped else 2)
    for state in states:
        assert not np.any(keras.ops.convert_to_numpy(state))
    tuned = loss_on(one, (x, y), loss="mse", batch_size=4)
    assert loss_on(one, (x, y), loss="mse", batch_size=4) == tuned != first


@pytest.mark.backends
@pytest.mark.parametrize("policy", ["mixed_float16", "float32"])
def test_fine_tune_scales_the_loss_where_layers_compute_in_float16(policy, monkeypatch):
    found = []
    train = keras.Model.train_on_batch
    monkeypatch.setattr(
        keras.Model,
        "train_on_batch",
        lambda self, *given, **named: found.append(self.optimizer) or train(self, *given, **named),
    )
    one = build_text_model(5, embedding=4, units=6, dtype_policy=policy)
    fine_tune(one, endless(arrays(), 8, seed=0), loss=LOSS, steps=2, learning_rate=0.01)
    scaled = [isinstance(each, keras.optimizers.LossScaleOptimizer) for each in found]
    assert scaled == [policy == "mixed_float16"] * 2
    # It is the optimizer inside whose rate falls.
    assert float(keras.ops.convert_to_numpy(found[0].learning_rate)) == pytest.approx(0.005)


def test_loss_of_a_model_is_the_one_given_or_the_one_compiled_with():
    compiled = model()
    with pytest.raises(ConfigError, match="not compiled"):
        loss_of(compiled, None)
    compiled.compile(loss=LOSS)
    assert loss_of(compiled, None) is LOSS
    assert loss_of(compiled, "mse") == "mse"


def fixed_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input(batch_shape=(8, 5, 3)), keras.layers.LSTM(16, stateful=True), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def rows_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5, 3)).astype("float32"), rng.normal(size=(count, 1)).astype("float32")


COMPRESSING = {
    "quantize": lambda model, data: quantize(model, data, loss="mse"),
    "prune": lambda model, data: prune(model, data, keep=0.5, loss="mse", steps=2),
    "sparsify": lambda model, data: sparsify(model, data, sparsity=0.5, loss="mse", steps=2),
}


@pytest.mark.parametrize("name", COMPRESSING)
def test_model_of_a_fixed_batch_is_compressed_in_batches_that_it_takes(name: str) -> None:
    model = fixed_model()
    before = [weight.copy() for weight in model.get_weights()]
    COMPRESSING[name](model, rows_of(16))
    for found, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, right)
    with pytest.raises(
        DataError, match="takes batches of 8 rows, and data has 20: give a multiple of 8 rows"
    ):
        COMPRESSING[name](fixed_model(), rows_of(20))
