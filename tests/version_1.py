"""Directories as format version 1 wrote them: made from those of today by its own checksum, spelled out in numpy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from gloader.ssd_store.format.format import MANIFEST_NAMES, ArrayRecord, parse_manifest, seal_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_M64 = 2**64 - 1
_PRIME = 0x9E3779B97F4A7C15


def finish(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _M64
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _M64
    return value ^ (value >> 33)


def step(lane: int, word: int) -> int:
    mixed = lane ^ word
    return ((((mixed << 29) | (mixed >> 35)) & _M64) * _PRIME) & _M64


def page_checksums(data: bytes) -> NDArray[np.uint64]:
    """Return the checksums of the pages ``data``, all of them at once: words are the columns of a matrix."""
    words = np.frombuffer(data, np.uint64).reshape(-1, 512)
    start = np.array([finish(page + 1) for page in range(len(words))], np.uint64)
    lanes = start[:, None] + np.arange(8, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(0, 512, 8):
            mixed = lanes ^ words[:, column : column + 8]
            lanes = ((mixed << np.uint64(29)) | (mixed >> np.uint64(35))) * np.uint64(_PRIME)
    out = np.empty(len(words), np.uint64)
    for page, values in enumerate(lanes.tolist()):
        total = values[0]
        for lane in values[1:]:
            total = step(total, lane)
        out[page] = finish(total)
    return out


def digest(checksums: NDArray[np.uint64]) -> str:
    state = 0
    for checksum in checksums.tolist():
        state = step(state, checksum)
    return f"{finish(step(state, len(checksums))):016x}"


def as_version_1(root: Path) -> dict[str, ArrayRecord]:
    """Rewrite the directory ``root`` as version 1 left it, page checksums for features alone; return its records."""
    (name,) = [name for name in MANIFEST_NAMES if (root / name).exists()]
    body = json.loads((root / name).read_text())
    del body["checksum"]
    body["format_version"] = 1
    for array, record in body["arrays"].items():
        checksums = page_checksums((root / record["file"]).read_bytes()[4096:])
        record["digest"] = digest(checksums)
        pages = root / f"{array}.pages"
        if array == "features":
            header = pages.read_bytes()[:4096]
            pages.write_bytes(header + checksums.tobytes().ljust(-(-checksums.nbytes // 4096) * 4096, b"\0"))
        else:
            pages.unlink()
            record["pages_file"] = None
    data = seal_manifest(body)
    (root / name).write_bytes(data)
    return dict(parse_manifest(data, root).arrays)
