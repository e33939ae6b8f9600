"""A model driven step by step: its state can be cloned, kept, split and joined, and always matches the ids read."""

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError
from cellerate.kernels.decoder.sampling import SamplingRules


def _ids(batch, length, seed=0):
    return np.random.default_rng(seed).integers(0, 29, (batch, length))


def _equal(one, other):
    np.testing.assert_array_equal(one.state, other.state)
    np.testing.assert_array_equal(one.logits, other.logits)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_steps_and_reads_give_what_predict_gives(packed, precision):
    model, ids = packed(precision), _ids(3, 12)
    read, stepped = model.stepper(3), model.stepper(3)
    logits = read.read(ids)
    for place in range(12):
        stepped.step(ids[:, place])
    _equal(read, stepped)
    np.testing.assert_array_equal(logits, read.logits)
    wanted = model.predict(ids)[:, -1]
    error = np.sqrt(np.mean((logits - wanted) ** 2) / np.mean(wanted**2))
    assert error < {"float32": 1e-6, "bfloat16": 2.0**-7, "int8": 2.0**-5}[precision]


def test_clone_is_independent_of_its_original(packed):
    stepper = packed().stepper()
    stepper.read(_ids(1, 5))
    clone, before = stepper.clone(), stepper.state.copy()
    clone.step([3])
    np.testing.assert_array_equal(stepper.state, before)
    stepper.step([3])
    _equal(stepper, clone)


def test_sequences_join_and_leave_as_if_alone(packed):
    model, ids = packed(), _ids(5, 9)
    alone = [model.stepper() for _ in range(5)]
    for row, one in enumerate(alone):
        one.read(ids[row : row + 1])
    together = model.stepper(0)
    for one in alone:
        together.join(one)
    assert together.batch_size == 5
    left = together.leave([3, 0])
    assert (left.batch_size, together.batch_size) == (2, 3)
    logits = left.step([7, 8])
    np.testing.assert_array_equal(logits[0], alone[3].step([7])[0])
    np.testing.assert_array_equal(logits[1], alone[0].step([8])[0])
    together.read(ids[:3], lengths=[9, 1, 4])
    alone[4].read(ids[2:3, :4])
    np.testing.assert_array_equal(together.state[2], alone[4].state[0])
    together.join(together)
    assert together.batch_size == 6


def test_a_saved_state_comes_back_in_another_stepper(packed, tmp_path):
    model = packed()
    stepper = model.stepper(2)
    stepper.read(_ids(2, 30))
    stepper.save(tmp_path / "prefix.state")
    other = packed().stepper()
    other.restore(tmp_path / "prefix.state")
    _equal(stepper, other)
    _equal_draws = [each.draw(20, [SamplingRules(seed=4)] * 2) for each in (stepper, other)]
    for one, same in zip(*_equal_draws, strict=True):
        np.testing.assert_array_equal(one.ids, same.ids)
    _equal(stepper, other)


def test_draw_continues_from_the_state(packed):
    model = packed()
    stepper = model.stepper()
    stepper.read(model.tokenizer.encode("abc")[None])
    (drawn,) = stepper.draw(40, SamplingRules(seed=5))
    assert model.tokenizer.decode(drawn.ids) == model.generate("abc", max_tokens=40, seed=5)


def test_rows_draw_with_their_own_counts_streams_places_and_stops(packed):
    model = packed()
    prompts = ["abc", "cab", "bbb"]
    ids = np.stack([model.tokenizer.encode(prompt) for prompt in prompts])
    stepper = model.stepper(3)
    stepper.read(ids)
    rules = SamplingRules(seed=5, repetition_penalty=1.3)
    drawn = stepper.draw([40, 7, 0], rules, previous=ids)
    texts = model.generate(prompts, max_tokens=40, seed=5, repetition_penalty=1.3)
    assert [model.tokenizer.decode(one.ids) for one in drawn] == [texts[0], texts[1][:7], ""]
    # The second row continues where it stopped, as if it had never stopped.
    second = stepper.leave([0, 2])
    assert stepper.batch_size == 1
    assert second.batch_size == 2
    seen = np.concatenate([ids[1], drawn[1].ids])
    (rest,) = stepper.draw(
        33, [SamplingRules(seed=5, repetition_penalty=1.3, stream=1)], position=7, previous=[seen]
    )
    assert model.tokenizer.decode(rest.ids) == texts[1][7:]
    other = model.stepper()
    other.read(model.tokenizer.encode("abc")[None])
    first = model.tokenizer.encode(texts[0][:1])
    (nothing,) = other.draw(40, rules, previous=ids[:1], stop_ids=first)
    assert len(nothing.ids) == 0


@pytest.mark.parametrize("other", ["model", "precision", "cell", "damaged", "missing"])
def test_state_of_another_shape_is_refused_and_changes_nothing(packed, tmp_path, other):
    path = tmp_path / "x.state"
    stepper = packed().stepper()
    stepper.read(_ids(1, 3))
    before = stepper.clone()
    if other == "model":
        made = packed(bias=1.0).stepper()
    elif other == "precision":
        made = packed("int8").stepper()
    else:
        made = packed().stepper()
    made.save(path)
    if other == "cell":
        from cellerate.runtime.cell import write_cell

        write_cell(path, packed().cell.program)
    elif other == "damaged":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif other == "missing":
        path.unlink()
    with pytest.raises(DataError, match=r"x\.state"):
        stepper.restore(path)
    _equal(stepper, before)


def test_wrong_arguments_are_refused(packed):
    model = packed()
    stepper = model.stepper(2)
    for rows in ([2], [-1], [0, 0], [0.5]):
        with pytest.raises(ConfigError, match="rows"):
            stepper.leave(rows)
    with pytest.raises(ConfigError, match="another model"):
        stepper.join(packed().stepper())
    for given in (
        {"count": [1] * 3},
        {"count": 1, "rules": [SamplingRules()]},
        {"count": 1, "previous": [[1]]},
    ):
        with pytest.raises(ConfigError, match=r"has [13] entries; expected 2, one a sequence"):
            stepper.draw(**given)
    with pytest.raises(DataError, match="29"):
        stepper.step([0, 29])
    with pytest.raises(ConfigError, match="no sequence"):
        model.stepper(0).save("never.state")
    assert stepper.batch_size == 2
