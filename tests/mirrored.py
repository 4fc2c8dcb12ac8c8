"""A small dataset in the memory of a process, as an object store has it, and what its files hold."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gloader.convert.in_memory import write_numpy
from gloader.ssd_store.mirror import open_mirror, open_objects
from gloader.testing.faults import FaultyObjects

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.ssd_store.mirror import MirrorIO, ObjectStore

BLOCK = 64 * 1024
FEATURES = "features.npy"
OPENED: list[MirrorIO] = []  # that a fixture closes
NODES, DIM = 3000, 64  # 768,000 bytes of features: 12 blocks


class Remote(NamedTuple):
    """A dataset in a store, by the names of its objects."""

    folder: Path  # that was uploaded
    objects: ObjectStore
    files: dict[str, bytes]

    @property
    def url(self) -> str:
        return self.objects.url


@cache
def uploaded(base: Path, name: str = "papers", seed: int = 0) -> Remote:
    """Write a dataset below ``base`` and upload it to memory://name-...; the same one for the same arguments."""
    folder = base / f"{name}-{seed}"
    rng = np.random.default_rng(seed)
    write_numpy(
        folder,
        features=rng.random((NODES, DIM), dtype=np.float32),
        labels=rng.integers(0, 5, NODES),
        edge_index=rng.integers(0, NODES, (2, 40_000)),
    )
    return upload(folder, f"memory://{base.name}-{name}-{seed}")


def upload(folder: Path, url: str) -> Remote:
    objects = open_objects(url)
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    for name, content in files.items():
        objects.put(name, content)
    return Remote(folder, objects, files)


def open_mirrored(remote: Remote, mirror_dir: Path, **options: Any) -> tuple[Path, MirrorIO, FaultyObjects]:
    """Open a mirror of ``remote`` in small blocks; ``fault`` and ``delay_s`` are those of the store."""
    faults = {name: options.pop(name) for name in ("fault", "delay_s", "is_away") if name in options}
    objects = options.pop("objects", None) or FaultyObjects(remote.objects, **faults)
    options.setdefault("block_bytes", BLOCK)
    root, os_io = open_mirror(remote.url, mirror_dir=mirror_dir, objects=objects, **options)
    OPENED.append(os_io)
    return root, os_io, objects


def read_range(os_io: MirrorIO, path: Path, start: int, length: int) -> bytes:
    """Read a part of a file, in as many calls as it takes."""
    fd = os_io.open(path, os.O_RDONLY)
    try:
        buffer = bytearray(length)
        done = 0
        while done < length:
            count = os_io.pread_into(fd, memoryview(buffer)[done:], start + done)
            if not count:
                break
            done += count
        return bytes(buffer[:done])
    finally:
        os_io.close(fd)


def settle(os_io: MirrorIO) -> None:
    """Wait until every block that came was kept, or was not."""
    deadline = time.monotonic() + 10
    while os_io.mirror._arriving and time.monotonic() < deadline:
        time.sleep(0.001)


def fetched(objects: FaultyObjects, name: str = FEATURES) -> list[int]:
    """Return the blocks of a file that were asked for, in order."""
    return [asked.start // BLOCK for asked in objects.asked if asked.name == name]
