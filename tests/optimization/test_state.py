"""The state of a run on disk."""

import errno
import os

import pytest

from cellerate.errors import ConfigError, OutputError
from cellerate.optimization import state as module
from cellerate.optimization.judging import Judged
from cellerate.optimization.state import Choices, State, load_state, save_state
from cellerate.report.quality import Interval
from cellerate.report.record import Candidate, Change, SampleOutput, Speed, StageRecord, TrainingStep

IDENTITY = {"model": "1234", "data": "abcd"}


def state():
    return State(
        identity=dict(IDENTITY),
        choices=Choices("auto", "mixed_bfloat16", 64, 2, None, "int8"),
        started="2026-01-01T00:00:00+00:00",
        seconds=12.5,
        passes=[
            StageRecord(
                name="kernels",
                title="Kernels",
                status="done",
                gains=(Change("training", "training step", 2.0, 1.0, "ms", False),),
                facts=(("a", "b"),),
            )
        ],
        candidates=[
            Candidate(
                id="original",
                title="as it was",
                made_by="baseline",
                precision="float32",
                parameters=7,
                file_bytes=99,
                quality=Interval(2.0, 1.9, 2.1),
                loss=None,
                passes_gate=True,
                speeds=(Speed("predict", 1.0, 2.0, 900.0, None, 1),),
                sample=SampleOutput(prompt="Ω “quoted”\n", text="\x00"),
            )
        ],
        judged={"original": Judged((1.0, 1 / 3), (1.0, 2.0))},
        tested={"original": Judged((0.5,), (1.0,))},
        further_steps=300,
        training_steps=[TrainingStep("Keras, float32", 8, None, 1.0, 0.9, 1.1, 800.0)],
        explanation=[("lstm", "Keras", "mask")],
    )


def test_state_saved_and_loaded_is_unchanged(tmp_path):
    save_state(state(), tmp_path / "new" / "folder")
    found = load_state(tmp_path / "new" / "folder", IDENTITY)
    assert found == state()
    assert isinstance(found.explanation[0], tuple)


def test_load_state_of_a_folder_without_one_is_none(tmp_path):
    assert load_state(tmp_path, IDENTITY) is None
    assert load_state(tmp_path / "not there", IDENTITY) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"identity": {}}', b"null"], ids=str)
def test_load_state_of_a_damaged_file_says_how_to_restart(tmp_path, content):
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(ConfigError, match="restart=True"):
        load_state(tmp_path, IDENTITY)


def test_load_state_of_an_older_layout_says_how_to_restart(tmp_path):
    save_state(state(), tmp_path)
    file = tmp_path / "state.json"
    file.write_text(
        file.read_text().replace("training_precision", "policy").replace("packed_precision", "precision")
    )
    with pytest.raises(ConfigError, match=r"not the state of a run of this version\..*restart=True"):
        load_state(tmp_path, IDENTITY)


def test_load_state_refuses_a_file_truncated_anywhere(tmp_path):
    save_state(state(), tmp_path)
    whole = (tmp_path / "state.json").read_bytes()
    for end in range(1, len(whole) - 1, 101):
        (tmp_path / "state.json").write_bytes(whole[:end])
        with pytest.raises(ConfigError, match=r"state\.json"):
            load_state(tmp_path, IDENTITY)


def test_load_state_of_a_folder_raises_config_error(tmp_path):
    (tmp_path / "state.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_state(tmp_path, IDENTITY)


def test_load_state_of_another_run_names_the_differences(tmp_path):
    save_state(state(), tmp_path)
    with pytest.raises(ConfigError, match="another run: data, seed differ"):
        load_state(tmp_path, IDENTITY | {"data": "other", "seed": "1"})


def test_save_state_on_a_full_disk_raises_and_keeps_the_old_state(tmp_path, monkeypatch):
    save_state(state(), tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    later = state()
    later.seconds = 99.0
    with monkeypatch.context() as patch:
        patch.setattr(module.Path, "write_bytes", full)
        with pytest.raises(OutputError, match="disk is full"):
            save_state(later, tmp_path)
    assert load_state(tmp_path, IDENTITY).seconds == 12.5
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
