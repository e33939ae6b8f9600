"""EleutherAI's harness evaluates a model through the server and gets the model's own probabilities."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import PackedModel, load
from support.servers import serving, text_cell

pytestmark = pytest.mark.slow
DOCUMENTS = [
    {"context": "abcab", "choices": ["cab", "hhh", "a"], "label": 0},
    {"context": "hgf", "choices": ["e", "dcba", "ggggg"], "label": 1},
    {"context": "a" * 40, "choices": ["ab", "ba"], "label": 1},
]
TASKS = {
    "choices": """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_target: label
doc_to_choice: "{{choices}}"
metric_list:
  - metric: acc
""",
    "whole": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{context}}"
metric_list:
  - metric: bits_per_byte
""",
}


def test_harness_gets_the_probabilities_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the package of the group judges: pip install --group judges")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    for name, task in TASKS.items():
        source = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/documents.jsonl\n"
        settings = f'task: {name}\n{source}test_split: test\ntarget_delimiter: ""\n'
        (tmp_path / f"{name}.yaml").write_text(settings + task)
    cell = text_cell(tmp_path / "text.cell")
    with serving(cell) as server:
        model = f"model=text,base_url={server.address}/v1/completions,tokenizer_backend=remote"
        command = [str(Path(sys.executable).with_name("lm_eval")), "run", "--model", "local-completions"]
        command += ["--model_args", f"{model},custom_prefix_token_id=2", "--tasks", ",".join(TASKS)]
        command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
        command += ["--log_samples", "--batch_size", "2"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=offline)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    packed = load(cell)
    for found in samples(tmp_path / "out", "choices"):
        for choice, (likelihood, _) in zip(found["doc"]["choices"], found["filtered_resps"], strict=True):
            right = likelihood_of(packed, found["doc"]["context"], choice)
            assert float(likelihood) == pytest.approx(right, rel=1e-5)
    for found in samples(tmp_path / "out", "whole"):
        right = likelihood_of(packed, "c", found["doc"]["context"])
        assert float(found["filtered_resps"][0]) == pytest.approx(right, rel=1e-5)


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """The harness's record of each document."""
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == len(DOCUMENTS)
    return found


def likelihood_of(model: PackedModel, before: str, text: str) -> float:
    """ln of the probability of a text after another."""
    ids = model.tokenizer.encode(before + text)
    _, each = model.steps.log_probabilities(model.steps.initial_state(), ids[np.newaxis])
    return float(each[0, len(before) - 1 :].sum())
