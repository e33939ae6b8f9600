"""The generation loop, tested with steppers whose every answer is known."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.sampling import SamplingRules, sample
from cellerate.runtime.text.keras_generation import generate_ids

GREEDY = SamplingRules(temperature=0)


class Counting:
    """Predicts the sum of all ids read so far, modulo 10; its state is that sum."""

    vocabulary_size = 10

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def initial_state(self, batch_size: int = 1) -> int:
        assert batch_size == 1
        return 0

    def prefill(self, state: int, ids: np.ndarray) -> tuple[int, np.ndarray]:
        self.calls.append(("prefill", ids.shape))
        return self._answer(state + int(ids.sum()))

    def step(self, state: int, ids: np.ndarray) -> tuple[int, np.ndarray]:
        assert ids.dtype.kind == "i"
        self.calls.append(("step", ids.shape))
        return self._answer(state + int(ids[0]))

    def _answer(self, state: int) -> tuple[int, np.ndarray]:
        logits = np.zeros((1, 10), np.float32)
        logits[0, state % 10] = 5
        return state, logits


class Diverged(Counting):
    def _answer(self, state: int) -> tuple[int, np.ndarray]:
        return state, np.full((1, 10), np.nan, np.float32)


class Falling(Counting):
    """Each id is less likely than the id before it, whatever was read."""

    def _answer(self, state: int) -> tuple[int, np.ndarray]:
        return state, np.arange(20, 10, -1, dtype=np.float32)[None]


def greedy(prompt: Any, max_tokens: int, **options: Any) -> list[int]:
    return list(generate_ids(Counting(), prompt, max_tokens=max_tokens, rules=GREEDY, **options))


def test_generate_ids_feeds_each_drawn_id_back() -> None:
    # 1+2=3; then +3=6, +6=12, +2=14, +4=18, …
    assert greedy([1, 2], 6) == [3, 6, 2, 4, 8, 6]


def test_generate_ids_reads_the_prompt_once_and_takes_no_step_too_many() -> None:
    stepper = Counting()
    list(generate_ids(stepper, np.array([1, 2, 3], np.uint8), max_tokens=3, rules=GREEDY))
    assert stepper.calls == [("prefill", (1, 3)), ("step", (1,)), ("step", (1,))]


def test_generate_ids_streams_each_id_as_it_is_drawn() -> None:
    stepper = Counting()
    stream = generate_ids(stepper, [1], max_tokens=1_000_000, rules=GREEDY)
    assert isinstance(stream, Iterator)
    assert stepper.calls == []
    assert list(islice(stream, 2)) == [1, 2]
    assert len(stepper.calls) == 2


def test_generate_ids_ends_before_a_stop_id() -> None:
    assert greedy([1, 2], 6, stop_ids=[4, 9]) == [3, 6, 2]
    assert greedy([1, 2], 6, stop_ids=iter([3])) == []


def test_generate_ids_of_no_tokens_runs_nothing() -> None:
    stepper = Counting()
    assert list(generate_ids(stepper, [1], max_tokens=0)) == []
    assert stepper.calls == []


def test_generate_ids_with_the_same_seed_repeats() -> None:
    def run(seed: int) -> list[int]:
        hot = SamplingRules(temperature=5, seed=seed)
        return list(generate_ids(Counting(), [1], max_tokens=40, rules=hot))

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert len(run(1)) == 40


def test_generate_ids_draws_each_id_with_the_random_number_of_its_place() -> None:
    rules = SamplingRules(temperature=5, seed=3, stream=2)
    drawn = list(generate_ids(Counting(), [1], max_tokens=40, rules=rules))
    total, expected = 1, []
    for position in range(40):
        logits = np.zeros(10, np.float32)
        logits[total % 10] = 5
        expected.append(sample(logits, rules, position)[0])
        total += expected[-1]
    assert drawn == expected
    assert drawn[:5] == list(generate_ids(Counting(), [1], max_tokens=5, rules=rules))


def test_generate_ids_penalises_the_ids_of_the_prompt_and_its_own() -> None:
    rules = SamplingRules(temperature=0, repetition_penalty=1e9)
    assert list(generate_ids(Falling(), [0, 1], max_tokens=4, rules=rules)) == [2, 3, 4, 5]
    narrow = SamplingRules(temperature=0, repetition_penalty=1e9, penalty_window=3)
    prompt = np.array([0, 1], np.uint64)
    assert list(generate_ids(Falling(), prompt, max_tokens=4, rules=narrow)) == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ([], {}, ConfigError, "empty"),
        ([[1, 2]], {}, ConfigError, "one sequence"),
        ([1, 10], {}, DataError, r"prompt_ids\[1\] is 10.*0 to 9"),
        ([-1], {}, DataError, r"prompt_ids\[0\] is -1"),
        ([1.0], {}, DataError, "integers"),
        ([1], {"max_tokens": -1}, ConfigError, "max_tokens"),
        ([1], {"max_tokens": 2.5}, ConfigError, "max_tokens"),
        ([1], {"stop_ids": [10]}, ConfigError, "stop_ids"),
    ],
)
def test_generate_ids_with_a_wrong_argument_raises_before_the_first_id(
    prompt: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        generate_ids(Counting(), prompt, **{"max_tokens": 3, **options})


def test_generate_ids_of_a_diverged_model_raises() -> None:
    with pytest.raises(ModelError, match="NaN"):
        next(generate_ids(Diverged(), [1], max_tokens=3))


def test_runtime_imports_no_keras_and_no_framework() -> None:
    code = (
        "import sys, cellerate.runtime.text.keras_generation, cellerate.runtime.text.sampling;"
        "print([m for m in ('keras', 'tensorflow', 'jax', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
