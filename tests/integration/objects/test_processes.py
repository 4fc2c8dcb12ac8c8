"""Several processes and one mirror: killed ones, and two at a time."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gloader import Dataset
from gloader.testing.range_server import RangeServer

from .conftest import BLOCK_BYTES

IN_FLIGHT = 4
Serve = Callable[..., RangeServer]


def mirrored(opened: Callable[..., Dataset], url: str) -> bytes:
    """Return the features as the mirror below ``tmp_path`` has them on the disk."""
    return opened(f"{url}/papers").features_path.read_bytes()


def verifying(url: str, mirrors: Path) -> subprocess.Popen[str]:
    """Start a process that reads every byte of the dataset at ``url``."""
    words = [
        sys.executable,
        "-m",
        "gloader",
        "verify",
        url,
        "--mirror-dir",
        str(mirrors),
        "--object-requests",
    ]
    return subprocess.Popen(
        [*words, str(IN_FLIGHT)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.reliability("O13")
def test_two_processes_fill_one_mirror(
    serve: Serve, opened: Callable[..., Dataset], tmp_path: Path, local: Dataset
) -> None:
    server = serve(latency_s=0.01)
    both = [verifying(server.url + "/papers", tmp_path / "mirrors") for _ in range(2)]
    for child in both:
        said, _ = child.communicate(timeout=120)
        assert child.returncode == 0, said
    assert mirrored(opened, server.url) == local.features_path.read_bytes()


@pytest.mark.reliability("O10")
@pytest.mark.long
def test_a_killed_process_leaves_what_it_had_and_the_next_goes_on(
    opened: Callable[..., Dataset], tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    nodes = 100_000
    dataset = Dataset.from_numpy(
        tmp_path / "served" / "papers",
        features=rng.standard_normal((nodes, 256)).astype(np.float32),
        labels=rng.integers(0, 3, nodes),
        edge_index=rng.integers(0, nodes, (2, nodes)),
    )
    blocks = -(-dataset.features_path.stat().st_size // BLOCK_BYTES)
    draw, kills = random.Random(0), 8  # noqa: S311 - no secret
    with RangeServer(tmp_path / "served", bytes_per_s=40_000_000, latency_s=0.02) as server:

        def gets() -> int:
            return server.counts.gets_of.get("papers/features.npy", 0)

        for _ in range(kills):
            until = gets() + draw.randint(0, 3)
            child = verifying(server.url + "/papers", tmp_path / "mirrors")
            while child.poll() is None and gets() < until:
                time.sleep(0.005)
            time.sleep(draw.random() / 4)
            child.kill()
            child.communicate(timeout=60)
        last = verifying(server.url + "/papers", tmp_path / "mirrors")
        said, _ = last.communicate(timeout=120)
        assert last.returncode == 0, said
        assert blocks <= gets() <= blocks + kills * IN_FLIGHT
        assert mirrored(opened, server.url) == dataset.features_path.read_bytes()
