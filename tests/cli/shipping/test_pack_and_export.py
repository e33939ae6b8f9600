"""`pack` and `export`: what they write, say and refuse."""

import json
import re

import pytest

from cellerate.cli.shipping import export
from cellerate.kernels import native
from cellerate.runtime.cell_format import read_container
from cellerate.runtime.packed import load
from support.error_lines import one_error

pytestmark = pytest.mark.keras


def test_pack_writes_a_file_that_loads_without_keras_and_reports_its_size(cellerate, made, tmp_path):
    words = ["pack", made / "text.keras", "-o", tmp_path / "t.cell", "--dtype", "int8"]
    code, out, err = cellerate(*words)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/t\.cell: [\d.]+ kB \(.*text\.keras: [\d.]+ kB\)\n", out)
    code, out, _ = cellerate(*words, "--json")
    found = json.loads(out)
    assert found["output_bytes"] == (tmp_path / "t.cell").stat().st_size < found["model_bytes"]

    assert load(tmp_path / "t.cell").task == "text"
    code, out, err = cellerate(*words[:-1], "int2")
    assert (code, out) == (2, "")
    assert "int2" in one_error(err)


def test_pack_in_int4_is_smaller_generates_and_is_exported_in_float32(cellerate, made, tmp_path):
    sizes = {}
    for precision in ("int8", "int4"):
        words = ["pack", made / "text.keras", "-o", tmp_path / "t.cell", "--precision", precision]
        assert cellerate(*words)[0] == 0
        sizes[precision] = sum(array.nbytes for array in read_container(tmp_path / "t.cell")[1].values())
    assert sizes["int4"] < sizes["int8"]
    code, out, _ = cellerate("info", tmp_path / "t.cell", "--json")
    assert (code, json.loads(out)["dtype"]) == (0, "int4")
    assert cellerate("generate", tmp_path / "t.cell", "a", "-n", "3")[0] == 0
    words = ["export", tmp_path / "t.cell", "-o", tmp_path / "t.onnx"]
    code, out, err = cellerate(*words, "--precision", "int4")
    assert (code, out) == (2, "")
    assert "--precision must be float32 or int8" in one_error(err)
    assert not (tmp_path / "t.onnx").exists()
    assert cellerate(*words)[0] == 0


@pytest.mark.parametrize(
    ("target", "precision", "says"),
    [
        ("scalar", "bfloat16", True),
        ("scalar", "int8", False),
        (None, "bfloat16", not native.multiplies_bfloat16()),
    ],
)
def test_pack_in_bfloat16_says_where_only_int8_is_faster(cellerate, made, tmp_path, target, precision, says):
    before = native.target()
    native.set_target(target or before)
    try:
        words = ["pack", made / "text.keras", "-o", tmp_path / "t.cell", "--precision", precision]
        code, _, err = cellerate(*words)
    finally:
        native.set_target(before)
    assert (code, "--precision int8 is faster" in err) == (0, says)


def test_packed_model_can_be_signed_and_commands_require_the_signature(
    cellerate, made, tmp_path, monkeypatch
):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as form

    pem, key = form.Encoding.PEM, ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public = key.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    words = ["pack", made / "text.keras", "-o", tmp_path / "t.cell"]
    assert cellerate(*words, "--sign-key", tmp_path / "key.pem")[0] == 0
    monkeypatch.setenv("CELLERATE_PUBLIC_KEY", str(tmp_path / "public.pem"))
    assert cellerate("info", tmp_path / "t.cell")[0] == 0
    # Packing again gives the same bytes; another precision gives other bytes.
    assert cellerate(*words, "--precision", "int8")[0] == 0
    code, _, err = cellerate("generate", tmp_path / "t.cell", "a", "-n", "3")
    assert code == 3 and "was not made with the key" in one_error(err)
    # An invalid key writes nothing.
    code, _, err = cellerate(
        "pack", made / "text.keras", "-o", tmp_path / "u.cell", "--sign-key", tmp_path / "public.pem"
    )
    assert code == 2 and "does not hold a private key" in one_error(err)
    assert not (tmp_path / "u.cell").exists()


@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_export_reports_its_file_and_its_error(cellerate, made, tmp_path, suffix):
    model = made / "text.keras"
    if suffix == "cell":
        cellerate("pack", model, "-o", tmp_path / "t.cell")
        model = tmp_path / "t.cell"
    words = ["export", model, "-o", tmp_path / "t.onnx", "--stateful"]
    code, out, err = cellerate(*words)
    assert (code, err) == (0, "")
    shown = re.sub(r"[\d.]+ kB", "SIZE", re.sub(r"\d\.\de-\d\d", "ERROR", out))
    # If OpenVINO is installed, its result is reported, too.
    shown = re.sub(r"also     .*\n", "", shown)
    assert shown == (
        f"{tmp_path}/t.onnx: SIZE, onnx, float32\n"
        "inputs   ids, h_0, c_0\n"
        "outputs  logits, h_0_next, c_0_next\n"
        "checked  in ONNX Runtime, batches of 1 and 5 rows, 1, 2, 9 and 40 steps: error ERROR (at most 1e-05)\n"
    )
    code, out, _ = cellerate(*words, "--dtype", "int8", "--json")
    found = json.loads(out)
    assert found["output_bytes"] == (tmp_path / "t.onnx").stat().st_size
    assert (found["precision"], found["tolerance"]) == ("int8", None)
    assert 1e-5 < found["error"] < 0.1
    _, out, _ = cellerate(*words, "--dtype", "int8")
    assert out.splitlines()[-1 - ("also" in out)] == (
        f"exact    on every processor: two products add up to {found['largest_pair']:,} at most, in 16 bits"
    )


def test_export_evaluates_on_data_and_removes_a_worse_file(cellerate, made, tmp_path):
    words = ["export", made / "text.keras", "-o", tmp_path / "t.tflite", "--to", "litert", "--dtype", "int8"]
    words += ["--data", made / "t.txt", "--max-quality-loss"]
    code, out, err = cellerate(*words, "0.5")
    assert (code, err) == (0, "")
    shown = re.sub(r"\d+\.\d+", "N", out.splitlines()[-1])
    assert re.fullmatch(
        r"quality  bits per character N → N, (unchanged|N% (worse|better)) \(at most N% worse\)", shown
    )
    (tmp_path / "t.tflite").unlink()
    code, out, err = cellerate(*words, "-1")
    assert (code, out) == (2, "")
    assert "--max-quality-loss must be a number at least 0, not -1.0" in one_error(err)
    assert not (tmp_path / "t.tflite").exists()


def test_export_of_a_packed_model_on_data_is_refused_before_keras_starts(cellerate, made, monkeypatch):
    monkeypatch.setattr(export, "start_backend_for", lambda *_: pytest.fail("Keras was started"))
    code, _, err = cellerate("export", "book.cell", "--data", made / "t.txt")
    assert code == 2
    assert "book.cell is packed; to judge an export on data, give the .keras file" in one_error(err)


def test_export_reads_data_as_the_options_say(cellerate, here, made):
    (here / "gaps.csv").write_text((here / "s.csv").read_text() + "2030-01-01,,\n")
    words = ["export", made / "series.keras", "-o", "s.onnx", "--missing", "drop"]
    code, _, err = cellerate(*words)
    assert code == 2
    assert "--missing drop is for reading --data, and there are none" in one_error(err)
    code, out, err = cellerate(*words, "--data", "gaps.csv", "--max-quality-loss", "0.5")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("quality  ")


def test_pack_lists_every_unsupported_layer_and_writes_nothing(cellerate, tmp_path):
    import keras

    chain = [
        keras.layers.Conv1DTranspose(3, 2, name="conv"),
        keras.layers.LSTM(2, "softmax", "glu", name="soft"),
    ]
    keras.Sequential([keras.Input((4, 3)), *chain]).save(tmp_path / "own.keras")
    code, out, err = cellerate("pack", tmp_path / "own.keras", "-o", tmp_path / "own.cell")
    assert (code, out) == (4, "")
    for part in (
        "conv (Conv1DTranspose) is not a layer",
        "soft (LSTM) has the activation",
        "has the recurrent_activation",
    ):
        assert part in err
    assert not (tmp_path / "own.cell").exists()
