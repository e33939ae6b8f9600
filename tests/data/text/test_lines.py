from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.data.arrays.batches import BatchSource
from cellerate.data.text import lines as module
from cellerate.data.text.lines import BOS, EOS, PAD, UNK, LineBatches, LineVocabulary, encode_batches
from cellerate.errors import ConfigError, DataError, ModelError

LETTERS = LineVocabulary("abcdé😀")
lines_of_letters = st.lists(st.text("abcdé😀", max_size=45), min_size=1, max_size=60)


# --- the vocabulary


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1).filter(any))
def test_vocabulary_of_lines_encodes_and_decodes_them(lines: list[str]) -> None:
    vocabulary = LineVocabulary.from_lines(lines)
    assert vocabulary.characters == "".join(sorted(set("".join(lines))))
    for line in lines:
        ids = vocabulary.encode(line)
        assert ids.dtype == np.int32
        assert ids.size == len(line)
        assert not ids.size or (ids.min() >= 4 and ids.max() < vocabulary.size)
        assert vocabulary.decode(ids) == line
        assert vocabulary.decode([BOS, *ids.tolist(), EOS, PAD, 4]) == line


@pytest.mark.parametrize("characters", [251, 252, 253, 65531, 65532, 65533])
def test_vocabulary_at_the_limits_of_a_type_keeps_every_id_apart(characters: int) -> None:
    text = "".join(chr(0x10000 + i) for i in range(characters))
    vocabulary = LineVocabulary(text)
    assert vocabulary.encode(text + "a", errors="replace").tolist() == [*range(4, 4 + characters), UNK]
    ((_, source),) = encode_batches([text[-2:] + "a" + text[:1]], vocabulary, 1, 4, errors="replace")
    assert source.tolist() == [[characters + 2, characters + 3, UNK, 4]]


def test_vocabulary_truncates_to_max_length_before_it_looks() -> None:
    assert LETTERS.encode("abzz", 2).tolist() == [4, 5]
    with pytest.raises(ConfigError, match="max_length"):
        LETTERS.encode("a", 0)


def test_vocabulary_of_an_unknown_character_keeps_to_the_error_policy() -> None:
    # Line models have no other tokenizer to be trained with.
    with pytest.raises(
        DataError, match=r"'z' \(U\+007A\) at position 2.* or train with text that has it\. errors="
    ):
        LETTERS.encode("abz")
    ids = LETTERS.encode("zaz😀z", errors="replace")
    assert ids.tolist() == [UNK, 4, UNK, 9, UNK]
    assert LETTERS.decode(ids) == "\ufffda\ufffd😀\ufffd"
    with pytest.raises(DataError, match="surrogate"):
        LETTERS.encode("\udc80", errors="replace")


def test_vocabulary_decode_refuses_ids_outside_it() -> None:
    with pytest.raises(DataError, match=r"id 10 .* 10 ids"):
        LETTERS.decode([4, 10])
    with pytest.raises(DataError, match="id -1"):
        LETTERS.decode([-1])


def test_vocabulary_of_no_characters_is_a_data_error() -> None:
    with pytest.raises(DataError, match="empty"):
        LineVocabulary.from_lines(["", ""])


def test_vocabulary_config_goes_back_and_forth() -> None:
    again = LineVocabulary.from_config(LETTERS.to_config())
    assert again.characters == LETTERS.characters
    assert again.size == LETTERS.size == 10


@pytest.mark.parametrize(
    "config",
    [None, [], {}, *({"characters": wrong} for wrong in (3, "", "ba", "aa", ["a"], "a\udc80"))],
    ids=repr,
)
def test_vocabulary_config_of_nonsense_is_a_model_error(config: Any) -> None:
    with pytest.raises(ModelError, match="line vocabulary"):
        LineVocabulary.from_config(config)


# --- batches


def row_text(row: np.ndarray, length: int) -> str:
    return LETTERS.decode(row[:length])


@settings(deadline=None)
@given(
    lines_of_letters,
    st.integers(1, 7),
    st.integers(1, 50),
    st.sampled_from(["right", "left"]),
    st.sampled_from([None, 0, 3]),
    st.integers(0, 5),
)
def test_batches_of_an_epoch_hold_every_line_once_in_few_shapes(
    lines: list[str], batch_size: int, max_length: int, padding: Any, seed: int | None, epoch: int
) -> None:
    batches = LineBatches(
        lines, LETTERS, batch_size=batch_size, max_length=max_length, padding=padding, seed=seed
    )
    assert isinstance(batches, BatchSource)
    assert (batches.item, batches.items_per_batch, batches.lines) == ("lines", batch_size, len(lines))
    assert batches.truncated == sum(len(line) > max_length for line in lines)
    assert len(batches) <= len(lines) / batch_size + len(batches.bounds)
    assert len(batches.bounds) <= 5
    assert list(batches.bounds) == sorted(set(batches.bounds))
    assert batches.bounds[-1] <= max_length
    seen: Counter[str] = Counter()
    shapes = set()
    for index in range(len(batches)):
        inputs, target, weight = batches.batch(epoch, index)
        source, target_in = inputs["source"], inputs["target_in"]
        bound = source.shape[1]
        shapes.add(bound)
        assert source.shape == (batch_size, bound)
        assert target.shape == target_in.shape == weight.shape == (batch_size, bound + 1)
        assert source.dtype == target_in.dtype == target.dtype == np.int32
        assert weight.dtype == np.float32
        assert weight[0].any()
        for row in range(batch_size):
            length = int(np.flatnonzero(target[row] == EOS)[0])
            line = LETTERS.decode(target[row])
            assert len(line) == length
            assert target[row, length + 1 :].tolist() == [PAD] * (bound - length)
            assert target_in[row].tolist() == [BOS, *target[row, :length], *[PAD] * (bound - length)]
            pad = [PAD] * (bound - length)
            ids = target[row, :length].tolist()
            assert source[row].tolist() == (ids + pad if padding == "right" else pad + ids)
            if weight[row].any():
                assert weight[row].tolist() == [1] * (length + 1) + [0] * (bound - length)
                seen[line] += 1
            else:
                # What fills a batch up is a real line, never a row of nothing but padding.
                assert target[row].tolist() == target[0].tolist()
    assert seen == Counter(line[:max_length] for line in lines)
    assert shapes == set(batches.bounds)


def all_sources(batches: LineBatches, epoch: int) -> list[list[list[int]]]:
    return [batches.batch(epoch, index)[0]["source"].tolist() for index in range(len(batches))]


def test_batches_are_a_pure_function_of_epoch_and_index() -> None:
    lines = ["abcd"[: 1 + i % 4] * (1 + i % 9) for i in range(300)]
    made = [LineBatches(lines, LETTERS, batch_size=8, max_length=40, seed=5) for _ in range(2)]
    first = all_sources(made[0], 1)
    all_sources(made[0], 2)
    backwards = [made[1].batch(1, i)[0]["source"].tolist() for i in reversed(range(len(made[1])))]
    assert first == backwards[::-1] == all_sources(made[0], 1)


def test_batches_with_a_seed_mix_lines_and_the_order_of_batches_each_epoch() -> None:
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list("abcd"), rng.integers(1, 40))) for _ in range(400)]
    batches = LineBatches(lines, LETTERS, batch_size=10, max_length=40, seed=1)
    epochs = [all_sources(batches, epoch) for epoch in range(2)]
    other = all_sources(LineBatches(lines, LETTERS, batch_size=10, max_length=40, seed=2), 0)

    def members(epoch: list[list[list[int]]]) -> set[frozenset[tuple[int, ...]]]:
        return {frozenset(map(tuple, batch)) for batch in epoch}

    bounds = [[len(batch[0]) for batch in epoch] for epoch in epochs]
    assert bounds[0] != bounds[1] != sorted(bounds[1])
    assert len(members(epochs[0]) & members(epochs[1])) <= 4
    assert len(members(epochs[0]) & members(other)) <= 4


def test_batches_without_a_seed_keep_the_order_of_lines_within_a_bucket() -> None:
    lines = ["ab" * (1 + i % 3) + "abcd"[i % 4] for i in range(40)] + [
        "a" * 40 + "abcd"[i % 4] for i in range(12)
    ]
    batches = LineBatches(lines, LETTERS, batch_size=4, max_length=60)
    assert all_sources(batches, 0) == all_sources(batches, 7)
    texts = [LETTERS.decode(row) for batch in all_sources(batches, 0) for row in batch]
    assert texts == [
        line for low in (True, False) for line in lines if (len(line) <= batches.bounds[0]) is low
    ]


def test_batches_bounds_follow_the_lengths_and_small_buckets_join() -> None:
    lines = ["a" * 5] * 60 + ["a" * 20] * 30 + ["a" * 50] * 9 + ["a" * 99]
    assert LineBatches(lines, LETTERS, batch_size=8, max_length=100).bounds == (8, 24, 56, 100)
    assert LineBatches(lines, LETTERS, batch_size=8, max_length=200).bounds == (8, 24, 56, 104)
    assert LineBatches(lines, LETTERS, batch_size=64, max_length=200).bounds == (24, 104)
    assert LineBatches(lines, LETTERS, batch_size=32, max_length=21).bounds == (8, 21)
    assert LineBatches(lines, LETTERS, batch_size=101, max_length=200).bounds == (104,)
    assert LineBatches(["", "", "a"], LETTERS, batch_size=1, max_length=2).bounds == (2,)
    assert LineBatches([""], LETTERS, batch_size=2, max_length=9).bounds == (8,)


def test_batches_fingerprint_tells_every_difference_and_nothing_else() -> None:
    base: dict[str, Any] = {
        "lines": ["ab", "c", "dd"],
        "vocabulary": LETTERS,
        "batch_size": 2,
        "max_length": 9,
        "padding": "right",
        "seed": 1,
    }
    changes: dict[str, Any] = {
        "lines": ["a", "bc", "dd"],
        "vocabulary": LineVocabulary("abcdé😁"),
        "batch_size": 3,
        "max_length": 8,
        "padding": "left",
        "seed": None,
    }
    made = LineBatches(**base)
    assert made.fingerprint() == LineBatches(**base).fingerprint()
    made.batch(0, 0)
    prints = {made.fingerprint()}
    for name, value in changes.items():
        prints.add(LineBatches(**{**base, name: value}).fingerprint())
    prints.add(LineBatches(**{**base, "lines": ["dd", "ab", "c"]}).fingerprint())
    assert len(prints) == 2 + len(changes)


def test_batches_of_an_unknown_character_name_line_and_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINES_PER_BLOCK", 2)
    lines = ["ab", "", "", "abcd", "abz"]
    with pytest.raises(DataError, match=r"line 5: character 'z' \(U\+007A\) at position 2 "):
        LineBatches(lines, LETTERS, batch_size=2, max_length=9)
    LineBatches(lines, LETTERS, batch_size=2, max_length=2)
    inputs, _, _ = LineBatches(lines, LETTERS, batch_size=5, max_length=9, errors="replace").batch(0, 0)
    assert inputs["source"][4, :3].tolist() == [4, 5, UNK]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"max_length": 0}, "max_length"),
        ({"padding": "middle"}, "padding"),
        ({"errors": "ignore"}, "errors"),
    ],
)
def test_batches_with_a_bad_setting_are_a_config_error(change: dict[str, Any], message: str) -> None:
    settings_: dict[str, Any] = {"batch_size": 2, "max_length": 9, **change}
    with pytest.raises(ConfigError, match=message):
        LineBatches(["a"], LETTERS, **settings_)
    with pytest.raises(ConfigError, match=message):
        encode_batches(["a"], LETTERS, **settings_)


def test_batches_of_no_lines_are_a_data_error() -> None:
    with pytest.raises(DataError, match="no line"):
        LineBatches([], LETTERS, batch_size=1, max_length=1)
    with pytest.raises(DataError, match="no line"):
        encode_batches([], LETTERS, 1, 1)


@pytest.mark.parametrize("index", [-1, 1])
def test_batches_past_the_epoch_are_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match="batches 0 to 0"):
        LineBatches(["a"], LETTERS, batch_size=1, max_length=1).batch(0, index)


@settings(deadline=None)
@given(lines_of_letters, st.integers(1, 7), st.integers(1, 50), st.sampled_from(["right", "left"]))
def test_encode_batches_gives_each_line_once_with_its_number(
    lines: list[str], batch_size: int, max_length: int, padding: Any
) -> None:
    found: dict[int, str] = {}
    shapes = set()
    for numbers, source in encode_batches(lines, LETTERS, batch_size, max_length, padding):
        shapes.add(source.shape)
        assert source.dtype == np.int32
        assert 1 <= len(numbers) <= batch_size == source.shape[0]
        for number, row in zip(numbers.tolist(), source, strict=False):
            assert number not in found
            found[number] = LETTERS.decode(row)
            length = len(found[number])
            line = row[:length] if padding == "right" else row[len(row) - length :]
            assert LETTERS.decode(line) == found[number]
    assert len(shapes) <= 5
    assert [found[i] for i in range(len(lines))] == [line[:max_length] for line in lines]


def test_encode_batches_equal_the_sources_that_training_sees() -> None:
    lines = ["abcd"[i % 4] * (1 + i % 33) for i in range(70)]
    for padding in ("right", "left"):
        batches = LineBatches(lines, LETTERS, batch_size=8, max_length=30, padding=padding)  # type: ignore[arg-type]
        encoded = encode_batches(lines, LETTERS, 8, 30, padding)  # type: ignore[arg-type]
        assert all_sources(batches, 0) == [source.tolist() for _, source in encoded]
