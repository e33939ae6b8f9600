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
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.tasks.inference import generate
from cellerate.tasks.packing import packed
from cellerate.tasks.text.generating import generate_text
from cellerate.tasks.text.train import TextModel, load_text_model
from support.kernels import emulated_gpu

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

CHARACTERS = "abcdefghijklm .\n"
V = len(CHARACTERS)
TOKENIZER = CharacterTokenizer(CHARACTERS)
IN_ORDER = sorted(CHARACTERS)
RECORD = TaskRecord("text", {"tokenizer": TOKENIZER.to_config()})
BOTH = pytest.mark.parametrize("implementation", ["cellerate-cpu", "keras"])


def made(vocabulary=V, seed=1, **options):
    """An untrained model of the same weights on every backend, sure of what it says."""
    given = {"embedding": 6, "units": 19, "layers": 2, "layer_norm": True} | options
    return filled(build_text_model(vocabulary, **given), seed)


def filled(model, seed):
    random = np.random.default_rng(seed)
    model.set_weights([2 / len(w) ** 0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def text_model(**options):
    return TextModel(made(**options), TOKENIZER, {})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "m.keras"
    save_model(made(), path, RECORD)
    return path


def chain(*layers, mask=False, activation=None):
    table = keras.layers.Embedding(V, 5, mask_zero=mask, name="table")
    head = keras.layers.Dense(V, activation=activation)
    return keras.Sequential([keras.Input((None,), dtype="int32"), table, *layers, head])


def many_to_one():
    return chain(keras.layers.LSTM(9))


def softmax():
    return chain(keras.layers.LSTM(9, return_sequences=True), activation="softmax")


def masked():
    return chain(*[keras.layers.LSTM(9, return_sequences=True) for _ in range(2)], mask=True)


def gru():
    return chain(keras.layers.GRU(9, return_sequences=True))


def of_vectors(*layers, activation=None):
    """A model that reads one-hot vectors."""
    return keras.Sequential([keras.Input((None, V)), *layers, keras.layers.Dense(V, activation=activation)])


def of_gru():
    return of_vectors(keras.layers.GRU(9, return_sequences=True))


def one_hot():
    return of_vectors(keras.layers.LSTM(9, return_sequences=True), activation="softmax")


def one_hot_to_last():
    """As the text generators of tutorials are; the kernel of the first layer has more rows than columns."""
    stack = [
        keras.layers.LSTM(3, return_sequences=True),
        keras.layers.LayerNormalization(),
        keras.layers.LSTM(9),
    ]
    return of_vectors(*stack)


def one_hot_through_dense():
    return of_vectors(keras.layers.Dense(5), keras.layers.LSTM(9), activation="softmax")


def one_hot_through_relu():
    return of_vectors(keras.layers.Dense(5, activation="relu"), keras.layers.LSTM(9))


def one_hot_masked():
    return of_vectors(
        keras.layers.Masking(), keras.layers.LSTM(9, return_sequences=True), keras.layers.LSTM(9)
    )


def last_softmax():
    return chain(keras.layers.LSTM(9), activation="softmax")


ONE_HOT = [one_hot, one_hot_to_last, one_hot_through_dense, one_hot_through_relu, one_hot_masked]


def stateful():
    ids = keras.Input((None,), 1, dtype="int32")
    x = keras.layers.Embedding(V, 5)(ids)
    x = keras.layers.LSTM(9, return_sequences=True, stateful=True)(x)
    return keras.Model(ids, keras.layers.Dense(V)(x))


def tied():
    return build_text_model(V, embedding=9, units=9, tie_weights=True)


@pytest.fixture
def without_core(monkeypatch):
    def core():
        raise BackendError("the native core is not installed (test)")

    monkeypatch.setattr("cellerate.kernels.decoder.cpu.core", core)


# --- two ways, one text


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


@pytest.mark.parametrize("make", ONE_HOT)
def test_steps_of_ids_give_the_logits_of_one_hot_vectors(make):
    model = filled(make(), 6)
    steps = packed(model).steps
    ids = np.array([[3, 14, 0, 9, 9]])
    found = keras.ops.convert_to_numpy(model(np.eye(V, dtype="float32")[ids], training=False))
    found = found if found.ndim == 2 else found[:, -1]
    _, logits = steps.read(steps.initial_state(), ids)
    if model.layers[-1].activation is keras.activations.softmax:
        logits = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(logits, found, rtol=1e-5, atol=1e-6)


def test_stepper_of_a_model_of_one_hot_vectors_draws_ids_without_a_vocabulary():
    model = filled(one_hot_to_last(), 29)
    stepper = packed(model).stepper()
    stepper.read(TOKENIZER.encode("abc")[None])
    (drawn,) = stepper.draw(20, SamplingRules(temperature=0))
    assert TOKENIZER.decode(drawn.ids) == generate(
        model, "abc", vocabulary=IN_ORDER, max_tokens=20, temperature=0
    )


def test_temperature_of_probabilities_is_that_of_the_logits_before_the_softmax():
    model = filled(one_hot(), 4)
    logits = keras.Sequential([keras.Input((None, V)), *model.layers[:-1], keras.layers.Dense(V)])
    logits.set_weights(model.get_weights())
    for implementation in ("cellerate-cpu", "keras"):
        options = {"vocabulary": IN_ORDER, "max_tokens": 80, "seed": 3, "implementation": implementation}
        texts = {generate(one, "abc", temperature=1.7, **options) for one in (model, logits)}
        assert len(texts) == 1
        assert texts != {generate(model, "abc", **options)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_model_packed_with_a_vocabulary_needs_nothing_to_generate(tmp_path, precision):
    (tmp_path / "book.txt").write_text(CHARACTERS * 3)
    model = filled(one_hot_to_last(), 4)
    options = {"max_tokens": 50, "seed": 3}
    cellerate.pack(model, tmp_path / "m.cell", precision=precision, vocabulary=tmp_path / "book.txt")
    opened = cellerate.load(tmp_path / "m.cell")
    said = generate(tmp_path / "m.cell", "abc", **options)
    assert (opened.task, opened.vocabulary_size, opened.tokenizer.characters) == (
        "text",
        V,
        "".join(IN_ORDER),
    )
    assert said == opened.generate("abc", **options)
    assert said == generate(model, "abc", vocabulary=IN_ORDER, precision=precision, **options)
    with pytest.raises(ConfigError, match="leave vocabulary out"):
        generate(opened, "abc", vocabulary=IN_ORDER)


def test_model_packed_without_a_vocabulary_takes_one_and_stays_as_it_is(tmp_path):
    model = filled(one_hot(), 4)
    cellerate.pack(model, tmp_path / "m.cell")
    opened = cellerate.load(tmp_path / "m.cell")
    options = {"max_tokens": 50, "seed": 3}
    expected = generate(model, "abc", vocabulary=IN_ORDER, **options)
    assert generate(tmp_path / "m.cell", "abc", vocabulary=IN_ORDER, **options) == expected
    assert opened.with_vocabulary(IN_ORDER).generate("abc", **options) == expected
    with pytest.raises(ModelError, match=r"no tokenizer: .*vocabulary='book.txt'"):
        opened.generate("abc", **options)
    with pytest.raises(
        ModelError, match=f"vocabulary has 2 entries, and the model predicts {V} different ids"
    ):
        opened.with_vocabulary(["a", "b"])


def test_ids_in_an_order_of_their_own_are_those_of_the_list(tmp_path):
    model = filled(one_hot(), 4)
    order = IN_ORDER[::-1]
    options = {"max_tokens": 50, "temperature": 0}
    said = generate(model, "abc", vocabulary=order, **options)
    ids = dict(zip(order, IN_ORDER, strict=True))
    expected = generate(model, "".join(ids[one] for one in "abc"), vocabulary=IN_ORDER, **options)
    assert "".join(ids[one] for one in said) == expected
    cellerate.pack(model, tmp_path / "m.cell", vocabulary=order)
    assert generate(tmp_path / "m.cell", "abc", **options) == said


def test_wrong_vocabulary_is_one_error_before_anything_is_written(tmp_path):
    model = made(vocabulary=V)
    (tmp_path / "book.txt").write_text("abC")
    message = (
        rf"book.txt has 3 distinct characters \(3 in lower case\), and the model predicts {V} different ids"
    )
    with pytest.raises(ModelError, match=message):
        generate(model, "a", vocabulary=tmp_path / "book.txt")
    with pytest.raises(ModelError, match=message):
        cellerate.pack(model, tmp_path / "m.cell", vocabulary=tmp_path / "book.txt")
    with pytest.raises(ModelError, match="GRU"):
        cellerate.pack(gru(), tmp_path / "m.cell", vocabulary=IN_ORDER)
    with pytest.raises(ConfigError, match="leave vocabulary out"):
        cellerate.pack(model, tmp_path / "m.cell", record=RECORD, vocabulary=IN_ORDER)
    assert not (tmp_path / "m.cell").exists()


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


# --- which way is taken


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
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


# --- what is refused


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
        ({"precision": "int4"}, ConfigError, "float32, bfloat16, int8"),
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
    with pytest.raises(ConfigError, match="got int"):
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


# --- stop texts


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
    with pytest.raises(BackendError, match="cuda"):
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
