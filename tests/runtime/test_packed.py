"""A packed text model in use. The chain is made by hand, so that no Keras is needed."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.cell import Cell, write_cell
from cellerate.runtime.packed import PackedModel, load

CHARACTERS = " abcdefghijklmnopqrstuvwxyzé☃"
V, H = len(CHARACTERS), 24


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_steps_give_the_logits_that_predict_gives(packed, precision):
    model = packed(precision)
    ids = np.random.default_rng(1).integers(0, V, (3, 20))
    state, logits = model.steps.read(model.steps.initial_state(3), ids)
    expected = model.predict(ids)[:, -1]
    error = np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2))
    # predict multiplies in float32; the steps round the inputs of products to the precision too.
    assert error < {"float32": 1e-6, "bfloat16": 2.0**-7, "int8": 2.0**-5}[precision]
    assert state.shape == (3, 2 * H)


def test_generate_repeats_by_seed_and_the_pieces_are_the_whole(packed):
    model = packed()
    text = model.generate("abc", max_tokens=700, seed=5)
    assert len(text) == 700
    assert text == model.generate("abc", max_tokens=700, seed=5)
    assert text != model.generate("abc", max_tokens=700, seed=6)
    pieces = list(model.generate_text("abc", max_tokens=700, rules=SamplingRules(seed=5)))
    assert "".join(pieces) == text
    assert model.generate("abc", max_tokens=30, seed=5) == text[:30]
    assert model.generate("abc", max_tokens=0) == ""


def test_greedy_generation_takes_the_likeliest_of_predict_each_time(packed):
    model = packed()
    ids = model.tokenizer.encode("the ").tolist()
    for _ in range(40):
        ids.append(int(model.predict(np.array([ids]))[0, -1].argmax()))
    assert model.generate("the ", max_tokens=40, temperature=0) == model.tokenizer.decode(ids[4:])


def test_generation_without_a_seed_differs_each_time(packed):
    model = packed()
    assert len({model.generate("abc", max_tokens=50) for _ in range(3)}) > 1


def test_stop_text_ends_the_generation_and_is_not_shown(packed):
    model = packed()
    text = model.generate("abc", max_tokens=300, seed=5)
    stop = text[100:103]
    assert model.generate("abc", max_tokens=300, seed=5, stop=[stop]) == text[: text.index(stop)]


def test_repetition_penalty_sees_prompt_and_text_across_native_calls(packed):
    # All logits are above 0, so this strong penalty keeps an id from coming again before all others have come.
    model = packed(bias=100.0)
    text = model.generate("a", max_tokens=V - 1, temperature=0, repetition_penalty=1e6)
    assert len(set("a" + text)) == V


def test_bytes_are_shown_as_whole_characters_only(packed):
    model = packed(tokenizer=ByteTokenizer(), vocabulary=256)
    for piece in model.generate_text("é", max_tokens=200, rules=SamplingRules(seed=2)):
        piece.encode()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"prompt": ""}, ConfigError, "prompt is empty"),
        ({"prompt": "A"}, DataError, "'A'"),
        ({"max_tokens": -1}, ConfigError, "max_tokens"),
        ({"max_tokens": 1.5}, ConfigError, "max_tokens"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"top_k": 0}, ConfigError, "top_k"),
        ({"top_p": 0.0}, ConfigError, "top_p"),
        ({"min_p": 2.0}, ConfigError, "min_p"),
        ({"seed": -1}, ConfigError, "seed"),
        ({"stop": [""]}, ConfigError, "stop text is empty"),
    ],
)
def test_wrong_arguments_of_generate_are_refused(packed, arguments, kind, message):
    with pytest.raises(kind, match=message):
        packed().generate(**({"prompt": "abc"} | arguments))


def test_tokenizer_of_another_size_is_refused(packed):
    with pytest.raises(ModelError, match="256"):
        packed(tokenizer=ByteTokenizer()).generate("abc")


@pytest.mark.parametrize("task", [3, ["text"], {}, True])
def test_model_of_another_task_is_refused_as_text(text_model, task):
    with pytest.raises(DataError, match="task"):
        PackedModel(Cell(text_model.program(), "float32", {"task": task}))


def test_threads_may_use_one_model_at_once(packed):
    model, found = packed(), {}

    def generate(seed):
        found[seed] = model.generate("abc", max_tokens=300, seed=seed)

    threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {seed: model.generate("abc", max_tokens=300, seed=seed) for seed in range(6)}


def test_program_generates_from_a_file_without_a_framework(text_model, tmp_path):
    write_cell(tmp_path / "m.cell", text_model.program(), header=text_model.header())
    expected = load(tmp_path / "m.cell").generate("abc", max_tokens=60, seed=3)
    check = (
        "import sys; from cellerate.cli.main import main; sys.argv = ['cellerate', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([n for n in ('keras', 'jax', 'torch', 'tensorflow') if n in sys.modules])"
    )
    words = ["generate", str(tmp_path / "m.cell"), "abc", "-n", "60", "--seed", "3"]
    done = subprocess.run([sys.executable, "-c", check, *words], capture_output=True, text=True, check=True)
    assert done.stdout == f"abc{expected}\n[]\n"
