import keras
import numpy as np
import pytest

from cellerate.training.stretches import STRETCHES, ErrorByStretch, clearly_better

pytestmark = pytest.mark.keras


def batches(count, size, shape, weights=None, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        truth = draw.normal(size=(size, *shape)).astype("float32")
        yield truth, draw.normal(size=truth.shape).astype("float32"), weights


@pytest.mark.backends
@pytest.mark.parametrize(("count", "size"), [(16, 5), (3, 40), (1, 8), (1, 3)])
def test_error_by_stretch_groups_consecutive_rows(count, size):
    metric = ErrorByStretch(count)
    errors = []
    for truth, made, _ in batches(count, size, (4, 2)):
        metric.update_state(truth, made)
        errors.append(np.abs(truth - made).mean(axis=(1, 2)))
    errors = np.concatenate(errors)
    stretch = np.minimum(np.arange(len(errors)) * STRETCHES // len(errors), STRETCHES - 1)
    expected = [errors[stretch == number].mean() for number in np.unique(stretch)]
    np.testing.assert_allclose(metric.by_stretch(), expected, rtol=1e-5)
    assert float(metric.result()) == pytest.approx(errors.mean(), rel=1e-5)
    metric.reset_state()
    assert metric.by_stretch() == []


def test_error_by_stretch_uses_row_weights_and_the_requested_quantile():
    metric, plain = ErrorByStretch(2, 1), keras.metrics.MeanAbsoluteError()
    weights = np.array([[1.0], [1.0], [0.0], [2.0]], "float32")
    for truth, made, weight in batches(2, 4, (3, 1), weights):
        metric.update_state(truth, np.stack([made + 9, made, made - 9], axis=-1), weight)
        plain.update_state(truth, made, weight)
    assert float(metric.result()) == pytest.approx(float(plain.result()), rel=1e-5)
    # The row without weight is the only one of its stretch in each batch.
    assert len(metric.by_stretch()) == STRETCHES - 2


BEFORE = {"val_loss": 1.0, "val_mae": 2.0}
EIGHT = np.full(8, 2.0)


@pytest.mark.parametrize(
    ("now", "gain", "better"),
    [
        ({"val_loss": 0.98, "val_mae": 1.9}, np.full(8, 0.1), True),
        ({"val_loss": 0.995, "val_mae": 1.9}, np.full(8, 0.1), False),
        ({"val_loss": 0.9, "val_mae": 1.99}, np.full(8, 0.01), False),
        ({"val_loss": 0.9, "val_mae": 2.1}, np.full(8, -0.1), False),
        ({"val_loss": 0.9, "val_mae": 1.9}, np.array([0.8, 0, 0, 0, 0, 0, 0, 0]), False),
        ({"val_loss": 0.9, "val_mae": 1.9}, np.array([0.2, 0.1, 0.1, 0, 0.1, 0.1, 0.1, 0.1]), True),
        ({"val_loss": 0.9, "val_mae": 1.9}, np.array([0.1]), True),
    ],
    ids=["all", "loss", "mae", "worse-mae", "one-stretch", "most-stretches", "no-stretches"],
)
def test_model_is_clearly_better_in_all_figures_and_in_nearly_all_stretches(now, gain, better):
    before = EIGHT[: len(gain)]
    assert clearly_better(now, BEFORE, before - gain, before) is better
