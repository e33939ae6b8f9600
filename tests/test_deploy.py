"""The recipes in deploy/: whether they can be read, and say what the program understands."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cellerate.cli.main import app

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CLUSTERS = ["ray-aws.yaml", "ray-gcp.yaml"]


def commands(text: str) -> list[list[str]]:
    """The commands `cellerate train ...` in a text, as words."""
    plain = re.sub(r"\n#?\s+", " ", text)
    return [
        shlex.split(found)
        for found in re.findall(r"cellerate (train series [^\n'\"]*?)(?=['\"\n]| shutdown)", plain)
    ]


@pytest.mark.parametrize("name", ["kuberay.yaml", *CLUSTERS])
def test_recipes_use_options_that_there_are(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    known = CliRunner().invoke(app, ["train", "series", "--help"]).stdout
    found = commands((DEPLOY / name).read_text())
    assert found
    for words in found:
        options = [word for word in words if word.startswith("-")]
        assert {"--ray", "--processes", "--min-processes"} <= {*options}
        for option in options:
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known), option


def test_kuberay_job_is_one():
    job = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        assert {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_is_one_to_ray(name):
    config = yaml.safe_load((DEPLOY / name).read_text())
    assert config["head_node_type"] in config["available_node_types"]
    jsonschema = pytest.importorskip("jsonschema", reason="Ray is not installed: pip install --group cluster")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install --group cluster")
    schema = json.loads(Path(ray.__file__).with_name("autoscaler").joinpath("ray-schema.json").read_text())
    jsonschema.validate(config, schema)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Runs the Slurm script where `srun` starts two processes; what `cellerate` was called with in each."""
    tools = {
        "scontrol": "echo first-machine; echo second-machine",
        "srun": 'shift; for n in 0 1; do SLURM_PROCID=$n SLURM_NTASKS=2 "$@"; done',
        "cellerate": 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT: $*"',
    }
    for name, code in tools.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "20007", **variables}
        return subprocess.run(
            ["bash", str(DEPLOY / "slurm.sbatch"), *words],
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **environment},
        )

    return run


def test_slurm_script_gives_each_process_its_place(slurm):
    done = slurm("series", "my data.csv", "-o", "m.keras")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{rank} of 2 at first-machine:20007: train series my data.csv -o m.keras" for rank in (0, 1)
    ]


def test_slurm_script_goes_on_when_it_is_started_again(slurm, tmp_path):
    words = ("text", "t.txt", "--output", "m.keras")
    assert "--resume" not in slurm(*words, SLURM_RESTART_COUNT="1").stdout
    (tmp_path / "m.run").mkdir()
    (tmp_path / "m.run" / "checkpoint-00000001.safetensors").touch()
    assert "--resume" not in slurm(*words).stdout
    assert slurm(*words, SLURM_RESTART_COUNT="1").stdout.count("--output m.keras --resume") == 2


def test_slurm_script_needs_the_name_of_the_model(slurm):
    done = slurm("text", "t.txt")
    assert done.returncode != 0
    assert "name the model" in done.stderr
