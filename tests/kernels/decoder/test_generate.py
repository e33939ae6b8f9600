"""Generation by the native core: rows, stops, cancels and threads."""

import threading
from typing import Any

import numpy as np
import pytest

from cellerate.kernels import native
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.sampling import Cancellation, Request, SamplingRules, sample
from cellerate.program import PRECISIONS
from support.kernels.decoder_chains import CHAINS, V, ids_of, long_chain, plain_chain, start_of

pytestmark = pytest.mark.usefixtures("native_settings")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_generate_equals_steps_and_the_sampler(precision: str, threads: int | None) -> None:
    model = StepModel(long_chain(), precision=precision, threads=threads)
    state, logits = start_of(model)
    rules = SamplingRules(
        temperature=0.9, top_k=15, top_p=0.95, min_p=0.01, repetition_penalty=1.3, penalty_window=8, seed=9
    )
    previous = [1, 2, 3]
    ids, scores, after, following = model.generate(state, logits, 30, rules, position=4, previous=previous)
    expected_ids, expected_scores = [], []
    for position in range(4, 34):
        drawn, score = sample(logits, rules, position, previous + expected_ids)
        expected_ids.append(drawn)
        expected_scores.append(score)
        state, rows = model.step(state, np.array([drawn]))
        logits = rows[0]
    assert ids.tolist() == expected_ids
    np.testing.assert_array_equal(scores, np.float32(expected_scores))
    np.testing.assert_array_equal(after, state)
    np.testing.assert_array_equal(following, logits)


def _requests(counts: list[int], **options: Any) -> list[Request]:
    """Requests that differ in everything a request has."""
    return [
        Request(
            count,
            SamplingRules(
                temperature=0.7 + 0.1 * row,
                top_k=None if row % 2 else 9,
                repetition_penalty=1 + 0.1 * row,
                seed=5,
                stream=row,
            ),
            position=3 * row,
            previous=[row, 1, 2],
            **options,
        )
        for row, count in enumerate(counts)
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2, 3, None])
@pytest.mark.parametrize("chain", CHAINS)
def test_rows_are_generated_as_if_alone(chain: str, precision: str, threads: int | None) -> None:
    model = StepModel(CHAINS[chain](), precision=precision, threads=threads)
    counts = [12, 0, 30, 1, 29, 30, 7]
    state, logits = model.read(model.initial_state(7), ids_of(7, 5))
    drawn, after, following = model.generate_rows(state, logits, _requests(counts))
    for row, request in enumerate(_requests(counts)):
        alone = model.generate(
            state[row : row + 1],
            logits[row],
            request.count,
            request.rules,
            position=request.position,
            previous=request.previous,
        )
        np.testing.assert_array_equal(drawn[row].ids, alone[0])
        np.testing.assert_array_equal(drawn[row].log_probabilities, alone[1])
        np.testing.assert_array_equal(after[row], alone[2][0])
        np.testing.assert_array_equal(following[row], alone[3])
        assert len(alone[0]) == request.count


def test_a_row_ends_before_its_stop_id_and_others_go_on() -> None:
    model = StepModel(plain_chain())
    state, logits = model.read(model.initial_state(3), ids_of(3, 5))
    whole = model.generate_rows(state, logits, _requests([40, 40, 40]))[0]
    stop = int(whole[1].ids[20])
    drawn, after, _ = model.generate_rows(
        state,
        logits,
        [
            Request(40, r.rules, r.position, r.previous, (stop,) if row == 1 else ())
            for row, r in enumerate(_requests([40] * 3))
        ],
    )
    place = whole[1].ids.tolist().index(stop)
    np.testing.assert_array_equal(drawn[1].ids, whole[1].ids[:place])
    for row in (0, 2):
        np.testing.assert_array_equal(drawn[row].ids, whole[row].ids)
    read = model.read(state[1:2], drawn[1].ids[None])[0] if place else state[1:2]
    np.testing.assert_array_equal(after[1], read[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_ends_one_row_and_others_go_on(threads: int) -> None:
    model = StepModel(plain_chain(16), threads=threads)
    state, logits = model.read(model.initial_state(2), ids_of(2, 5))
    cancellation = Cancellation()
    cancellation.cancel()
    requests = [Request(50, cancellation=cancellation), Request(50, SamplingRules(stream=1))]
    drawn, after, following = model.generate_rows(state, logits, requests)
    assert drawn[0].ids.size == 0
    assert len(drawn[1].ids) == 50
    np.testing.assert_array_equal(after[0], state[0])
    np.testing.assert_array_equal(following[0], logits[0])


def test_generating_no_rows_gives_no_rows() -> None:
    model = StepModel(plain_chain())
    drawn, state, logits = model.generate_rows(model.initial_state(0), np.zeros((0, V), np.float32), [])
    assert drawn == []
    assert (state.shape, logits.shape) == ((0, model.state_size), (0, V))


def test_another_target_draws_the_same_ids_and_log_probabilities() -> None:
    found = []
    for target in native.available_targets():
        native.set_target(target)
        model = StepModel(long_chain())
        state, logits = model.read(model.initial_state(3), ids_of(3, 5))
        drawn = model.generate_rows(state, logits, _requests([60] * 3))[0]
        found.append((np.stack([d.ids for d in drawn]), np.stack([d.log_probabilities for d in drawn])))
    assert len(found) > 1
    for ids, scores in found[1:]:
        np.testing.assert_array_equal(ids, found[0][0])
        np.testing.assert_array_equal(scores, found[0][1])


def test_generate_can_go_on_where_it_ended() -> None:
    model = StepModel(plain_chain())
    state, logits = start_of(model)
    whole = model.generate(state, logits, 20)[0]
    first, _, state, logits = model.generate(state, logits, 8)
    second = model.generate(state, logits, 12, position=8)[0]
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_generate_ends_before_a_stop_id() -> None:
    model = StepModel(plain_chain())
    state, logits = start_of(model)
    whole = model.generate(state, logits, 20)[0]
    stop = int(whole[9])
    place = whole.tolist().index(stop)
    ids, _, after, following = model.generate(state, logits, 20, stop_ids=[stop])
    np.testing.assert_array_equal(ids, whole[:place])
    # The stop id was not read: it is drawn again from the logits given.
    assert sample(following, SamplingRules(), place)[0] == stop
    if place:
        np.testing.assert_array_equal(after, model.read(state, ids[None])[0])


def test_generate_of_nothing_gives_what_was_given() -> None:
    model = StepModel(plain_chain())
    state, logits = start_of(model)
    ids, scores, after, following = model.generate(state, logits, 0)
    assert ids.size == scores.size == 0
    np.testing.assert_array_equal(after, state)
    np.testing.assert_array_equal(following, logits)


@pytest.mark.parametrize("threads", [1, 2])
def test_cancel_ends_a_generation_in_another_thread(threads: int) -> None:
    model = StepModel(plain_chain(16), threads=threads)
    state, logits = start_of(model)
    cancellation = Cancellation()
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(model.generate(state, logits, 5_000_000, cancellation=cancellation))
    )
    thread.start()
    cancellation.cancel()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert cancellation.cancelled
    ids, scores, _, _ = results[0]
    assert len(ids) == len(scores) < 5_000_000


def test_two_threads_use_one_model_at_once() -> None:
    model = StepModel(plain_chain(), threads=2)
    state, logits = start_of(model)
    expected = model.generate(state, logits, 400)[0]
    results: list[np.ndarray] = []

    def work() -> None:
        results.extend(model.generate(state, logits, 400)[0] for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    for result in results:
        np.testing.assert_array_equal(result, expected)
