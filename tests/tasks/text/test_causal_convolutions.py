"""Text models with a causal convolution, from training to generating: each text is that of Keras's own predict."""

import json

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ModelError
from cellerate.program import PRECISIONS
from cellerate.tasks.inference import generate
from support.runs.text_models import IN_ORDER, TOKENIZER, V, convolved
from support.runs.text_runs import V as TEXT_V, fit, log_probabilities

pytestmark = pytest.mark.keras
MODELS = [{}, {"kernel_size": 5}, {"dilation_rate": 3}, {"one_hot": True}, {"sequences": False}]
# One length, so that Keras compiles `predict` once; ids after the text do not reach its steps.
LENGTH = 40


def likeliest(model, prompt, count, *, one_hot=False, sequences=True):
    """The text that a loop of `predict` writes, which reads the whole text for each character."""
    ids = list(TOKENIZER.encode(prompt))
    for _ in range(count):
        padded = np.array([ids + [0] * (LENGTH - len(ids))]) if sequences else np.array([ids])
        found = model.predict(np.eye(V)[padded] if one_hot else padded, verbose=0)[0]
        ids.append(int((found[len(ids) - 1] if sequences else found).argmax()))
    return TOKENIZER.decode(ids[-count:])


@pytest.mark.backends
@pytest.mark.parametrize("options", MODELS, ids=str)
@pytest.mark.parametrize("prompt", ["a", "ab", "abcdefghijklmabc"], ids=len)
def test_likeliest_text_is_that_of_predict_on_the_whole_text(options, prompt):
    model = convolved(**options)
    forms = {name: options[name] for name in ("one_hot", "sequences") if name in options}
    count = 20 if forms.get("sequences", True) else 5
    made = {"vocabulary": IN_ORDER, "temperature": 0, "max_tokens": count}
    right = likeliest(model, prompt, count, **forms)
    assert generate(model, prompt, **made) == right
    assert generate(model, prompt, implementation="cellerate-cpu", **made) == right


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_way_to_a_packed_convolution_gives_the_same_text(tmp_path, precision):
    model, options = convolved(), {"max_tokens": 300, "seed": 4}
    cellerate.pack(model, tmp_path / "m.cell", precision=precision, vocabulary=IN_ORDER)
    opened = cellerate.load(tmp_path / "m.cell")
    expected = opened.generate("abc", **options)
    assert generate(tmp_path / "m.cell", "abc", **options) == expected
    assert generate(model, "abc", vocabulary=IN_ORDER, precision=precision, **options) == expected
    prompts = ["abc", "b", "cab" * 200, "abc"]
    assert opened.generate(prompts, temperature=0) == [opened.generate(p, temperature=0) for p in prompts]
    assert len(opened.beam_search("abc", beams=3, max_tokens=9)) == 3


def test_convolution_that_skips_steps_is_refused_in_words(tmp_path):
    skipping = convolved(strides=2)
    cellerate.pack(skipping, tmp_path / "m.cell")
    with pytest.raises(ModelError, match=r"conv1d.*: it has strides=2, so most steps have no result"):
        generate(tmp_path / "m.cell", "abc", vocabulary=IN_ORDER)
    with pytest.raises(ModelError, match="padding='causal' and strides=1"):
        generate(skipping, "abc", vocabulary=IN_ORDER)


def test_samples_and_scores_of_a_trained_convolution(tmp_path):
    layers = keras.layers
    own = [layers.Embedding(TEXT_V, 4), layers.Conv1D(6, 3, padding="causal")]
    own += [layers.LSTM(8, return_sequences=True), layers.Dense(TEXT_V)]
    run = fit(tmp_path, model=keras.Sequential([keras.Input((None,), dtype="int32"), *own]), sample_every=20)
    lines = (run.training.folder / "telemetry.jsonl").read_text().splitlines()
    assert any("sample" in json.loads(line) for line in lines)
    cellerate.pack(tmp_path / "m.keras", tmp_path / "m.cell")
    text = (tmp_path / "text.txt").read_text()[:400]
    ids = run.tokenizer.encode(text).astype(int)
    right = log_probabilities(run.training.model, ids[None, :-1])[0][np.arange(399), ids[1:]]
    found = cellerate.load(tmp_path / "m.cell").score(text)
    np.testing.assert_allclose(found.log_probabilities, right, atol=1e-4)
