"""The page of a profile: everything in it, and hostile names shown as text."""

import dataclasses

import pytest

from cellerate.observe.profiling.record import Memory, Part, Profile, Suggestion, bottleneck
from cellerate.report.profile_page import profile_html, write_profile
from support.report.browser import browser, check_page

__all__ = ["browser"]
PARTS = (
    Part("waiting for batches", "loader", 30.0, idle_ms=30.0, share=0.6),
    Part("inner/<b>lstm</b>", "layer", 15.0, 5.0, 10.0, 1.0, 0.3, 0.42, {"forward: time steps": 4.0}),
    Part(
        "a layer whose name is longer than any line of a narrow page could show it" * 2,
        "layer",
        3.0,
        1.0,
        2.0,
    ),
    Part("optimizer (adam)", "optimizer", 1.0, share=0.02),
    Part("Python and the framework, nothing computed", "host", 1.0, idle_ms=1.0, share=0.02),
)
CHANGES = (
    Suggestion("The training waits for batches", "steps wait 30 ms", 0.6, 50.0, 20.0, "PyDataset(workers=4)"),
    Suggestion("Numbers have 32 bits", "it is <faster>", 0.1, 20.0, 15.0, "--precision auto", optional=True),
)
FULL = Profile(
    model="<script>alert(1)</script>",
    subject="training step",
    backend="torch",
    rows=64,
    step_ms=50.0,
    parts=PARTS,
    slowdown=0.3,
    idle=0.04,
    share_of_peak=0.2,
    peak_flops=3e11,
    memory=Memory(
        800 << 20, {"weights": 1 << 20, "none": 0}, ((0.0, 1 << 29), (0.5, 1 << 30)), "this process"
    ),
    changes=CHANGES,
    bottleneck=bottleneck(CHANGES, PARTS),
    steps_per_epoch=100,
    validation_ms=2500.0,
    notes=("a note & more",),
    environment={"processor": "a processor", "keras": "3.15.1"},
)
BARE = dataclasses.replace(
    FULL,
    memory=None,
    changes=(),
    share_of_peak=None,
    peak_flops=None,
    validation_ms=None,
    notes=(),
    parts=PARTS[:1],
)
TOKENS = dataclasses.replace(BARE, generation=(Part("the network", "layer", 0.01, share=1.0),))


def test_page_has_every_figure_and_shows_names_as_text():
    page = profile_html(FULL)
    for text in (
        "60 %",
        "50.0 ms",
        "PyDataset(workers=4)",
        "33 %",
        "60 GFLOP/s",
        "a note &amp; more",
        "42 %",
    ):
        assert text in page, text
    assert "<script>" not in page and "<b>lstm</b>" not in page and "&lt;b&gt;lstm" in page
    assert page.count('class="verdict bad"') == 1
    assert 'class="verdict good"' in profile_html(BARE)
    assert "Where the time of a token goes" in profile_html(TOKENS)


def test_words_say_the_same():
    told = str(FULL)
    assert "1. The training waits for batches: saves 60 % (50.0 ms -> 20.0 ms)" in told
    assert "forward: time steps" in told and "note: a note & more" in told
    assert bottleneck((), PARTS).startswith(
        "No fault was found; the largest part of the time, 60 %, goes into"
    )
    assert bottleneck((), PARTS, tried=False).startswith("No change was tried; the largest part")
    assert "Steps took 30 % longer under the profiler" in told
    assert "What would still help: Numbers have 32 bits" in bottleneck(CHANGES[1:], PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("profile", [FULL, BARE, TOKENS], ids=["full", "bare", "tokens"])
def test_page_is_accessible_and_fits(browser, tmp_path, profile, scheme, width):
    check_page(browser, write_profile(profile, tmp_path / "page.html"), scheme, width)
