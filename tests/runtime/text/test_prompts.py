"""Prompts that are read in parts, and the cache of prompts that were read before."""

import tracemalloc

import numpy as np
import pytest

from cellerate.kernels.decoder.cpu import StepModel
from cellerate.runtime.text.prompts import PromptReader

PART = 4


@pytest.fixture
def steps(text_model, monkeypatch):
    monkeypatch.setattr(StepModel, "most_drawn", PART)
    return text_model.packed().steps


def ids(*numbers):
    return np.array(numbers, np.int32)


def read(reader, given):
    prompt = reader.begin(given)
    while not prompt.is_read:
        reader.read([prompt])
    return prompt


@pytest.mark.parametrize("length", [1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 2])
def test_prompt_in_parts_gives_the_bits_of_the_whole(steps, length):
    given = np.arange(1, length + 1, dtype=np.int32)
    state, logits = steps.read(steps.initial_state(), given[None])
    remembering = PromptReader(steps, 1 << 20)
    for reader in (PromptReader(steps), remembering, remembering):
        prompt = read(reader, given)
        assert prompt.position == length
        assert prompt.state.tobytes() == state[0].tobytes()
        assert prompt.logits.tobytes() == logits[0].tobytes()
    assert remembering.recalled == length


def test_the_longest_beginning_is_recalled(steps):
    reader = PromptReader(steps, 1 << 20)
    read(reader, np.arange(1, 11, dtype=np.int32))
    longer = reader.begin(np.arange(1, 15, dtype=np.int32))
    reader.read([longer])
    # The first prompt ends at 10, within a part; its last whole part ends at 8.
    assert (reader.recalled, longer.position) == (8, 12)


def test_a_beginning_of_a_longer_prompt_is_read_for_its_logits(steps):
    reader = PromptReader(steps, 1 << 20)
    read(reader, np.arange(1, 9, dtype=np.int32))
    # At 4 only the state is known.
    short = read(reader, np.arange(1, 5, dtype=np.int32))
    assert reader.recalled == 0
    assert short.logits.tobytes() == steps.read(steps.initial_state(), short.ids[None])[1][0].tobytes()
    read(reader, np.arange(1, 5, dtype=np.int32))
    assert reader.recalled == 4


def test_unrelated_text_recalls_no_prefix(steps):
    reader = PromptReader(steps, 1 << 20)
    read(reader, ids(1, 2, 3, 4, 5))
    for other in (ids(2, 2, 3, 4, 5), ids(1, 2, 3, 5), ids(1, 2, 3, 4, 6)[:3], ids(5, 4, 3, 2, 1)):
        read(reader, other)
    assert reader.recalled == 0


def test_the_least_recently_used_is_forgotten(steps):
    reader = PromptReader(steps, 2 * (600 + 4 * steps.state_size + 4 * steps.outputs))
    first, second, third = ids(1), ids(2), ids(3)
    read(reader, first)
    read(reader, second)
    read(reader, first)
    assert reader.recalled == 1
    read(reader, third)  # the second leaves the cache
    read(reader, first)
    assert reader.recalled == 2
    read(reader, second)
    assert reader.recalled == 2


@pytest.mark.parametrize("most_bytes", [0, 10])
def test_cache_that_is_too_small_keeps_no_prompt(steps, most_bytes):
    reader = PromptReader(steps, most_bytes)
    for _ in range(2):
        read(reader, ids(1, 2, 3))
    assert reader.recalled == 0


def test_prompt_cache_stays_below_its_limit(steps):
    reader = PromptReader(steps, 50_000)
    draw = np.random.default_rng(0)
    tracemalloc.start()
    try:
        for _ in range(300):
            read(reader, draw.integers(1, steps.vocabulary_size, 9).astype(np.int32))
            held = [each for entry in reader._known.values() for each in entry if each is not None]
            assert all(each.base is None for each in held)
        with_it = tracemalloc.get_traced_memory()[0]
        del held
        reader._known.clear()
        assert 10_000 < with_it - tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


def test_failed_prompt_does_not_change_the_others(steps, monkeypatch):
    reader = PromptReader(steps, 1 << 20)
    prompts = [reader.begin(ids(1, 2, 3)), reader.begin(ids(4, 5, 6, 7, 8))]
    whole = StepModel.read

    def failing(*_):
        raise MemoryError

    monkeypatch.setattr(StepModel, "read", failing)
    with pytest.raises(MemoryError):
        reader.read(prompts)
    monkeypatch.setattr(StepModel, "read", whole)
    assert [prompt.position for prompt in prompts] == [0, 0]
    reader.read(prompts)
    assert [prompt.position for prompt in prompts] == [3, 4]
