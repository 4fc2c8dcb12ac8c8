"""The owner record of a mirror's folder: whose copy it is, and which version of each object."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from gloader.core.malformed import MALFORMED
from gloader.errors import FormatError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.mirror.objects import ObjectFacts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIRROR_RECORD: Final = "mirror.json"
FILES: Final = "files"  # the folder that is opened as a dataset
MARKS: Final = "blocks"  # a file of marks for each of its files
BLOCK_BYTES: Final = 8 * 2**20
MAX_RECORD_BYTES: Final = 16 * 2**20
_FORMAT: Final = "gloader-mirror"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRecord:
    """What the folder of a mirror says of itself; without one nothing in it is believed, or removed."""

    url: str  # as it may be shown: no credentials are in it
    files: Mapping[str, ObjectFacts]  # by name, all files of arrays
    block_bytes: int = BLOCK_BYTES

    def to_bytes(self) -> bytes:
        """Return the content of ``mirror.json``. Pure."""
        body = {
            "format": _FORMAT,
            "version": _VERSION,
            "url": self.url,
            "block_bytes": self.block_bytes,
            "files": {name: [facts.size, facts.etag] for name, facts in self.files.items()},
        }
        return (json.dumps(body, indent=1) + "\n").encode("ascii")

    @classmethod
    def parse(cls, data: bytes, path: Path) -> Self:
        """Return the record that `to_bytes` wrote. Pure.

        Raises
        ------
        FormatError
            ``data`` is none, or of another version.
        """
        try:
            body = json.loads(data)
            if (body["format"], body["version"]) != (_FORMAT, _VERSION):
                raise ValueError("another format or version")
            files = {
                str(name): ObjectFacts(size=size, etag=etag) for name, (size, etag) in body["files"].items()
            }
            record = cls(url=body["url"], files=files, block_bytes=body["block_bytes"])
            _check(record)
        except MALFORMED as error:
            raise FormatError(
                f"{path}: no owner record of a mirror that this build reads ({error}); give another --mirror-dir, or "
                "remove the folder"
            ) from error
        return record


def folder_name(url: str, record: bytes) -> str:
    """Return the name of the folder for a mirror of the dataset at ``url`` with the commit record ``record``. Pure."""
    return hashlib.sha256(url.encode() + b"\n" + record).hexdigest()[:32]


def _check(record: MirrorRecord) -> None:
    texts = [record.url, *(facts.etag for facts in record.files.values())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text is missing")
    sizes = [record.block_bytes, *(facts.size for facts in record.files.values())]
    if not all(type(size) is int and size > 0 and size % PAGE_BYTES == 0 for size in sizes):
        raise ValueError("a size is not one of whole pages")
