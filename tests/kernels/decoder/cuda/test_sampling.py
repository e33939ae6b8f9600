"""The sampler of the CUDA kernels, on the emulated GPU, against the native core's."""

import ctypes
import functools
import itertools

import numpy as np
import pytest

from cellerate.kernels.cuda import sources
from cellerate.kernels.decoder.cuda.records import SAMPLING, sampling_record
from cellerate.kernels.decoder.sampling import SamplingRules, sample
from support.kernels import emulated_gpu

# Put in order, with 1, 4 and 8 of each lane; and too many for that.
SIZES = (1, 29, 96, 250, 300)

_DRAW = """
using namespace cellerate::gpu;
static_assert(sizeof(Sampling) == {size});
template <int outputs>
const char* draw(const float* logits, const int* times, const Sampling* rules, const long long* positions, int rows,
                 int* ids, float* log_probabilities) {{
  static std::string told;
  try {{
    emulated::launch(1, 1, 256, 1024, 1, [&] {{
      for (int row = thread_index() / 32; row < rows; row += 8) {{
        RowSampler<outputs> sampler({{logits + row * outputs, 16}}, times + row * outputs, rules[row]);
        const double random = uniform(rules[row].seed, rules[row].stream, positions[row]);
        const int id = sampler.finite() ? sampler.choose(random, row % 3 != 0) : -1;
        log_probabilities[row] = sampler.log_probability(id < 0 ? 0 : id);
        ids[row] = id;
      }}
    }});
  }} catch (const std::exception& error) {{
    told = error.what();
    return told.c_str();
  }}
  return nullptr;
}}
extern "C" const char* draw(int outputs, const float* logits, const int* times, const Sampling* rules,
                            const long long* positions, int rows, int* ids, float* log_probabilities) {{
  {cases}
  return "another number of outputs";
}}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    cases = "".join(
        f"if (outputs == {size}) return draw<{size}>(logits, times, rules, positions, rows, ids, log_probabilities);\n"
        for size in SIZES
    )
    source = sources.whole("sampling.cuh") + _DRAW.format(size=SAMPLING.itemsize, cases=cases)
    found = emulated_gpu._library(source)
    found.draw.restype = ctypes.c_char_p
    return found


def _draw(
    logits: np.ndarray, rules: list[SamplingRules], positions: list[int], previous: list[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernels draw from each row of logits (N, V)."""
    rows, outputs = logits.shape
    times = np.zeros((rows, outputs), np.int32)
    for row, (rule, ids) in enumerate(zip(rules, previous, strict=True)):
        seen = ids[-(rule.penalty_window or len(ids)) :] if ids else []
        np.add.at(times[row], np.int64(seen), 1)
    records = np.array([sampling_record(rule, outputs) for rule in rules], SAMPLING)
    ids, found = np.empty(rows, np.int32), np.empty(rows, np.float32)
    arrays = (np.ascontiguousarray(logits), times, records, np.int64(positions))
    told = _library().draw(
        outputs,
        *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
        rows,
        *(ctypes.c_void_p(array.ctypes.data) for array in (ids, found)),
    )
    assert told is None, told
    return ids, found


def _check(logits, rules, positions, previous):
    ids, scores = _draw(logits, rules, positions, previous)
    for row, rule in enumerate(rules):
        wanted = sample(logits[row], rule, positions[row], previous[row])
        assert (int(ids[row]), rule) == (wanted[0], rule)
        assert scores[row] == pytest.approx(wanted[1], rel=1e-6, abs=2e-6)


RULES = [
    dict(zip(("temperature", "top_k", "top_p", "min_p", "repetition_penalty"), values, strict=True))
    for values in itertools.product((0.0, 0.7, 1.0, 1.6), (None, 1, 7), (1.0, 0.6), (0.0, 0.2), (1.0, 1.4))
]


@pytest.mark.parametrize("size", SIZES)
def test_ids_equal_the_native_core_whatever_the_rules(size):
    rng = np.random.default_rng(size)
    rules = [SamplingRules(**one, seed=seed, stream=2**64 - seed) for one in RULES for seed in (3, 2**63 + 5)]
    logits = (rng.normal(size=(len(rules), size)) * 3).astype(np.float32)
    previous = [rng.integers(size, size=9).tolist() for _ in rules]
    _check(logits, rules, [int(p) for p in rng.integers(2**62, size=len(rules))], previous)


def _adversarial(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    few = rng.integers(-2, 3, size=size)
    return {
        "all equal": np.zeros(size),
        "ties": few,
        "zeros of both signs": np.where(few > 0, 0.0, -0.0),
        "one huge": np.where(np.arange(size) == size // 2, 1e30, 0),
        "all huge": np.full(size, -1e30),
        "the largest there are": np.where(few > 0, 3.4e38, -3.4e38),
        "all but impossible": np.where(few > 0, few, -1e4),
        "steps down": -np.arange(size) * 1.5,
        "next to one another": 1 + few * 2.0**-23,
    }


@pytest.mark.parametrize("kind", _adversarial(1))
@pytest.mark.parametrize("size", [29, 250, 300])
def test_ids_equal_the_native_core_on_logits_that_are_strange(size, kind):
    logits = _adversarial(size)[kind].astype(np.float32)
    rules = [
        SamplingRules(**one, seed=seed)
        for one in (*RULES[::3], {"temperature": 1e-300}, {"temperature": 1e-300, "top_p": 0.5}, {"min_p": 1})
        for seed in (1, 2)
    ]
    _check(np.tile(logits, (len(rules), 1)), rules, [7] * len(rules), [[0, size - 1, 0, 3]] * len(rules))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [29, 250, 300])
def test_logits_that_are_no_numbers_draw_nothing(size, bad):
    logits = np.zeros((2, size), np.float32)
    logits[1, size - 1] = bad
    ids, scores = _draw(logits, [SamplingRules()] * 2, [0, 0], [[], []])
    assert (ids[0] >= 0, ids[1], np.isnan(scores).tolist()) == (True, -1, [False, True])


def test_each_id_is_drawn_as_often_as_it_is_likely():
    logits = np.log(np.arange(1, 30, dtype=np.float32) / 435)
    count = 4000
    ids, _ = _draw(np.tile(logits, (count, 1)), [SamplingRules()] * count, list(range(count)), [[]] * count)
    expected = np.arange(1, 30) / 435 * count
    # A chi-squared of 28 degrees of freedom is below this but once in a thousand times.
    assert ((np.bincount(ids, minlength=29) - expected) ** 2 / expected).sum() < 56.9
