"""The control of a compression: what it is trained on, and how, is what the compressed model is."""

import itertools

import keras
import numpy as np
import pytest

from cellerate.compress import control, distill, prune, quantize
from cellerate.compress.control import FineTuning, ahead, stretches, train_further
from cellerate.compress.record import QualityGate
from cellerate.compress.student import smaller
from cellerate.layers.accelerate import is_accelerated
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Numbered(keras.utils.PyDataset):
    """Batches of which each says its number."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        ids = (np.arange(24).reshape(4, 6) * (index + 1) + index) % 7
        return ids, (ids + 1) % 7


@pytest.fixture
def text():
    return build_text_model(7, embedding=4, units=16, layers=1, dropout=0.0)


@pytest.fixture
def told(monkeypatch):
    """What each training was told, by module: the batches, the rate at its start, and the share of it."""
    found = {}
    for module in (control, distill, prune, quantize):

        def fine_tune(model, batches, *, loss, steps, learning_rate, course, keeper=None, module=module):
            taken = [batch[0][0].tolist() for batch in itertools.islice(batches, steps)]
            found.setdefault(module, []).append((taken, learning_rate, course.rate, course.steps))
            for _ in range(steps):
                course.note(1.0)
            return 1.0

        monkeypatch.setattr(module, "fine_tune", fine_tune)
    return found


def arguments(**more):
    return {"loss": LOSS, "steps": 10, "judge": lambda model: 1.0, "seed": 3} | more


def test_control_of_a_pruned_model_is_trained_on_the_same_batches_at_the_same_rates(text, told):
    prune.prune(text, Numbered(), keep=0.5, learning_rate=4e-3, **arguments())
    train_further(text, Numbered(), FineTuning(learning_rate=4e-3, **arguments()))
    assert told[prune] == told[control]
    # From the first batch on, though units were chosen by it.
    assert told[control][0][0][0] == Numbered()[0][0][0].tolist()


def test_control_of_a_student_is_trained_on_the_same_batches_at_the_same_rates(text, told):
    distill.distill(text, smaller(text, 0.5), Numbered(), learning_rate=4e-3, **arguments())
    train_further(text, Numbered(), FineTuning(learning_rate=4e-3, **arguments()))
    assert told[distill] == told[control]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_control_of_a_quantised_model_is_trained_in_as_many_stretches(text, told, precision):
    worse = itertools.count(1.0)
    given = arguments(judge=lambda model: next(worse), learning_rate=1e-4)
    quantize.quantize(text, Numbered(), precision=precision, gate=QualityGate(0.0), **given)
    train_further(text, Numbered(), FineTuning(**given), parts=quantize.STRETCHES)
    assert told[quantize] == told[control]
    assert [len(taken) for taken, *_ in told[control]] == [2, 3, 2, 3]


@pytest.mark.backends
@pytest.mark.parametrize("parts", [1, 4])
def test_train_further_gives_the_best_of_four_stages_and_leaves_the_model_alone(text, parts):
    seen, weights = [], text.get_weights()
    qualities = iter([3.0, 1.0, 2.0, 4.0])

    def judge(model):
        seen.append(model.get_weights())
        return next(qualities)

    tuning = FineTuning(learning_rate=1e-2, **arguments(judge=judge))
    found = train_further(text, Numbered(), tuning, parts=parts)
    assert len(seen) == 4
    for one, other, before in zip(found.get_weights(), seen[1], weights, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.abs(one - before).max() > 0
    for one, before in zip(text.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, before)
    assert not any(is_accelerated(layer) for layer in found.layers)


@pytest.mark.backends
def test_train_further_learns(text):
    losses = []

    def judge(model):
        x, y = Numbered()[0]
        return float(LOSS(y, model.predict_on_batch(x)))

    before = judge(text)
    given = arguments(judge=judge, steps=40, on_step=lambda done, total, loss: losses.append((done, total)))
    found = train_further(text, Numbered(), FineTuning(learning_rate=3e-2, **given))
    assert judge(found) < 0.7 * before
    assert losses == [(n, 40) for n in range(1, 41)]


def test_ahead_shows_batches_and_gives_them_again():
    seen, batches = ahead(iter(range(9)), 3)
    assert seen == [0, 1, 2]
    assert list(batches) == list(range(9))


@pytest.mark.parametrize(("steps", "expected"), [(10, [2, 3, 2, 3]), (2, [1, 1]), (0, []), (1, [1])])
def test_stretches_are_alike_and_none_is_empty(steps, expected):
    assert stretches(steps, 4) == expected
