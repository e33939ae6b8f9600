import itertools

import pytest

from cellerate.errors import ConfigError
from cellerate.training.pipeline.division import (
    StageLayout,
    balanced,
    bubble_share,
    chunk_bounds,
    default_chunks,
    own_layout,
)


@pytest.mark.parametrize("costs", [[1], [3, 1, 2], [0, 5, 0, 5, 0], [9, 1, 1, 1, 1, 1], [1, 1, 4, 1, 1, 7]])
def test_division_minimises_the_cost_of_the_most_expensive_stage(costs):
    for stages in range(1, len(costs) + 1):
        found = balanced(costs, stages)
        assert [number for own in found for number in own] == list(range(len(costs)))
        assert all(found)
        cuts = itertools.combinations(range(1, len(costs)), stages - 1)
        best = min(
            max(sum(costs[begin:end]) for begin, end in itertools.pairwise([0, *cut, len(costs)]))
            for cut in cuts
        )
        assert max(sum(costs[number] for number in own) for own in found) == best


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="stages is 3, but the model has 2 layers"):
        balanced([1.0, 1.0], 3)


def test_chunks_cover_the_time_axis_once():
    for steps, chunks in [(13, 4), (3, 8), (1, 1), (100, 8)]:
        found = chunk_bounds(steps, chunks)
        assert [t for begin, end in found for t in range(begin, end)] == list(range(steps))
        sizes = {end - begin for begin, end in found}
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("steps", "stages", "chunks"), [(100, 2, 8), (24, 2, 3), (5, 4, 4), (2, 4, 2), (1000, 4, 16)]
)
def test_default_chunks_are_long_enough_and_fill_the_stages(steps, stages, chunks):
    assert default_chunks(steps, stages) == chunks


def test_bubble_is_the_time_to_fill_and_empty_the_pipeline():
    assert bubble_share(1, 5) == 0
    assert bubble_share(2, 1) == pytest.approx(0.5)
    assert bubble_share(4, 13) == pytest.approx(3 / 16)


def test_layout_places_the_stages_of_a_copy_in_adjacent_processes():
    found = [own_layout(n, 6, {"CELLERATE_STAGES": "3", "CELLERATE_CHUNKS": "5"}) for n in range(6)]
    assert [(one.copy, one.stage) for one in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [one.begins for one in found] == [True, False, False] * 2
    assert [one.ends for one in found] == [False, False, True] * 2
    assert (found[0].copies, found[0].chunks, found[0].divided) == (2, 5, True)


def test_single_process_is_not_divided():
    assert own_layout(0, 1, {"CELLERATE_STAGES": "3"}) == StageLayout(0, 1)
    assert own_layout(1, 2, {}) == StageLayout(1, 2)
    assert not StageLayout(1, 2).divided


@pytest.mark.parametrize(
    "variables", [{"CELLERATE_STAGES": "two"}, {"CELLERATE_STAGES": "2", "CELLERATE_CHUNKS": "0"}]
)
def test_variables_that_are_not_numbers_are_refused(variables):
    with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
        own_layout(0, 4, variables)


def test_process_count_that_does_not_fit_the_stages_is_refused():
    with pytest.raises(ConfigError, match="5 processes cannot hold 2 stages"):
        own_layout(0, 5, {"CELLERATE_STAGES": "2"})
