"""Files of `torch.save`, looked at before they are read."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from gloader.convert.readers.npy_file import raising_source_errors
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path


def require_plain_archive(path: Path) -> None:
    """Refuse a file of `torch.save` whose records unpack to more bytes than it has: torch never packs them.

    Raises
    ------
    SourceError
        It does, or its directory is damaged. A file that is no zip archive, as of torch before 1.6, passes.
    """
    with raising_source_errors(str(path)):
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            held = sum(info.file_size for info in archive.infolist())
        if held > path.stat().st_size:
            raise SourceError(
                f"{path} has {path.stat().st_size} bytes and declares records of {held}; torch.save packs nothing"
            )
