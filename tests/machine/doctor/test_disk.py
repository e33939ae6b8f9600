"""The folders that are written to, and their disks."""

from pathlib import Path

from support.machine.machines import said


def test_folder_that_cannot_be_asked_is_a_note(machine):
    def denied(path):
        raise PermissionError(13, "denied", str(path))

    found = said(machine.examine(usage=denied))
    assert {(one.topic, one.status) for one in found} == {("disk", "note"), ("memory", "note")}
    assert all("denied" in one.found for one in found)


def test_folders_on_two_disks_are_told_apart(machine):
    folders = {"the current folder": machine.work, "temporary files": Path("/proc/self")}
    found = [one for one in machine.examine(folders=folders) if one.topic == "disk"]
    assert [one.found for one in found] == [
        "100 GB are free for the current folder", "100 GB are free for temporary files"
    ]  # fmt: skip
