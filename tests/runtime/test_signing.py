"""Signed models: only those signed with the key open, and only if unchanged."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cellerate.errors import CellerateError
from cellerate.program import Node, Program
from cellerate.runtime.cell import PUBLIC_KEY, write_cell
from cellerate.runtime.packed import load
from cellerate.runtime.signing import sign, signature_of

pytest.importorskip("cryptography")


def made_key(folder: Path, name: str, kind: str = "ed25519") -> tuple[Path, Path]:
    """A pair of keys, made with the manual's commands."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", kind, "-out", private], check=True, capture_output=True
    )
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def write_model(path: Path, activation: str = "tanh") -> str:
    nodes = (
        Node("input", "x", options={"shape": (-1, 3), "dtype": "float32"}),
        Node("activation", "y", {"x": 0}, options={"activation": activation}),
    )
    return write_cell(path, Program(nodes, {"y": 1}))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the keys, is not installed here")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        made_key(folder, name)
    made_key(folder, "other", "x25519")
    return folder


@pytest.fixture
def signed(keys: Path, tmp_path: Path) -> Path:
    path = tmp_path / "m.cell"
    sign(path, write_model(path), keys / "ours.pem")
    return path


def refused(path: Path, key: Path | str) -> str:
    with pytest.raises(CellerateError) as error:
        load(path, public_key=key)
    return str(error.value)


def test_a_signed_model_opens_with_its_key_alone(signed, keys, monkeypatch):
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(
        load(signed, public_key=keys / "ours.pub").predict(x), load(signed).predict(x)
    )
    assert "was not made with the key" in refused(signed, keys / "theirs.pub")
    monkeypatch.setenv(PUBLIC_KEY, str(keys / "theirs.pub"))
    with pytest.raises(CellerateError, match="was not made with the key"):
        load(signed)
    # The argument overrides the environment variable.
    load(signed, public_key=keys / "ours.pub")


def test_an_empty_path_of_a_key_opens_nothing(signed, monkeypatch):
    assert "the key . is not a regular file" in refused(signed, "")
    monkeypatch.setenv(PUBLIC_KEY, "")
    with pytest.raises(CellerateError, match=r"the key \. is not a regular file"):
        load(signed)


def test_another_model_under_the_same_name_is_refused(signed, keys):
    write_model(signed, "relu")
    assert "was not made with the key" in refused(signed, keys / "ours.pub")


def test_a_model_without_a_signature_is_refused(signed, keys):
    signature_of(signed).unlink()
    assert "is not signed" in refused(signed, keys / "ours.pub")


@pytest.mark.parametrize("content", [b"", b"nonsense!", b"AAAA", b"\xff" * 64, b"A" * 1000])
def test_a_damaged_signature_is_refused(signed, keys, content):
    signature_of(signed).write_bytes(content)
    refused(signed, keys / "ours.pub")


def test_file_without_a_valid_key_is_named(signed, keys, tmp_path):
    assert "another kind than Ed25519" in refused(signed, keys / "other.pub")
    assert "does not hold a public key" in refused(signed, keys / "ours.pem")
    missing = refused(signed, tmp_path / "none.pem")
    assert missing.startswith("there is no key") and missing.count("openssl") == 1
    for key, why in (("ours.pub", "does not hold a private key"), ("other.pem", "another kind than Ed25519")):
        with pytest.raises(CellerateError, match=why):
            sign(signed, "00", keys / key)
