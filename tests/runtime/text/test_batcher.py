"""Sequences that join, leave, fail and are cancelled, and draw what they would draw alone."""

import threading

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError, DataError, ModelError
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.sampling import Cancellation, SamplingRules
from cellerate.runtime.text.batcher import Batcher

PROMPTS = ["abc", "a", "the quick brown fox", "zé☃", "b" * 300]
RULES = SamplingRules(temperature=0.9, repetition_penalty=1.2, seed=3)


@pytest.fixture
def model(text_model):
    return text_model.packed()


@pytest.fixture
def batcher(model):
    return Batcher(model.steps, model.tokenizer)


@pytest.fixture
def submit(model):
    def submit(batcher, prompt, max_tokens=90, **options):
        return batcher.submit(
            model.tokenizer.encode(prompt), max_tokens=max_tokens, **({"rules": RULES} | options)
        )

    return submit


@pytest.fixture
def alone(model, submit):
    """A function that draws the continuation of a prompt by itself."""

    def alone(prompt, max_tokens=90, **options):
        batcher = Batcher(model.steps, model.tokenizer)
        ticket = submit(batcher, prompt, max_tokens, **options)
        run(batcher)
        return ticket

    return alone


@pytest.fixture
def read(monkeypatch):
    """The lengths of the prompts in each call of `read`."""
    lengths, whole = [], StepModel.read

    def reading(self, state, ids, counts):
        lengths.append(counts.tolist())
        return whole(self, state, ids, counts)

    monkeypatch.setattr(StepModel, "read", reading)
    return lengths


@pytest.fixture
def counts(monkeypatch):
    """The number of ids that each call of `generate_rows` draws for each sequence."""
    asked, whole = [], StepModel.generate_rows

    def drawing(self, state, logits, requests):
        asked.append([request.count for request in requests])
        return whole(self, state, logits, requests)

    monkeypatch.setattr(StepModel, "generate_rows", drawing)
    return asked


def run(batcher):
    """Step until the batcher is idle, and return the updates by ticket."""
    came = {}
    while not batcher.idle:
        for update in batcher.step():
            came.setdefault(update.ticket, []).append(update)
    return came


def assert_same(one, other):
    assert (one.text, one.reason) == (other.text, other.reason)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.log_probabilities, other.log_probabilities)


def test_sequences_that_join_and_leave_at_any_time_draw_what_they_draw_alone(batcher, submit, alone):
    tickets = {}
    for number, prompt in enumerate(PROMPTS * 2):
        rules = SamplingRules(seed=3, stream=number, temperature=0.9, repetition_penalty=1.2)
        options = {"max_tokens": 30 + 25 * number, "rules": rules}
        tickets[submit(batcher, prompt, **options)] = (prompt, options)
        batcher.step()
    run(batcher)
    for ticket, (prompt, options) in tickets.items():
        assert_same(ticket, alone(prompt, **options))


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_narrow_models_draw_the_same_beside_any_others(text_model, submit, precision):
    model = text_model.packed(precision)
    together, apart = Batcher(model.steps, model.tokenizer), Batcher(model.steps, model.tokenizer)
    tickets = [submit(together, prompt) for prompt in PROMPTS]
    run(together)
    for prompt, ticket in zip(PROMPTS, tickets, strict=True):
        one = submit(apart, prompt)
        run(apart)
        assert_same(ticket, one)


def test_updates_are_the_ticket_piece_by_piece(batcher, submit, alone):
    text = alone("abc", 200).text
    ticket = submit(batcher, "abc", 200, stop=[text[150:155]])
    submit(batcher, "a", 200)
    updates = run(batcher)[ticket]
    assert [update.reason for update in updates[:-1]] == [None] * (len(updates) - 1)
    assert updates[-1].reason == ticket.reason == "stop"
    assert "".join(update.text for update in updates) == ticket.text == text[: text.index(text[150:155])]
    np.testing.assert_array_equal(np.concatenate([update.ids for update in updates]), ticket.ids)
    found = np.concatenate([update.log_probabilities for update in updates])
    np.testing.assert_array_equal(found, ticket.log_probabilities)


def test_without_a_tokenizer_ids_come_without_text(model, submit, alone):
    batcher = Batcher(model.steps)
    ticket = submit(batcher, "abc")
    run(batcher)
    assert ticket.text == ""
    np.testing.assert_array_equal(ticket.ids, alone("abc").ids)
    with pytest.raises(ConfigError, match="without a tokenizer"):
        submit(batcher, "abc", stop=["x"])


def test_prompts_submitted_together_are_read_together_the_longest_first(batcher, submit, read, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 8)
    for length in (3, 9, 1, 7, 5, 2, 8, 4, 6, 10):
        submit(batcher, "a" * length, 8)
    batcher.step()
    # A later prompt is read later, however long it is.
    submit(batcher, "a" * 50, 8)
    run(batcher)
    assert read == [[10, 9, 8, 7, 6, 5, 4, 3], [2, 1, 50]]


def test_a_few_free_places_wait_for_more(batcher, submit, read, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 8)
    for place in range(8):
        submit(batcher, "a" * (9 - place), 8 if place == 0 else 300)
    for prompt in "abcd":
        submit(batcher, prompt, 300)
    batcher.step()
    batcher.step()
    assert read == [[9, 8, 7, 6, 5, 4, 3, 2]]
    run(batcher)
    assert [len(lengths) for lengths in read] == [8, 4]


def test_other_texts_continue_while_a_long_prompt_is_read_in_parts(batcher, submit, alone, read, monkeypatch):
    monkeypatch.setattr(StepModel, "most_drawn", 4)
    long, short = submit(batcher, "abcdefghij", 20), submit(batcher, "b", 20)
    steps = [[update.ticket for update in batcher.step()] for _ in range(3)]
    assert [[long, short].index(ticket) for step in steps for ticket in step] == [1, 1, 0, 1]
    assert read == [[4, 1], [4], [2]]
    run(batcher)
    assert_same(long, alone("abcdefghij", 20))
    assert_same(short, alone("b", 20))


def test_what_is_left_of_a_long_prompt_is_read_behind_those_that_wait(batcher, submit, read, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 1)
    monkeypatch.setattr(StepModel, "most_drawn", 4)
    submit(batcher, "abcdef", 1)
    submit(batcher, "xyz", 1)
    run(batcher)
    assert read == [[4], [3], [2]]


def test_a_cancelled_prompt_is_not_read_to_its_end(batcher, submit, read, monkeypatch):
    monkeypatch.setattr(StepModel, "most_drawn", 4)
    ticket = submit(batcher, "abcdefghij", 8)
    batcher.step()
    batcher.cancel(ticket)
    run(batcher)
    assert (ticket.reason, ticket.text, read) == ("cancelled", "", [[4]])


def test_texts_that_begin_alike_are_read_once_and_drawn_as_alone(model, submit, alone, read, monkeypatch):
    monkeypatch.setattr(StepModel, "most_drawn", 4)
    prompts = ["abcdefgh", "abcdefgh", "abcdefgx", "abcd"]
    apart = [alone(prompt, 20) for prompt in prompts]
    read.clear()
    batcher = Batcher(model.steps, model.tokenizer, prompt_cache_bytes=1 << 20)
    for round_number in range(2):
        tickets = [submit(batcher, prompt, 20) for prompt in prompts]
        run(batcher)
        assert read == [[4], [4, 4]], round_number
        for ticket, one in zip(tickets, apart, strict=True):
            assert_same(ticket, one)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_model_of_few_rows_takes_them_in_turn(batcher, submit, alone, monkeypatch, rows):
    tickets = [submit(batcher, prompt, 20) for prompt in PROMPTS]
    monkeypatch.setattr(StepModel, "rows_at_once", rows)
    run(batcher)
    for prompt, ticket in zip(PROMPTS, tickets, strict=True):
        assert_same(ticket, alone(prompt, 20))


def test_sequences_above_the_useful_batch_take_turns(model, submit, alone, counts, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 2)
    batcher = Batcher(model.steps, model.tokenizer, most_active=5)
    tickets = [submit(batcher, "a" * (6 - place), 100) for place in range(6)]
    # Each step reads two prompts and draws for them at once; then come the sequences that waited longest.
    drawn = [[tickets.index(update.ticket) for update in batcher.step()] for _ in range(6)]
    assert drawn == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 1]]
    assert counts[:3] == [[8, 8], [16, 16], [16, 16]]
    run(batcher)
    assert {len(step) for step in counts} <= {1, 2}
    for place, ticket in enumerate(tickets):
        assert_same(ticket, alone("a" * (6 - place), 100))


def test_one_that_comes_while_others_take_turns_is_drawn_at_the_next_step(model, submit, counts, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 2)
    batcher = Batcher(model.steps, model.tokenizer, most_active=100)
    for _ in range(6):
        submit(batcher, "abc", 1000)
    for _ in range(12):
        batcher.step()
    late = submit(batcher, "a", 8)
    (update, _) = batcher.step()
    assert update.ticket is late
    assert update.reason == "length"
    assert counts[-1] == [8, 8]
    # The more sequences take turns, the shorter each turn: 256 ids divided by three turns.
    for _ in range(9):
        batcher.step()
    assert counts[-1] == [85, 85]


def test_each_step_draws_twice_as_many_ids(batcher, submit, counts):
    submit(batcher, "abc", 1000)
    run(batcher)
    assert counts == [[8], [16], [32], [64], [128], [256], [256], [240]]
    # The next sequence begins with few ids again.
    submit(batcher, "abc", 20)
    run(batcher)
    assert counts[-2:] == [[8], [12]]


def test_one_that_joins_others_is_shown_its_first_words_at_once(batcher, submit, counts):
    submit(batcher, "abc", 1000)
    for _ in range(5):
        batcher.step()
    submit(batcher, "a", 1000)
    batcher.step()
    assert counts[-2:] == [[128], [8, 8]]


def test_prompts_that_waited_for_room_go_on_with_as_many_ids(batcher, submit, counts, monkeypatch):
    monkeypatch.setattr(StepModel, "rows_at_once", 2)
    for _ in range(4):
        submit(batcher, "a", 100)
    run(batcher)
    assert counts == [[8, 8], [16, 16], [32, 32], [44, 44], [100, 100]]


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "said"),
    [
        ([], {}, ConfigError, "prompt is empty"),
        ([1, 99], {}, DataError, "holds 99"),
        ([-1], {}, DataError, "holds -1"),
        ([1.5], {}, DataError, "ids"),
        ([1], {"max_tokens": -1}, ConfigError, "max_tokens"),
        ([1], {"max_tokens": 2.5}, ConfigError, "max_tokens"),
        ([1], {"stop": [""]}, ConfigError, "stop text is empty"),
        ([1], {"stop": "abc"}, ConfigError, r"\['abc'\]"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_and_the_others_go_on(
    batcher, submit, alone, prompt, options, kind, said
):
    ticket = submit(batcher, "abc")
    batcher.step()
    with pytest.raises(kind, match=said):
        batcher.submit(np.array(prompt), **({"max_tokens": 9} | options))
    run(batcher)
    assert_same(ticket, alone("abc"))


@pytest.fixture
def fragile(model, monkeypatch):
    """The model gives a NaN after a prompt with a z."""
    whole, z = StepModel.read, int(model.tokenizer.encode("z")[0])

    def read(self, state, ids, counts):
        state, logits = whole(self, state, ids, counts)
        logits[(ids == z).any(axis=1)] = np.nan
        return state, logits

    monkeypatch.setattr(StepModel, "read", read)


@pytest.mark.parametrize("late", [False, True])
def test_failed_sequence_ends_with_its_error_and_the_others_continue(
    model, batcher, submit, alone, fragile, late
):
    good = [submit(batcher, prompt) for prompt in ("abc", "the fox")]
    if late:
        batcher.step()
    bad = submit(batcher, "az")
    updates = run(batcher)
    assert (bad.reason, bad.text, len(bad.ids)) == ("failed", "", 0)
    assert [update.reason for update in updates[bad]] == ["failed"]
    with pytest.raises(ModelError, match="NaN"):
        raise bad.error
    for prompt, ticket in zip(("abc", "the fox"), good, strict=True):
        assert ticket.error is None
        assert_same(ticket, alone(prompt))
    with pytest.raises(ModelError, match="NaN"):
        model.complete(["abc", "az"], max_tokens=9)


def test_system_error_is_raised_and_the_next_step_continues(batcher, submit, alone, monkeypatch):
    tickets = [submit(batcher, prompt) for prompt in PROMPTS]
    for name in ("read", "generate_rows"):
        with monkeypatch.context() as patch:

            def fail(self, *_):
                raise BackendError("the GPU is gone")

            patch.setattr(StepModel, name, fail)
            with pytest.raises(BackendError, match="gone"):
                batcher.step()
        batcher.step()
    assert not batcher.idle
    run(batcher)
    for prompt, ticket in zip(PROMPTS, tickets, strict=True):
        assert_same(ticket, alone(prompt))


def test_cancelled_text_keeps_its_characters_and_the_others_continue(batcher, submit, alone):
    tickets = [submit(batcher, prompt) for prompt in PROMPTS]
    batcher.step()
    batcher.cancel(tickets[1])
    run(batcher)
    whole = alone(PROMPTS[1])
    assert tickets[1].reason == "cancelled"
    assert 0 < len(tickets[1].ids) < len(whole.ids)
    assert whole.text.startswith(tickets[1].text)
    for place in (0, 2, 3, 4):
        assert_same(tickets[place], alone(PROMPTS[place]))
    # A sequence that has ended stays as it is.
    batcher.cancel(tickets[0])
    assert (batcher.step(), tickets[0].reason) == ([], "length")


def test_cancelled_waiting_request_leaves_its_prompt_unread(batcher, submit, read, alone):
    first, second = submit(batcher, "abc"), submit(batcher, "b" * 300)
    batcher.cancel(second)
    updates = run(batcher)
    assert read == [[3]]
    assert (second.reason, second.text, len(second.ids)) == ("cancelled", "", 0)
    assert [update.reason for update in updates[second]] == ["cancelled"]
    assert_same(first, alone("abc"))


def test_a_cancellation_ends_all_that_share_it_within_a_step(batcher, submit, alone):
    cancellation = Cancellation()
    shared = [submit(batcher, prompt, 10**7, cancellation=cancellation) for prompt in PROMPTS[:2]]
    other = submit(batcher, PROMPTS[2])
    batcher.step()
    cancellation.cancel()
    run(batcher)
    assert [one.reason for one in shared] == ["cancelled"] * 2
    assert_same(other, alone(PROMPTS[2]))


def test_threads_submit_and_cancel_while_another_steps(model, batcher, submit, alone):
    done, found = threading.Event(), {}

    def drive():
        while not done.is_set() or not batcher.idle:
            batcher.step()

    def client(number):
        mine = []
        for prompt in PROMPTS:
            rules = SamplingRules(seed=number)
            mine.append((prompt, rules, submit(batcher, prompt, 60, rules=rules)))
            batcher.cancel(submit(batcher, prompt, 10**7))
        found[number] = mine

    driver = threading.Thread(target=drive)
    driver.start()
    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(60)
    done.set()
    driver.join(60)
    assert not driver.is_alive()
    assert len(found) == 8
    for prompt, rules, ticket in (each for mine in found.values() for each in mine):
        assert_same(ticket, alone(prompt, 60, rules=rules))


def test_step_without_work_gives_no_updates(batcher):
    assert batcher.idle
    assert batcher.step() == []
