"""Batches depend on nothing that a process inherits, and leave nothing of it changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gloader import Dataset

PROBE = """
import hashlib, locale, random, sys
import numpy as np
import torch
import gloader

path, seed = sys.argv[1], sys.argv[2]
if seed:
    locale.setlocale(locale.LC_ALL, "")
    random.seed(int(seed))
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))
before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
digest = hashlib.sha256()
settings = dict(fanouts=[4, 3], batch_size=32, seed=7, memory_budget="200MB", threads=2)
with gloader.Loader(gloader.Dataset.open(path), **settings) as loader:
    for _ in range(2):
        for batch in loader:
            digest.update(batch.nodes.tobytes() + batch.x.numpy().tobytes() + batch.y.numpy().tobytes())
            for block in batch.blocks:
                digest.update(block.indptr.numpy().tobytes() + block.indices.numpy().tobytes())
after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
assert before == after, "a global generator was used"
print(digest.hexdigest())
"""


def write_dataset(path: Path) -> None:
    rng = np.random.Generator(np.random.Philox(3))
    num_nodes, degree = 400, 9
    with Dataset.create(path, name="ambient", num_nodes=num_nodes, num_classes=3) as writer:
        with writer.indptr() as column:
            column.append(np.arange(num_nodes + 1, dtype=np.int64) * degree)
        with writer.indices(num_nodes * degree, "int32") as column:
            column.append(rng.integers(0, num_nodes, num_nodes * degree, dtype=np.int32))
        with writer.features(6, "float32") as column:
            column.append(rng.standard_normal((num_nodes, 6)).astype(np.float32))
        writer.labels(rng.integers(0, 3, num_nodes))
        ids = np.arange(num_nodes)
        writer.splits(train=ids[:200], valid=ids[200:300], test=ids[300:])


def start(dataset: Path, cwd: Path, seed: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROBE, str(dataset), seed],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.reliability("F7")
def test_one_digest_for_any_hash_seed_locale_folder_and_global_seed(tmp_path: Path) -> None:
    dataset, elsewhere = tmp_path / "dataset", tmp_path / "else where"
    elsewhere.mkdir()
    write_dataset(dataset)
    children = [
        start(dataset, tmp_path, "", PYTHONHASHSEED="0", LC_ALL="C"),
        start(dataset, elsewhere, "1", PYTHONHASHSEED="1", LC_ALL="C.UTF-8", TZ="Asia/Kathmandu"),
        start(dataset, elsewhere, "2", PYTHONHASHSEED="random", LANG="POSIX", OMP_NUM_THREADS="1"),
    ]
    outputs = [child.communicate(timeout=100) for child in children]
    for child, (_, stderr) in zip(children, outputs, strict=True):
        assert child.returncode == 0, stderr
    digests = {stdout for stdout, _ in outputs}
    assert len(digests) == 1
    assert len(next(iter(digests)).strip()) == 64
