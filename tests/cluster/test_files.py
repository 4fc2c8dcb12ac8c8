"""The files of `examples/cluster`, as far as they can be looked at without a cluster."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gloader.cli.main import main

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "cluster"
SCRIPTS = ("train.sbatch", "two_machines.sh")
QUICK = ["--fanout", "4,3", "--hidden", "8", "--epochs", "1", "--memory-budget", "600MB", "--threads", "1"]

# What a TrainJob may hold where ours holds something: the properties of kubeflow_trainer_api 2.3.0 (and 2.2.0), from
# its models trainer_v1alpha1_*.py and io_k8s_api_core_v1_*.py. Below None anything goes. A list is of such mappings.
TRAIN_JOB: Mapping[str, Any] = {
    "apiVersion": None,
    "kind": None,
    "metadata": {"name": None, "generateName": None, "namespace": None, "labels": None, "annotations": None},
    "spec": {
        "activeDeadlineSeconds": None,
        "initializer": None,
        "managedBy": None,
        "suspend": None,
        "runtimeRef": {"apiGroup": None, "kind": None, "name": None},
        "trainer": {
            "args": None,
            "command": None,
            "env": [{"name": None, "value": None, "valueFrom": None}],
            "image": None,
            "numNodes": None,
            "numProcPerNode": None,
            "resourcesPerNode": {"claims": None, "limits": None, "requests": None},
        },
        "runtimePatches": [
            {
                "manager": None,
                "time": None,
                "trainingRuntimeSpec": {
                    "template": {
                        "metadata": None,
                        "spec": {
                            "replicatedJobs": [
                                {
                                    "name": None,
                                    "template": {
                                        "metadata": None,
                                        "spec": {
                                            "template": {
                                                "metadata": None,
                                                "spec": {
                                                    "affinity": None,
                                                    "containers": [
                                                        {
                                                            "name": None,
                                                            "env": None,
                                                            "securityContext": None,
                                                            "volumeMounts": [
                                                                {
                                                                    "name": None,
                                                                    "mountPath": None,
                                                                    "readOnly": None,
                                                                }
                                                            ],
                                                        }
                                                    ],
                                                    "imagePullSecrets": None,
                                                    "nodeSelector": None,
                                                    "securityContext": None,
                                                    "serviceAccountName": None,
                                                    "terminationGracePeriodSeconds": None,
                                                    "tolerations": None,
                                                    "volumes": [
                                                        {
                                                            "name": None,
                                                            "hostPath": {"path": None, "type": None},
                                                            "persistentVolumeClaim": {
                                                                "claimName": None,
                                                                "readOnly": None,
                                                            },
                                                        }
                                                    ],
                                                },
                                            }
                                        },
                                    },
                                }
                            ]
                        },
                    }
                },
            }
        ],
    },
}


def _unknown(value: Any, allowed: Any, where: str = "") -> Iterator[str]:
    if isinstance(allowed, list):
        for index, item in enumerate(value):
            yield from _unknown(item, allowed[0], f"{where}[{index}]")
    elif isinstance(allowed, dict):
        for name, item in value.items():
            if name in allowed:
                yield from _unknown(item, allowed[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The TrainJob."""
    found: dict[str, Any] = yaml.safe_load((FILES / "trainjob.yaml").read_text())
    return found


def test_the_train_job_has_no_field_that_the_api_does_not_know(job: dict[str, Any]) -> None:
    assert list(_unknown(job, TRAIN_JOB)) == []
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"


def test_what_a_train_job_asks_for_is_there(job: dict[str, Any]) -> None:
    """Volumes that it mounts are named, its folders are on them, and its memory is below the limit of the pod."""
    trainer = job["spec"]["trainer"]
    (replicated,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"][
        "replicatedJobs"
    ]
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert replicated["name"] == container["name"] == "node"  # as in the runtime torch-distributed
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    mounted = tuple(mount["mountPath"] for mount in container["volumeMounts"])
    flags = dict(argument.removeprefix("--").split("=") for argument in trainer["args"] if "=" in argument)
    variables = {variable["name"]: variable["value"] for variable in trainer["env"]}
    for folder in (flags["dataset"], flags["out"], variables["GLOADER_HOME"]):
        assert folder.startswith(mounted)
    assert all(isinstance(trainer[name], int) for name in ("numNodes", "numProcPerNode"))
    assert all(isinstance(word, str) for word in (*trainer["command"], *trainer["args"], *variables.values()))
    assert float(flags["memory-budget"].removesuffix("GB")) * 1e9 < 16 * 2**30


@pytest.mark.long
def test_the_words_of_a_train_job_train(job: dict[str, Any], dataset: Path, tmp_path: Path) -> None:
    """Its own command, with the variables that the runtime gives a job of one node."""
    trainer = job["spec"]["trainer"]
    flags = [word for word in trainer["args"] if not word.startswith(("--dataset=", "--out=", "--epochs="))]
    words = [
        *trainer["command"][1:],
        *flags,
        f"--dataset={dataset}",
        f"--out={tmp_path / 'run'}",
        "--epochs=1",
    ]
    ended = _run(
        sys.executable, "-m", "torch.distributed.run", *words,
        PET_NNODES="1", PET_NPROC_PER_NODE="1", PET_NODE_RANK="0", PET_MASTER_ADDR="localhost", PET_MASTER_PORT="0",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["world_size"] == 1


def test_the_batch_script_asks_for_one_task_a_node() -> None:
    """Each task is an agent, which starts as many ranks as it is told; two on a node would share its port and rank."""
    text = (FILES / "train.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert len(asked) == len(re.findall("^#SBATCH", text, re.MULTILINE))
    assert asked["ntasks-per-node"] == "1"
    assert int(asked["nodes"]) > 1
    assert re.fullmatch(r"\d\d:\d\d:\d\d", asked["time"])
    # Slurm reads no line behind the first command.
    first_command = next(line for line in text.splitlines() if line and not line.startswith("#"))
    assert text.rindex("#SBATCH") < text.index(first_command)


def test_the_line_of_the_batch_script_trains(dataset: Path, tmp_path: Path) -> None:
    """The script itself, with Slurm's variables of a job of one node; srun and scontrol do what they do there."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, does in (("srun", 'shift; exec "$@"'), ("scontrol", "echo localhost")):
        (tools / name).write_text(f"#!/bin/bash\n{does}\n")
        (tools / name).chmod(0o755)
    torchrun = tools / "torchrun"
    torchrun.write_text(f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    ended = _run(
        "bash", FILES / "train.sbatch", *QUICK,
        PATH=f"{tools}:{os.environ['PATH']}", SLURM_JOB_ID="4242", SLURM_JOB_NUM_NODES="1",
        SLURM_JOB_NODELIST="localhost", SLURM_SUBMIT_DIR=str(tmp_path), DATASET=str(dataset), RANKS_PER_NODE="2",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    out = tmp_path / "runs" / "4242"
    assert json.loads((out / "result.json").read_text())["world_size"] == 2
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1  # the epochs that the words ask for


@pytest.mark.long
def test_two_agents_on_one_machine_train_as_one_does(dataset: Path, tmp_path: Path) -> None:
    """Bit for bit, as the ranks are two in either case; the machines are those that the script names."""
    words = [*QUICK, "--device", "cpu"]
    for machine in "ab":
        (tmp_path / machine).symlink_to(dataset)
    rehearsed = _run(
        "bash",
        FILES / "two_machines.sh",
        "--dataset",
        tmp_path / "MACHINE",
        *words,
        "--out",
        tmp_path / "two",
        PORT="29541",
        **_python(tmp_path),
    )
    assert rehearsed.returncode == 0, rehearsed.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    one = _run(*torchrun, "-m", "gloader", "train", "--dataset", dataset, *words, "--out", tmp_path / "one")
    assert one.returncode == 0, one.stderr
    first, second = (json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in ("two", "one"))
    assert [first[name] for name in ("loss", "valid_acc")] == [second[name] for name in ("loss", "valid_acc")]


@pytest.mark.long
def test_an_agent_that_fails_ends_the_other(tmp_path: Path) -> None:
    words = ["--dataset", tmp_path / "none", *QUICK]
    ended = _run("bash", FILES / "two_machines.sh", *words, PORT="29542", **_python(tmp_path))
    assert ended.returncode != 0
    assert "is neither a folder nor a source" in ended.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_well_formed_and_stops_at_the_first_error(name: str) -> None:
    text = (FILES / name).read_text()
    assert text.startswith("#!/bin/bash\n")
    assert re.search("^set -euo pipefail$", text, re.MULTILINE)
    assert subprocess.run(["bash", "-n", FILES / name], check=False).returncode == 0
    # What splits at a space in a folder's name: a variable that stands without quotes, or in $((...)).
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    bare = re.sub(r'"[^"]*"|\$\(\([^)]*\)\)|^[A-Z_]+=\S*|export [A-Z_]+=\S*', "", code, flags=re.MULTILINE)
    assert re.findall(r"(?<![A-Z_]=)\$\{?[A-Za-z_@][^ \n]*", bare.replace("GLOADER_MACHINE=$1", "")) == []
    assert os.access(FILES / name, os.X_OK) or name.endswith(".sbatch")


def test_the_image_is_made_of_what_is_there_and_runs_without_root() -> None:
    text = re.sub(r"\\\n", " ", (FILES / "Dockerfile").read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert [step[0] for step in steps if step[0] not in known] == []
    assert steps[0][0] == "FROM"
    assert not steps[0][1].endswith(":latest")
    copied = [words.split()[:-1] for step, words in steps if step == "COPY"]
    assert {source for sources in copied for source in sources if not (ROOT / source).exists()} == set()
    # Every top-level package, as a folder: gloader holds links to those beside it.
    for package in (link.name for link in (ROOT / "gloader").iterdir() if link.is_symlink()):
        assert [package] in copied
    assert [words for step, words in steps if step == "USER"] == ["1000"]
    assert [step for step, _ in steps].index("USER") > max(
        i for i, (step, _) in enumerate(steps) if step == "RUN"
    )
    assert "-c constraints.txt" in text
    (command,) = (json.loads(words) for step, words in steps if step == "CMD")
    assert command[0] == "gloader"
    assert main([*command[1:], "--help"]) == 0


def test_the_page_names_every_file() -> None:
    text = (FILES / "README.md").read_text()
    assert len(text.splitlines()) <= 40
    for file in FILES.iterdir():
        assert file.name == "README.md" or f"`{file.name}`" in text


def _python(folder: Path) -> dict[str, str]:
    """Return variables with which `python` is this one."""
    # Not a link: an interpreter finds its packages by the name that it is called by.
    (folder / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def _run(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environ},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
