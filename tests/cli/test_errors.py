"""Failures of every verb give one line and the exit code of their kind."""

import re
import zipfile

import pytest

from support.error_lines import one_error

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "text", "missing.txt", "-o", "m.keras"], 3, "missing.txt"),
        (["train", "text", "empty.txt", "-o", "m.keras"], 3, "empty.txt is empty"),
        (["train", "text", "t.txt", "-o", "m.keras", "--length", "5000"], 3, "a window needs 5,001"),
        (["train", "text", "t.txt", "-o", "m.keras", "--tokenizer", "no.json"], 3, "no.json"),
        (["train", "text", "binary.txt", "-o", "m.keras"], 3, "UTF-8"),
        (["train", "text", "t.txt", "-o", "m.h5"], 2, "m.h5"),
        (["train", "text", "t.txt", "-o", "t.txt/m.keras"], 6, "is a file"),
        (["train", "text", "t.txt", "-o", "folder.keras"], 6, "folder of that name"),
        (["train", "text", "t.txt", "-o", "m.keras", "--sample", "Zebra"], 3, "'Z'"),
        (["train", "text", "t.txt", "-o", "m.keras", "--model", "{made}/series.keras"], 4, "'series'"),
        (["train", "series", "s.csv", "-o", "m.keras"], 2, "no target"),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "nope"], 3, "'nope'"),
        (["train", "series", "words.csv", "-o", "m.keras", "--target", "a"], 3, "words.csv"),
        (["train", "series", "nan.csv", "-o", "m.keras", "--target", "a"], 3, "column 'a' has no value"),
        (["train", "series", "missing.csv", "-o", "m.keras", "--target", "a"], 3, "missing.csv"),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--window", "500"], 3, "500"),
        (
            ["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--quantile", "2"],
            2,
            "--quantile must be ascending",
        ),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--plot", "c.pdf"], 2, "c.pdf"),
        (["forecast", "absent.keras", "absent.csv", "--plot", "c.pdf"], 2, ".png or .svg, not 'c.pdf'"),
        (
            ["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--plot", "t.txt/c.png"],
            6,
            "c.png",
        ),
        (["train", "embed", "empty.txt", "-o", "m.keras"], 3, "empty.txt"),
        (["train", "embed", "l.txt", "-o", "m.keras", "--column", "x"], 3, "not a Parquet"),
        (["train", "embed", "l.txt", "-o", "m.keras", "--resume"], 4, "no checkpoint"),
        (["generate", "{made}/text.keras", "the Z"], 3, "'Z'"),
        (["generate", "{made}/text.keras", ""], 2, "prompt is empty"),
        (["generate", "{made}/text.keras", "the", "-t", "-1"], 2, "temperature"),
        (["generate", "{made}/text.keras", "the", "--top-k", "0"], 2, "--top-k "),
        (["generate", "{made}/text.keras", "the", "--min-p", "2"], 2, "--min-p "),
        (["generate", "{made}/text.keras", "the", "--device", "cuda"], 2, "--implementation cellerate-cuda"),
        (["generate", "{made}/text.keras", "the", "--repetition-penalty", "0"], 2, "--repetition-penalty "),
        (["generate", "{made}/series.keras", "the", "--implementation", "keras"], 4, "holds a series model"),
        (["generate", "{made}/series.keras", "the"], 4, "holds a series model"),
        (["generate", "missing.keras", "the"], 4, "missing.keras"),
        (["generate", "truncated.keras", "the"], 4, "truncated.keras"),
        (["generate", "t.txt", "the"], 4, "t.txt"),
        (["forecast", "{made}/text.keras", "s.csv"], 4, "holds a text model"),
        (["forecast", "{made}/series.keras", "words.csv"], 3, "words.csv"),
        (["forecast", "{made}/series.keras", "s.csv", "-o", "t.txt/f.csv"], 6, "f.csv"),
        (["embed", "{made}/text.keras", "l.txt"], 4, "holds a text model"),
        (["embed", "{made}/embed.keras", "l.txt", "-o", "v.csv"], 2, "v.csv"),
        (["embed", "{made}/embed.keras", "l.txt", "-o", "t.txt/v.npy"], 6, "v.npy"),
        (["embed", "{made}/embed.keras", "zebra.txt"], 3, "'z'"),
        (["embed", "{made}/embed.keras", "l.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["evaluate", "truncated.keras", "t.txt"], 4, "truncated.keras"),
        (["evaluate", "{made}/text.keras", "zebra.txt"], 3, "'z'"),
        (["evaluate", "{made}/text.keras", "t.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["evaluate", "{made}/embed.keras", "l.txt", "l.txt"], 2, "one file"),
        (["explain", "truncated.keras"], 4, "truncated.keras"),
        (["export", "truncated.keras", "-o", "m.onnx"], 4, "truncated.keras"),
        (["export", "{made}/text.keras", "-o", "m.bin"], 2, "ending in '.onnx'"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--to", "tflite"], 2, "'tflite'"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--dtype", "int4"], 2, "'int4'"),
        (["export", "{made}/text.keras", "-o", "t.txt/m.onnx"], 6, "m.onnx"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--data", "zebra.txt"], 3, "'z'"),
        (["export", "{made}/embed.keras", "-o", "m.onnx", "--stateful"], 4, "not known step by step"),
    ],
    ids=lambda value: re.sub(r"\{made\}/", "", "-".join(value)) if isinstance(value, list) else None,
)
def test_error_is_one_line_with_its_exit_code_and_writes_nothing(cellerate, here, made, words, code, message):
    (here / "empty.txt").write_text("")
    (here / "binary.txt").write_bytes(b"abc \xff\xfe\x00 def" * 50)
    (here / "zebra.txt").write_text("z\nz\n")
    (here / "words.csv").write_text("a,b\n" + "x,1\n" * 50)
    (here / "nan.csv").write_text("a,b\n" + ",1\n" * 50)
    (here / "folder.keras").mkdir()
    (here / "truncated.keras").write_bytes((made / "text.keras").read_bytes()[:-200])
    before = sorted(here.rglob("*"))
    found, out, err = cellerate(*[word.format(made=made) for word in words], *(
        ["--epochs", "1", "-q"] if words[0] == "train" else []
    ))  # fmt: skip
    assert (found, out) == (code, "")
    assert message in one_error(err)
    assert sorted(here.rglob("*")) == before


def test_model_with_one_changed_byte_is_refused(cellerate, made, tmp_path):
    content = bytearray((made / "text.keras").read_bytes())
    with zipfile.ZipFile(made / "text.keras") as archive:
        place = archive.getinfo("model.weights.h5").header_offset + 2000
    content[place] ^= 0xFF
    (tmp_path / "m.keras").write_bytes(content)
    code, out, err = cellerate("generate", tmp_path / "m.keras", "the ")
    assert (code, out) == (4, "")
    assert "checksum" in one_error(err)
