"""Generating text, on the native engine, on a GPU and by Keras: three ways, one text."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import cellerate
import cellerate.tasks.text.generating as generating
from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer
from cellerate.errors import BackendError, CellerateError, ConfigError, DataError, ModelError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.models.storage import save_model
from cellerate.program import PRECISIONS
from cellerate.tasks.inference import generate
from cellerate.tasks.packing import packed
from cellerate.tasks.text.generating import generate_text
from cellerate.tasks.text.train import TextModel, load_text_model
from support.kernels import emulated_gpu
from support.runs.text_models import (
    IN_ORDER,
    ONE_HOT,
    RECORD,
    TOKENIZER,
    V,
    filled,
    gru,
    last_softmax,
    made,
    many_to_one,
    masked,
    of_gru,
    one_hot,
    one_hot_to_last,
    softmax,
    stateful,
    tied,
)

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
BOTH = pytest.mark.parametrize("implementation", ["cellerate-cpu", "keras"])


def text_model(**options):
    return TextModel(made(**options), TOKENIZER, {})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "m.keras"
    save_model(made(), path, RECORD)
    return path


@pytest.fixture
def without_core(monkeypatch):
    def core():
        raise BackendError("the native core is not installed (test)")

    monkeypatch.setattr("cellerate.kernels.decoder.cpu.core", core)


@pytest.mark.backends
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7},
        {"temperature": 1.4, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 1.2, "top_k": 9, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_same_seed_draws_the_same_text_by_keras_and_on_the_engine(path, rules):
    texts = [
        generate(path, "abc", max_tokens=200, seed=11, implementation=implementation, **rules)
        for implementation in ("keras", "cellerate-cpu", "auto")
    ]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 200


@pytest.mark.backends
@pytest.mark.parametrize("make", [many_to_one, softmax, stateful, tied, masked, *ONE_HOT])
def test_any_chain_gives_the_same_text_by_keras_and_on_the_engine(make):
    model = filled(make(), 5)
    options = {"vocabulary": IN_ORDER, "max_tokens": 100, "seed": 2}
    expected = generate(model, "abc", implementation="keras", **options)
    assert generate(model, "abc", implementation="cellerate-cpu", **options) == expected
    assert len(set(expected)) > 1


@pytest.mark.backends
@pytest.mark.parametrize("make", [one_hot, one_hot_to_last, many_to_one, last_softmax])
def test_greedy_text_of_any_form_is_that_of_a_loop_over_predict(make):
    model = filled(make(), 29)  # of these weights the texts have more than one character
    ids = [3, 14, 0, 9]
    for _ in range(6):
        given = np.array([ids]) if len(model.inputs[0].shape) == 2 else np.eye(V, dtype="float32")[None, ids]
        predicted = model.predict(given, verbose=0)[0]
        ids.append(int((predicted if predicted.ndim == 1 else predicted[-1]).argmax()))
    expected = "".join(IN_ORDER[one] for one in ids)
    assert len(set(expected[4:])) > 1
    for implementation in ("cellerate-cpu", "keras"):
        options = {"max_tokens": 6, "temperature": 0, "implementation": implementation}
        assert expected[:4] + generate(model, expected[:4], vocabulary=IN_ORDER, **options) == expected


@BOTH
def test_generate_same_seed_same_text_and_other_seed_other_text(path, implementation):
    one = generate(path, "ahe", max_tokens=60, seed=3, implementation=implementation)
    assert one == generate(path, "ahe", max_tokens=60, seed=3, implementation=implementation)
    assert one != generate(path, "ahe", max_tokens=60, seed=4, implementation=implementation)
    unseeded = {generate(path, "ahe", max_tokens=60, implementation=implementation) for _ in range(3)}
    assert len(unseeded) > 1
    assert len(one) == 60


@BOTH
def test_generate_greedy_takes_the_likeliest_of_the_whole_model(path, implementation):
    model = load_text_model(path)
    said = generate(path, "abc", max_tokens=8, temperature=0, implementation=implementation)
    ids = list(TOKENIZER.encode("abc"))
    for _ in range(8):
        logits = model.model(np.array([ids], np.int32), training=False)
        ids.append(int(keras.ops.convert_to_numpy(logits)[0, -1].argmax()))
    assert said == TOKENIZER.decode(ids[3:])


@pytest.mark.backends
@BOTH
def test_weights_are_read_at_each_call(implementation):
    model = made()
    options = {"vocabulary": IN_ORDER, "max_tokens": 50, "temperature": 0, "implementation": implementation}
    before = generate(model, "abc", **options)
    trained = made(seed=2)
    model.set_weights(trained.get_weights())
    after = generate(model, "abc", **options)
    assert before != after
    assert after == generate(trained, "abc", **options)


@BOTH
def test_streamed_pieces_joined_are_the_whole_and_come_one_by_one(path, implementation):
    model = load_text_model(path)
    rules = SamplingRules(temperature=0.7, seed=1)
    options = {"max_tokens": 40, "implementation": implementation}
    pieces = list(generate_text(model, "abc", rules=rules, stop=["m x"], **options))
    assert len(pieces) > 1
    assert "".join(pieces) == generate(path, "abc", temperature=0.7, seed=1, stop=["m x"], **options)


@BOTH
def test_a_stop_text_ends_the_generation_before_it(path, implementation):
    options = {"max_tokens": 60, "seed": 3, "implementation": implementation}
    whole = generate(path, "abc", **options)
    stop = whole[20:23]
    assert generate(path, "abc", stop=[stop], **options) == whole[: whole.find(stop)]


@BOTH
def test_bytes_are_streamed_as_whole_characters_and_any_text_can_be_continued(implementation):
    model = TextModel(made(vocabulary=256), ByteTokenizer(), {})
    rules = SamplingRules(temperature=2.0, seed=0)
    pieces = list(
        generate_text(model, "größer 日本", max_tokens=60, rules=rules, implementation=implementation)
    )
    assert "".join(pieces) == "".join(pieces).encode().decode()
    assert "\ufffd" in "".join(pieces)


def test_auto_takes_the_engine_where_it_can(path, monkeypatch):
    monkeypatch.setattr(generating, "KerasStepper", None)
    assert len(generate(path, "abc", max_tokens=5)) == 5


@pytest.mark.backends
@pytest.mark.parametrize(("make", "reason"), [(of_gru, "GRU"), (gru, "GRU")])
def test_auto_takes_keras_for_what_the_engine_cannot_and_demanding_the_engine_says_why(make, reason):
    model, options = make(), {"vocabulary": IN_ORDER, "max_tokens": 20, "seed": 1}
    assert generate(model, "abc", **options) == generate(model, "abc", implementation="keras", **options)
    for demand in ({"implementation": "cellerate-cpu"}, {"precision": "int8"}):
        with pytest.raises(ModelError, match=reason):
            generate(model, "abc", **options, **demand)


def test_auto_takes_keras_without_the_core_and_demanding_the_engine_raises(path, without_core):
    assert generate(path, "abc", max_tokens=5, seed=1) == generate(
        path, "abc", max_tokens=5, seed=1, implementation="keras"
    )
    for demand in ({"implementation": "cellerate-cpu"}, {"precision": "bfloat16"}):
        with pytest.raises(BackendError, match="not installed"):
            generate(path, "abc", **demand)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_way_to_a_packed_model_gives_the_same_text(path, tmp_path, precision):
    cellerate.pack(path, tmp_path / "m.cell", precision=precision)
    options = {"max_tokens": 2000, "temperature": 2.0, "seed": 4}
    expected = cellerate.load(tmp_path / "m.cell").generate("abc", **options)
    assert generate(path, "abc", precision=precision, **options) == expected
    assert generate(tmp_path / "m.cell", "abc", **options) == expected
    assert generate(str(tmp_path / "m.cell"), "abc", implementation="cellerate-cpu", **options) == expected
    opened = packed(made(), RECORD, precision=precision)
    assert generate(opened, "abc", precision=precision, **options) == expected
    assert (expected == generate(path, "abc", **options)) == (precision == "float32")


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt": ""}, ConfigError, "prompt is empty"),
        ({"prompt": "abcZ"}, DataError, "'Z'"),
        ({"stop": [""]}, ConfigError, "stop text is empty"),
        ({"max_tokens": -1}, ConfigError, "max_tokens"),
        ({"max_tokens": 1.5}, ConfigError, "max_tokens"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"top_k": 0}, ConfigError, "top_k"),
        ({"top_p": 0.0}, ConfigError, "top_p"),
        ({"min_p": 2.0}, ConfigError, "min_p"),
        ({"repetition_penalty": 0.0}, ConfigError, "repetition_penalty"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"precision": "int2"}, ConfigError, "float32, bfloat16, int8, int4"),
        ({"vocabulary": IN_ORDER}, ConfigError, "has its own"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_generate_with_a_wrong_argument_raises(path, implementation, arguments, error, message):
    with pytest.raises(error, match=message):
        generate(path, **({"prompt": "abc", "implementation": implementation} | arguments))


@BOTH
@pytest.mark.parametrize(
    "options", [{"prompt": ""}, {"prompt": "Z"}, {"stop": [""]}, {"max_tokens": -1}], ids=str
)
def test_generate_text_checks_its_arguments_before_the_first_piece_is_asked_for(implementation, options):
    with pytest.raises(CellerateError):
        generate_text(text_model(), **({"prompt": "abc", "implementation": implementation} | options))


def test_settings_that_contradict_each_other_raise(path):
    with pytest.raises(ConfigError, match=r"auto, cellerate-cpu, cellerate-cuda, keras.*'cudnn'"):
        generate(path, "abc", implementation="cudnn")
    with pytest.raises(ConfigError, match="native engine"):
        generate(path, "abc", implementation="keras", precision="int8")
    opened = packed(made(), RECORD)
    with pytest.raises(ConfigError, match="no Keras layers"):
        generate(opened, "abc", implementation="keras")
    with pytest.raises(ConfigError, match="is of float32"):
        generate(opened, "abc", precision="int8")
    with pytest.raises(ConfigError, match="packed model, not int"):
        generate(3, "abc")


@BOTH
def test_plain_model_needs_the_tokenizer_it_was_made_for(implementation):
    model = made(vocabulary=3)
    with pytest.raises(ConfigError, match=r"such as vocabulary='book\.txt'"):
        generate(model, "a", implementation=implementation)
    said = generate(model, "a", vocabulary=["a", "b", "c"], max_tokens=9, implementation=implementation)
    assert len(said) == 9
    for other in ("ab", "abcd"):
        with pytest.raises(
            ModelError, match=f"has {len(other)} entries, and the model predicts 3 different ids"
        ):
            generate(model, "a", vocabulary=list(other), implementation=implementation)


@pytest.mark.parametrize("implementation", ["auto", "cellerate-cpu", "keras"])
def test_diverged_model_raises(implementation):
    model = made()
    weights = model.get_weights()
    weights[-1][:] = np.nan
    model.set_weights(weights)
    with pytest.raises(ModelError, match="NaN"):
        generate(model, "abc", vocabulary=IN_ORDER, implementation=implementation)


def ended(text, stops):
    """What is shown of `text`, a character at a time, if generation ends at the first complete stop text."""
    for end in range(1, len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)]
    return text


@pytest.fixture
def scripted(monkeypatch):
    """Makes `generate_text` say a given text."""
    tokenizer = CharacterTokenizer("abc")
    model = TextModel(made(vocabulary=3), tokenizer, {})

    def say(text, stops):
        ids = tokenizer.encode(text).tolist() if text else []
        monkeypatch.setattr(generating, "generate_ids", lambda *_, **__: iter(ids))
        return list(generate_text(model, "a", stop=stops, implementation="keras"))

    stepper = type("Stepper", (), {"vocabulary_size": 3})()
    monkeypatch.setattr(generating, "KerasStepper", lambda model: stepper)
    return say


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stop_texts_end_at_the_first_complete_one_and_nothing_of_it_is_shown(scripted, text, stops):
    assert "".join(scripted(text, stops)) == ended(text, stops)


def test_stop_text_held_back_and_then_not_completed_is_shown_after_all(scripted):
    assert scripted("aabc", ["abb"]) == ["a", "abc"]
    assert scripted("cab", ["abb"]) == ["c", "ab"]
    assert scripted("cabbc", ["abb"]) == ["c"]


def test_text_written_on_a_gpu_is_that_of_the_native_engine(monkeypatch):
    emulated_gpu.replace_driver(monkeypatch)
    model = text_model(layer_norm=False)
    for rules in (SamplingRules(seed=3), SamplingRules(temperature=0)):
        texts = [
            "".join(generate_text(model, "ab", max_tokens=40, rules=rules, implementation=implementation))
            for implementation in ("cellerate-cpu", "cellerate-cuda")
        ]
        assert texts[0] == texts[1] and len(texts[0]) == 40


def test_gpu_that_is_demanded_and_not_there_or_cannot_run_the_model_is_refused(monkeypatch):
    asked = r"implementation='cellerate-cuda' needs an NVIDIA GPU .*Leave implementation out"
    with pytest.raises(BackendError, match=asked):
        generate_text(text_model(), "ab", implementation="cellerate-cuda")
    emulated_gpu.replace_driver(monkeypatch)
    with pytest.raises(ModelError, match="layer_norm"):
        generate_text(text_model(), "ab", implementation="cellerate-cuda")


def test_implementation_that_a_packed_model_does_not_run_where_it_was_loaded_is_refused(
    path, tmp_path, monkeypatch
):
    emulated_gpu.replace_driver(monkeypatch)
    cellerate.pack(path, tmp_path / "m.cell")
    on_gpu, on_cpu = (cellerate.load(tmp_path / "m.cell", device=device) for device in ("cuda:0", "cpu"))
    with pytest.raises(ConfigError, match=r"'cellerate-cpu', .* is on device 'cuda:0': .*device='cpu'"):
        generate(on_gpu, "abc", implementation="cellerate-cpu")
    for model in (on_cpu, tmp_path / "m.cell"):
        with pytest.raises(ConfigError, match=r"'cellerate-cuda', .* is on device 'cpu': .*device='cuda'"):
            generate(model, "abc", implementation="cellerate-cuda")
