"""What a file of a mirror is checked by: the page checksums beside it, or the digest of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages
from gloader.ssd_store.format.npy_header import DATA_OFFSET

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.format.manifest import ArrayRecord, Manifest
    from gloader.ssd_store.mirror.mirrored_file import MirroredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """How one file of a dataset is checked."""

    array: ArrayRecord
    header: bytes
    is_sums: bool  # whether the file holds page checksums, not elements

    @property
    def pages_name(self) -> str | None:
        """The file of the checksums of its pages; None: it can only be checked as a whole, by the digest."""
        return None if self.is_sums else self.array.pages_file

    def require_header(self, data: NDArray[np.uint8], url: str) -> None:
        """Check the first page of block 0; raises `ChecksumError`."""
        if data[:DATA_OFFSET].tobytes() != self.header:
            raise ChecksumError(
                f"{url}: block 0: the header is not that of {self.array.dtype} of shape {self.array.shape}, as the "
                "dataset's record says; the object is damaged or another one: upload the dataset again"
            )

    def require_pages(
        self, file: MirroredFile, block: int, data: NDArray[np.uint8], sums: MirroredFile, url: str
    ) -> None:
        """Check the pages of a block against the checksums in the file ``sums``, which is here whole.

        Raises
        ------
        ChecksumError
            A page differs; names the block and the page.
        OSError
            The checksums cannot be read.
        """
        skipped = DATA_OFFSET if block == 0 else 0
        pages = data[skipped:]
        first = (file.start_of(block) + skipped - DATA_OFFSET) // PAGE_BYTES
        expected, actual = np.empty((2, pages.size // PAGE_BYTES), np.uint64)
        sums.read(expected.view(np.uint8).data, DATA_OFFSET + 8 * first)
        checksum_pages(pages, first, actual, self.array.version)
        wrong = np.flatnonzero(actual != expected)
        if wrong.size:
            page = first + int(wrong[0])
            raise ChecksumError(
                f"{url}: block {block}: page {page} at byte {DATA_OFFSET + page * PAGE_BYTES} does not match its "
                "checksum: the object is damaged in the store or on its way; check the copy that it was uploaded from "
                "with `gloader verify` and upload it again"
            )

    def is_sound(self, file: MirroredFile) -> bool:
        """Return whether the whole file is as it was written; raises `OSError`."""
        digest, left = Digest(self.array.version), self.array.num_pages
        buffer = aligned_bytes(min(file.block_bytes, file.size - DATA_OFFSET))
        sums = np.empty(buffer.size // PAGE_BYTES, np.uint64)
        for start in range(DATA_OFFSET, file.size, max(buffer.size, 1)):
            part = buffer[: file.size - start]
            file.read(part.data, start)
            if self.is_sums:
                words = part.view(np.uint64)
                count = min(left, words.size)
                digest.update(words[:count])
                if words[count:].any():  # what is behind the last one must be zero, and no digest covers it
                    return False
            else:
                count = part.size // PAGE_BYTES
                checksum_pages(part, digest.num_pages, sums[:count], self.array.version)
                digest.update(sums[:count])
            left -= count
        return digest.hexdigest() == self.array.digest


def checks_of(manifest: Manifest, headers: dict[str, tuple[bytes, int]]) -> dict[str, FileCheck]:
    """Return how each file of arrays of ``manifest`` is checked, by name. Pure."""
    checks: dict[str, FileCheck] = {}
    for array in manifest.arrays.values():
        for name in filter(None, (array.file, array.pages_file)):
            is_sums = name == array.pages_file
            checks[name] = FileCheck(array=array, header=headers[name][0], is_sums=is_sums)
    return checks
