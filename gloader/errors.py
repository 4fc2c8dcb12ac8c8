"""Every error that gloader raises, on one page.

Each message names the problem, the value, the allowed values and the remedy. It also names the path, the byte offset,
the row or the batch, if there is one. The sections follow a user's way: wrong settings and calls, wrong input, files on
disk, and failures while a loader runs. A store is a folder with features or topology on disk. Its commit record is the
file that is written last, so that an incomplete store is recognised.
"""


class GloaderError(Exception):
    """Root of every error that gloader raises."""


# --- wrong requests ------------------------------------------------------------------------------


class ConfigError(GloaderError, ValueError):
    """A setting has an unknown name, a wrong type or a value that is not allowed."""


class BudgetError(GloaderError):
    """A memory, spill or disk budget is too small; the message names needed and allowed bytes.

    Spill is disk space for temporary files. ``short_bytes`` is the smallest number of bytes by which the budget is
    known to be too small; 0 if more memory may not help. With ``advice``, this amount was tried and is enough.
    ``cause`` is the message without the advice.
    """

    def __init__(self, message: str = "", *, short_bytes: int = 0, advice: str = "") -> None:
        super().__init__(f"{message}. {advice}" if advice else message)
        self.cause = message
        self.short_bytes = short_bytes


class MissingDependencyError(GloaderError, ImportError):
    """An optional package is needed and not installed; the message holds the install command."""

    @classmethod
    def of_extra(cls, need: str, extra: str) -> "MissingDependencyError":
        """Return an error with the sentence ``need`` and the command that installs the optional group ``extra``."""
        return cls(f"{need}; install it in your clone of gloader with: {install_command(extra)}")


class DglFeatureError(GloaderError, AttributeError):
    """A feature of DGL that `gloader.compat.dgl` lacks; the message names its replacement."""


def install_command(extra: str) -> str:
    """Return the command that installs the optional dependencies ``extra``, run in a clone. Pure."""
    # gloader is not on a package index, and without the constraints another torch may be installed.
    return f"pip install -e '.[{extra}]' -c constraints.txt"


# --- wrong input ---------------------------------------------------------------------------------


class GraphError(GloaderError, ValueError):
    """A topology is malformed: an id out of range, an ``indptr`` that is not monotone, a wrong dtype."""


class SeedError(GloaderError, ValueError):
    """Seed ids are out of range or repeat within a batch; the message lists up to five of them."""


class ShapeError(GloaderError, ValueError):
    """An array has the wrong number of rows, the wrong width or the wrong dtype."""


class FeatureValueError(GloaderError, ValueError):
    """A feature value is not finite, or too large for its stored dtype; carries the row."""


class UnknownKeyError(GloaderError, LookupError):
    """No node of a dataset has a requested key; the message has the first such key and their number."""


class ScoreError(GloaderError, ValueError):
    """A metric is not defined for the labels of a split, such as the AUROC of labels that are all 1."""


class SourceError(GloaderError):
    """A source of `gloader prepare` is missing, incomplete or malformed."""


class UnsafeArchiveError(GloaderError):
    """An archive would write outside its folder, or exceeds the limits on size and members."""


class DownloadError(GloaderError):
    """A download failed or has unexpected content; nothing was installed."""


# --- stores and datasets on disk -----------------------------------------------------------------


class StoreError(GloaderError):
    """Root of all errors of a store or dataset directory."""


class StoreOpenError(StoreError, OSError):
    """A path cannot be opened as a store: missing, of the wrong kind, or without permission."""


class NotAStoreError(StoreOpenError):
    """The directory exists, but is not a gloader store or dataset."""


class IncompleteStoreError(StoreOpenError):
    """The directory holds data without a commit record: its creation never finished."""


class StoreExistsError(StoreError, FileExistsError):
    """The target of a creation already exists; pass ``overwrite=True`` or choose another path."""


class StoreLockedError(StoreError):
    """Another process is creating a store, or training, at this path."""


class StoreWriteError(StoreError, OSError):
    """Writing a store or another file failed; nothing was committed."""


class StoreReadError(StoreError, OSError):
    """Reading a store failed; carries the path, the offset and the errno."""


class TruncatedStoreError(StoreError):
    """A file is shorter than its size in the commit record."""


class SpillError(StoreError, OSError):
    """A spill folder cannot be created, written, read or removed; carries the errno and the path."""


class ChecksumError(StoreError):
    """Bytes on disk do not match their checksum; carries the page, its offset and its rows."""


class RowNotHereError(StoreError):
    """A requested row is in another machine's part of a dataset; the message names the part and the remedy."""


class FormatError(StoreError, ValueError):
    """A header or commit record is malformed."""


class VersionError(StoreError):
    """A store was written by an unknown version, or with an unknown required feature."""


# --- while running -------------------------------------------------------------------------------


class PlanError(GloaderError):
    """A cache plan contradicts itself; raised instead of delivering a wrong row."""


class StateError(GloaderError, ValueError):
    """A saved state belongs to another dataset, configuration or version, or is corrupted."""


class CheckpointError(GloaderError):
    """A model checkpoint is missing, damaged, malformed or belongs to another model, dataset or run."""


class LoaderClosedError(GloaderError):
    """The loader was used after ``close()``."""


class LoaderBusyError(GloaderError):
    """A second iterator was started while one is alive on the same loader."""


class ForkError(GloaderError):
    """A loader was used in a forked child; start workers with the spawn method instead."""


class NotPicklableError(GloaderError, TypeError):
    """A loader cannot be copied or sent to another process; a TypeError, as for all objects that cannot be pickled."""


class ThreadStartError(GloaderError, RuntimeError):
    """The system lets this process start no further thread."""


class ChannelClosedError(GloaderError):
    """A channel, a queue between two threads, was closed during a wait on it; never leaves the pipeline."""


class RankError(GloaderError):
    """Another rank of the process group died, failed or disagrees; the message names it."""


class MachineLeftError(RankError):
    """Another machine's loop ended first, so that machine sends no more rows; the message names it."""


class RankSettingsError(RankError, ConfigError):
    """Ranks have different settings, datasets or seeds; the message names the first difference."""


class ReplayError(GloaderError):
    """A recorded run cannot be replayed, or its replay explains too little of the run for predictions."""


class DivergedError(GloaderError, ArithmeticError):
    """A loss is not finite, or outputs for nodes or pairs are NaN; the message names the batch or their count."""


class StallError(GloaderError):
    """A stage of the pipeline, or the pipeline as a whole, made no progress for ``stall_timeout_s``."""


# --- deprecation ---------------------------------------------------------------------------------


class GloaderDeprecationWarning(DeprecationWarning):
    """A public name that still works will be removed two minor versions later; the message names its replacement."""
