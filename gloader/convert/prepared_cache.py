"""A cache of prepared datasets in the user's gloader folder. A source is prepared at its first use.

A source is a graph in another format, such as ``builtin:digits``. `ensure_dataset` is called by commands that train on
a source. It returns the folder of the prepared dataset, and prepares the source if there is none. The folder has a
digest in its name, which covers everything that the dataset depends on. So a changed source gets a new folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.core.malformed import shown
from gloader.core.paths import file_slug, home_dir
from gloader.core.version import __version__
from gloader.errors import ConfigError, StoreExistsError, StoreLockedError, StoreWriteError

if TYPE_CHECKING:
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.progress import PrepareProgress

_LOG = logging.getLogger(__name__)

DATASET_MANIFEST = "dataset.json"  # the commit record, which only a complete dataset has
_POLL_S = 0.5  # seconds between two checks whether another process has finished
# Options that do not change a dataset's contents, and so are not part of its digest.
_NOT_IN_DIGEST = frozenset({"memory_budget_bytes", "overwrite"})


def prepared_path(spec: str, source: SourceOptions, prepare: PrepareOptions) -> Path:
    """Return the folder for a prepared source. Its name is readable, and ends with a digest.

    The digest covers gloader's version, the source, every option that changes the result, and the source files' sizes
    and modification times. So an edited file is prepared again.

    Parameters
    ----------
    spec : the source, such as ``builtin:digits``
    source : options for the source
    prepare : options for the conversion
    """
    from gloader.convert.registry import source_files

    options = {**asdict(source), **asdict(prepare)}
    kept = {name: str(value) for name, value in options.items() if name not in _NOT_IN_DIGEST}
    files = [*source_files(spec, source), *_edge_table_files(prepare)]
    stamps = [_stamp(file) for file in files if file.is_file()]
    identity = json.dumps([__version__, with_absolute_path(spec), kept, stamps])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    # The first part of the name is for people. Only the digest distinguishes datasets.
    return home_dir() / "datasets" / f"{file_slug(spec)}-{digest}"


def _edge_table_files(prepare: PrepareOptions) -> list[Path]:
    """Return the files of the link tables (edges to predict) in the options."""
    if not prepare.edge_tables:
        return []
    # The import is late, because the module needs pyarrow, which other sources do not need.
    from gloader.convert.links.link_rows import edge_table_file

    return [*map(edge_table_file, prepare.edge_tables)]


def _argument_path(spec: str) -> Path | None:
    """Return the existing file or folder that a source names, as an absolute path, or None."""
    argument = spec.partition(":")[2]
    # The argument may be no path at all. For a name of a thousand characters, for example, the system raises an error.
    with suppress(OSError, RuntimeError, ValueError):
        path = Path(argument).expanduser()
        return path.resolve() if argument and path.exists() else None
    return None


def with_absolute_path(spec: str) -> str:
    """Return the source ``spec`` with an absolute path, if it names an existing file or folder."""
    path = _argument_path(spec)
    return spec if path is None else f"{spec.partition(':')[0]}:{path}"


def _stamp(file: Path) -> tuple[str, int, int]:
    """Return a file's path, its size in bytes, and its modification time in nanoseconds."""
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns


def _make_home(folder: Path) -> None:
    """Make the folder for prepared sources. Raises StoreWriteError, which names the variable for another folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError as error:
        reason, code = error.strerror, error.errno
    else:
        if is_writable:
            return
        reason, code = "it is not writable", errno.EACCES
    text = f"prepared sources cannot be stored here ({reason}): set GLOADER_HOME to another folder"
    raise StoreWriteError(code, text, str(home_dir()))


def ensure_dataset(
    spec: str, source: SourceOptions, prepare: PrepareOptions, *, progress: PrepareProgress | None = None
) -> Path:
    """Return the dataset directory for ``spec``. A source is prepared at its first use.

    Parameters
    ----------
    spec : the path to a prepared dataset, or a source such as ``builtin:digits``
    source : options for the source
    prepare : options for the conversion
    progress : receives the steps of the conversion; None means no receiver

    Raises
    ------
    ConfigError
        ``spec`` is neither a folder nor a source.
    StoreWriteError
        The folder of prepared sources cannot be written.
    GloaderError
        The source cannot be opened or converted.
    """
    from gloader.convert.prepare import prepare as convert
    from gloader.convert.progress import NO_PROGRESS
    from gloader.convert.registry import SOURCE_FORMS, full_spec, is_source, open_source

    if not is_source(spec):
        with suppress(OSError, ValueError):
            if Path(spec).exists():
                return Path(spec)
        raise ConfigError(
            f"{shown(spec)} is neither a folder nor a source; give a folder made by `gloader prepare`, or one of: "
            f"{', '.join(SOURCE_FORMS)}"
        )
    spec = full_spec(spec)
    target = prepared_path(spec, source, prepare)
    if (target / DATASET_MANIFEST).is_file():
        return target
    opened = open_source(spec, source)
    # Opening may have downloaded the source. This changes its files and so the digest, so the path is computed again.
    target = prepared_path(spec, source, prepare)
    _make_home(target.parent)
    is_waiting = False
    # Another process may be preparing this dataset, or have finished it. Equal digests mean equal datasets.
    while not (target / DATASET_MANIFEST).is_file():
        try:
            # StoreExistsError means that another process has just finished.
            with suppress(StoreExistsError):
                convert(opened, target, prepare, progress=progress or NO_PROGRESS)
        except StoreLockedError:
            # Another process is at work. If it fails, the next attempt of this loop prepares the dataset.
            if not is_waiting:
                _LOG.info("another process is preparing %s; waiting for it", spec)
            is_waiting = True
            time.sleep(_POLL_S)
    return target
