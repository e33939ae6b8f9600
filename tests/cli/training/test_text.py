"""The messages of `train`, and its refusals to overwrite."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(("task", "data"), [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")])
def test_train_refuses_to_replace_a_model_without_overwrite(cellerate, here, small, task, data):
    words = ["train", task, data, "-o", "m.keras", *small[task], "-q"]
    assert cellerate(*words)[0] == 0
    before = (here / "m.keras").read_bytes()
    code, out, err = cellerate(*words, "--seed", "1")
    assert (code, out) == (2, "")
    assert err.startswith("error: m.keras exists. Replace it (--overwrite)")
    assert (here / "m.keras").read_bytes() == before
    assert cellerate(*words, "--seed", "1", "--overwrite")[0] == 0
    assert (here / "m.keras").read_bytes() != before
    code, _, err = cellerate(*words, "--overwrite", "--resume")
    assert code == 2
    assert "choose one of the two" in err


def test_second_train_into_the_same_output_is_refused(cellerate, here, small):
    from cellerate.files import exclusive

    with exclusive(here / "m.run"):
        code, out, err = cellerate("train", "text", "t.txt", "-o", "m.keras", *small["text"])
    assert (code, out) == (6, "")
    assert "another process is writing into m.run" in err
    assert not (here / "m.keras").exists()


def test_preset_is_reported_and_explicit_options_win(cellerate, here, small):
    (here / "c.toml").write_text("[train.text]\nunits = 6\nlayers = 1\n")
    at = small["text"].index("--units")
    words = small["text"][:at] + small["text"][at + 2 :]
    code, _, err = cellerate(
        "train", "text", "t.txt", "-o", "m.keras", *words, "--preset", "large", "--config", "c.toml"
    )
    assert code == 0
    assert err.splitlines()[0] == "preset large: --dropout 0.2 --learning-rate 0.001 --clipnorm 1.0"
    vocabulary = len(set((here / "t.txt").read_text()))
    weights = vocabulary * 4 + 4 * 6 * (4 + 6 + 1) + (6 + 1) * vocabulary
    assert f"vocabulary of {vocabulary}, {weights:,} weights" in err


def test_training_shows_samples_and_usual_bits_per_character(cellerate, here, small):
    code, out, err = cellerate(
        "train",
        "text",
        "t.txt",
        "-o",
        "m.keras",
        *small["text"],
        "--sample-every",
        "10",
        "--sample",
        "the cat",
    )
    assert code == 0
    assert re.fullmatch(r"held-out: \d\.\d{3} bits per character\n", out)
    assert re.search(
        r"^for comparison: \d\.\d\d by how often each of the characters occurs", err, re.MULTILINE
    )
    assert "--- sample after step 10 ---\nthe cat" in err


def test_encoding_that_the_message_offers_reads_the_text(cellerate, here, small):
    (here / "w.txt").write_bytes(("süß und gut, für alle. " * 30).encode("cp1252"))
    words = ["train", "text", "w.txt", "-o", "m.keras", *small["text"], "-q"]
    code, out, err = cellerate(*words)
    assert (code, out) == (3, "")
    offered = re.search(r"pass (--encoding \S+?)\.? ", err)
    assert offered and "'süß und gut" in err
    assert cellerate(*words, *offered[1].split())[0] == 0
    code, _, err = cellerate(*words, "--encoding", "window-1252")
    assert code == 2
    assert "windows-1252" in err


def test_second_ctrl_c_prints_a_single_message():
    code = "from pathlib import Path\nfrom cellerate.cli.running import training_display as d\n"
    code += "with d(True, Path('m.keras')) as shown: shown.end_at_once()\nprint('went on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped at once: what was saved is as it was.\n"
