"""A run's ``--out`` folder: its settings, identity, metrics, result and checkpoints.

Every run has a random id, recorded in ``config.yaml`` and in its checkpoints. A checkpoint belongs to the folder's run
if the ids are equal. A run that resumes must have the same decisive settings, which are the settings that change its
result (`decisive_settings`, `differing`).

`gloader.training.train` calls `RunFolder.enter` first. Then `remove_residue` cleans the folder, and `begin` gives it to
the run once nothing can refuse the run. Metrics and checkpoints are written during the run, and `release` ends it. All
ranks, the processes that train together, write checkpoints only if the folder is shared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gloader.config import LINK_TASKS
from gloader.core.fanouts import plain_fanouts
from gloader.core.signals import uninterrupted
from gloader.errors import CheckpointError, StoreExistsError, StoreLockedError
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, make_folders, write_errors
from gloader.ssd_store.spill.claim import remove_dead_spills
from gloader.ssd_store.write.atomic_file import (
    append_durably,
    holder_of,
    lock_folder,
    make_output_folder,
    remove_dead_drafts,
    remove_empty,
    remove_tree,
    write_atomically,
)
from gloader.training.checkpoint.files import (
    CHECKPOINT_NAME,
    foreign_folders,
    is_sealed,
    is_sharded_checkpoint,
    newest_checkpoint,
    removed_folders,
    removed_name,
    shard_folders,
)
from gloader.training.checkpoint.save import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
    save_sharded_checkpoint,
)
from gloader.training.run_settings import CONFIG, recorded_settings, require_no_run, yaml_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gloader.config import EmbedConfig, TrainSettings
    from gloader.training.group import RankGroup


# Settings in the group "optim" that do not change a run's result.
_OPTIM_WITHOUT_EFFECT = frozenset({"checkpoint_every"})
# Settings that define the network and its inputs. With another value, the checkpoint's weights do not fit.
_MODEL_SETTINGS = frozenset(
    {"dataset", "model", "hidden", "dropout", "batch_norm", "heads", "residual"}
    | {"task", "table", "decoder", "decoder_layers", "embed", "dim", "norm"}
)
# Settings that earlier versions did not record, with the values that these versions used.
_UNRECORDED_DEFAULTS: dict[str, Any] = {
    "task": "node",
    "edge_features": "auto",
    "time_strategy": "none",
    "time_bound": "<",
    "class_weights": "none",
    "balance": "none",
    "metric": "acc",
    "residual": False,
    "seed_window": 1,
}


def new_run_id() -> str:
    """Return a new unique run id."""
    return secrets.token_hex(8)


def decisive_settings(settings: TrainSettings, *, world_size: int) -> dict[str, Any]:
    """Return every setting that changes a run's result, by name, as JSON values. Pure.

    Budgets, threads, folders and other loading settings may change while a run is interrupted, because they never
    change a batch.

    Parameters
    ----------
    settings : the run's settings, with its own seed
    world_size : number of ranks; it may change if the global batch keeps its size
    """
    model, sampling = asdict(settings.model), asdict(settings.loader.sampling)
    optim = {
        name: value for name, value in asdict(settings.optim).items() if name not in _OPTIM_WITHOUT_EFFECT
    }
    return {
        "model": model.pop("name"),
        **model,
        **optim,
        **asdict(settings.step),
        "global_batch_size": sampling.pop("batch_size") * world_size,
        **sampling,
        "time_bound": settings.loader.sampling.bound,
        "fanouts": plain_fanouts(settings.loader.sampling.fanouts),
        "task": settings.task,
        **({} if settings.table is None else {"table": settings.table}),
        **(_embed_settings(settings.embed) if settings.embed.dims else {}),
        **(_link_settings(settings) if settings.task in LINK_TASKS else _node_settings(settings)),
        **(asdict(settings.knowledge) if settings.task == "kg" else {}),
    }


def _node_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the metric of a task of nodes, by its name; empty for the default, which depends on the dataset."""
    return {} if settings.links.metric == "auto" else {"metric": settings.links.metric}


def _embed_settings(config: EmbedConfig) -> dict[str, Any]:
    """Return the settings of the embeddings that change a result, by name."""
    return {"embed": dict(config.dims), "embed_optimizer": config.optimizer, "embed_lr": config.learning_rate}


def _link_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings of the link prediction task, by name."""
    values = asdict(settings.links)
    # The form is JSON, as in the checkpoints of several ranks.
    names = values["eval_edges"]
    return values | {"eval_edges": None if names is None else list(names)}


def differing(saved: Mapping[str, Any], ours: Mapping[str, Any], *, epochs_done: int) -> list[str]:
    """Return the names of the settings that prevent a run from continuing the saved run. Pure.

    Parameters
    ----------
    saved, ours : `decisive_settings` of the saved run and of this run, with the dataset's fingerprint
    epochs_done : finished epochs of the saved run
    """
    saved, ours = {**_UNRECORDED_DEFAULTS, **saved}, {**_UNRECORDED_DEFAULTS, **ours}
    names = [name for name in dict.fromkeys((*saved, *ours)) if saved.get(name) != ours.get(name)]
    return [name for name in names if name != "epochs" or _epochs_matter(saved, ours, epochs_done)]


def is_of_the_model(names: list[str]) -> bool:
    """Return whether a setting in ``names`` changes the model or the dataset of the weights. Pure."""
    return not _MODEL_SETTINGS.isdisjoint(names)


def _epochs_matter(saved: Mapping[str, Any], ours: Mapping[str, Any], epochs_done: int) -> bool:
    """Return whether this run's number of epochs would have given other finished epochs. Pure."""
    # Schedules and gradient compression depend on the finished share of the epochs.
    # Here an epoch may depend on the total number of epochs.
    follows_share = saved.get("lr_schedule") != "constant" or saved.get("grad_compress") == "powersgd"
    # The last epoch is always evaluated. A longer run would not have evaluated it.
    was_last = epochs_done == saved.get("epochs") and epochs_done % max(saved.get("eval_every") or 1, 1) != 0
    return follows_share or was_last or int(ours.get("epochs") or 0) < epochs_done


_LOG = logging.getLogger(__name__)

_METRICS, _RESULT, _SCORES, _TRACE = "metrics.jsonl", "result.json", "scores.json", "trace.json"
_RUN = re.compile(r"run-\d+")  # folder of one of several runs, inside the common folder
# Folder of a run's embeddings, see `gloader.training.embeddings`; with the id of a run that replaced another one.
_EMBEDDINGS = re.compile(r"embeddings(-[0-9a-f]{16})?")


class RunFolder:
    """``config.yaml``, ``metrics.jsonl``, ``result.json`` and the checkpoint of a run. Creates the folder.

    Only files of `gloader train` are replaced or removed. Owns the lock of `enter` until `release`.

    Parameters
    ----------
    root : the run's folder
    is_shared : whether all ranks see the folder. Otherwise only the first rank writes checkpoints, each in one file
    on_checkpoint : called on every rank by `save_checkpoint` after a complete checkpoint
    os_io : system calls; tests give others

    Raises
    ------
    ConfigError
        PyYAML is not installed.
    StoreWriteError
        The folder cannot be made.
    """

    def __init__(
        self,
        root: Path,
        *,
        is_shared: bool = True,
        on_checkpoint: Callable[[Checkpoint], None] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        yaml_reader()
        self.root = root
        self._is_shared = is_shared
        self._on_checkpoint = on_checkpoint
        self._os_io = os_io
        self._lock = -1  # file descriptor of the lock, or -1
        self._new_folders = make_output_folder(root.parent, os_io=os_io)
        with write_errors(root, "creating the folder", os_io=os_io):
            self._new_folders += make_folders(root, os_io=os_io)

    def enter(self, *, resume: bool, overwrite: bool = False) -> str:
        """Lock the folder against other runs until `release`; return the id of the run that resumes or begins.

        Parameters
        ----------
        resume : continue the run in the folder, if there is one
        overwrite : replace the run in the folder, if there is one

        Raises
        ------
        StoreLockedError
            Another run is active in the folder.
        StoreExistsError
            The folder has foreign files that `gloader train` would replace, or it has a run and neither ``resume`` nor
            ``overwrite`` is set.
        CheckpointError
            A checkpoint has no digest; earlier versions wrote such checkpoints.
        """
        with uninterrupted():
            self._take_lock()
        try:
            self._require_own_files()
            if not (resume or overwrite):
                require_no_run(self.root)
            return (self._recorded_id() if resume else None) or new_run_id()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the folder, and remove the folders that a refused run made and left empty. Idempotent."""
        folders, self._new_folders = self._new_folders, []
        # Another rank may have removed the folder.
        if folders and self.root.is_dir():
            remove_empty([*folders, *self._folders()[1:]], os_io=self._os_io)
        if self._lock >= 0:
            fd, self._lock = self._lock, -1
            close_quietly(fd, os_io=self._os_io)

    def begin(self, config: Mapping[str, Any], *, is_fresh: bool, keeps: Path | None = None) -> None:
        """Write the run's settings, which make the folder its own. A fresh run first removes an older run's files.

        Parameters
        ----------
        config : the resolved settings, with the run's id
        is_fresh : whether the run starts anew
        keeps : the folder of the new run's embeddings, which is there already
        """
        if is_fresh:
            # Old checkpoints go before the settings change: a crash in between must not leave them to the new run.
            for folder in self._folders():
                RunFolder(folder, os_io=self._os_io).discard(keeps=keeps)
        self.write_config(config)

    def remove_residue(self) -> None:
        """Delete the spilled activations (rows between layers) and the unfinished files that a killed run left."""
        remove_dead_spills(self.root, os_io=self._os_io)
        for name in (CHECKPOINT_NAME, CONFIG, _METRICS, _RESULT, _SCORES, _TRACE):
            remove_dead_drafts(self.root / name, os_io=self._os_io)
        with write_errors(self.root, "removing what a killed run left", os_io=self._os_io):
            for folder in removed_folders(self.root):
                remove_tree(folder, os_io=self._os_io)
            # A folder of shards without its record is unfinished: a killed run was writing it.
            for folder in shard_folders(self.root):
                if not is_sharded_checkpoint(folder):
                    self._remove_shards(folder)
            # So are embeddings that no checkpoint names. A damaged checkpoint is reported where it is read.
            if self._embedding_folders():
                with contextlib.suppress(CheckpointError):
                    checkpoint = self.load_checkpoint()
                    saved = None if checkpoint is None else checkpoint.embeddings
                    self._remove_embeddings(but=None if saved is None else saved.folder)

    def of_run(self, run: int, *, num_runs: int) -> RunFolder:
        """Return one run's folder among several, or this folder for a single run."""
        if num_runs == 1:
            return self
        return RunFolder(
            self.root / f"run-{run}",
            is_shared=self._is_shared,
            on_checkpoint=self._on_checkpoint,
            os_io=self._os_io,
        )

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved settings."""
        text = yaml_reader().safe_dump(_plain(config), sort_keys=False)
        write_atomically(self.root / CONFIG, text.encode(), os_io=self._os_io)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the finished run's figures."""
        text = json.dumps(_plain(result), indent=1) + "\n"
        write_atomically(self.root / _RESULT, text.encode(), os_io=self._os_io)

    def write_scores(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of the test's scores, such as the points of a ROC curve."""
        text = json.dumps(_plain(summary)) + "\n"
        write_atomically(self.root / _SCORES, text.encode(), os_io=self._os_io)

    def start_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Begin ``metrics.jsonl`` with a resumed run's finished epochs."""
        lines = "".join(json.dumps(_plain(record)) + "\n" for record in records)
        write_atomically(self.root / _METRICS, lines.encode(), os_io=self._os_io)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append the line of one epoch."""
        # The write is not atomic: on resume `start_metrics` rewrites a torn last line.
        append_durably(self.root / _METRICS, (json.dumps(_plain(record)) + "\n").encode(), os_io=self._os_io)

    def save_checkpoint(self, checkpoint: Checkpoint, *, group: RankGroup) -> None:
        """Replace the checkpoint. Several ranks write it together, see `save_sharded_checkpoint`. Collective."""
        if group.is_alone or not self._is_shared:
            new = self.root / CHECKPOINT_NAME
            group.run_on_first(lambda: save_checkpoint(new, checkpoint, os_io=self._os_io))
        else:
            new = save_sharded_checkpoint(self.root, checkpoint, group, os_io=self._os_io)
        # The new checkpoint is complete, and its name is synced, before the old one is removed. So one always exists.
        if group.is_first:
            with write_errors(self.root, "replacing the older checkpoint", os_io=self._os_io):
                self._remove_checkpoints(but=new)
        if self._on_checkpoint is not None:
            self._on_checkpoint(checkpoint)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None if the run never wrote one."""
        path = newest_checkpoint(self.root)
        return None if path is None else load_checkpoint(path)

    def discard(self, *, keeps: Path | None = None) -> None:
        """Delete an older run's results, checkpoints and embeddings but ``keeps``; durable on return."""
        with write_errors(self.root, "removing what an older run left", os_io=self._os_io):
            self._remove_checkpoints(but=None)
            self._remove_embeddings(but=keeps)
            for name in (_RESULT, _SCORES, _METRICS):
                with contextlib.suppress(FileNotFoundError):
                    self._os_io.unlink(self.root / name)
            self._os_io.fsync_dir(self.root)

    def _take_lock(self) -> None:
        """Lock the folder. Only logs a warning if the file system has no locks.

        Raises StoreLockedError if another process has the lock.
        """
        try:
            self._lock = lock_folder(self.root, os_io=self._os_io)
        except StoreLockedError:
            pid = holder_of(self.root, os_io=self._os_io)
            raise StoreLockedError(
                f"{self.root}: {'another process' if pid is None else f'process {pid}'} is training into this folder; "
                "wait for it, or choose another --out"
            ) from None
        except OSError as error:
            # Some network file systems do not lock folders, but runs on several machines need such a file system.
            _LOG.warning("%s cannot be locked (%s): keep other runs out of it yourself", self.root, error)

    def _folders(self) -> list[Path]:
        """Return this folder and the folders of single runs inside it."""
        runs = (path for path in self.root.iterdir() if _RUN.fullmatch(path.name))
        return [self.root, *(path for path in runs if path.is_dir() and not path.is_symlink())]

    def _require_own_files(self) -> None:
        """Raise StoreExistsError or CheckpointError for files that `gloader train` did not write."""
        folders, config = self._folders(), self.root / CONFIG
        if config.exists():
            foreign = [] if recorded_settings(self.root) is not None else [config]
        else:
            # The settings are a run's first file.
            paths = (folder / name for folder in folders for name in (_METRICS, _RESULT, _SCORES, _TRACE))
            foreign = [path for path in paths if path.exists()]
        if foreign:
            raise StoreExistsError(
                errno.EEXIST,
                "was not written by gloader train, which would replace it; choose another --out",
                str(foreign[0]),
            )
        files = (folder / CHECKPOINT_NAME for folder in folders)
        unchecked = [file for file in files if file.is_file() and not is_sealed(file)]
        unchecked += [path for folder in folders for path in foreign_folders(folder)]
        if unchecked:
            raise CheckpointError(
                f"{unchecked[0]} has no digest: it is damaged, or not written by this version of gloader train; move "
                "it away, or choose another --out"
            )

    def _recorded_id(self) -> str | None:
        """Return the run id in ``config.yaml``, or None."""
        run = (recorded_settings(self.root) or {}).get("run")
        return str(run["id"]) if isinstance(run, dict) and "id" in run else None

    def _remove_checkpoints(self, *, but: Path | None) -> None:
        """Delete all checkpoints except ``but``."""
        file = self.root / CHECKPOINT_NAME
        if file != but:
            with contextlib.suppress(FileNotFoundError):
                self._os_io.unlink(file)
        for folder in shard_folders(self.root):
            if folder != but:
                self._remove_shards(folder)

    def _embedding_folders(self) -> list[Path]:
        """Return the folders with tables of embeddings."""
        return [path for path in self.root.iterdir() if _EMBEDDINGS.fullmatch(path.name) and path.is_dir()]

    def _remove_embeddings(self, *, but: Path | None) -> None:
        """Delete all embeddings except those in the folder ``but``."""
        for folder in self._embedding_folders():
            if folder != but:
                remove_tree(folder, os_io=self._os_io)

    def _remove_shards(self, folder: Path) -> None:
        """Delete a checkpoint folder. It gets another name first, so that a half-deleted one is no checkpoint."""
        gone = folder.with_name(removed_name(folder))
        remove_tree(gone, os_io=self._os_io)
        self._os_io.replace(folder, gone)
        self._os_io.fsync_dir(self.root)
        remove_tree(gone, os_io=self._os_io)


def _plain(value: Any) -> Any:
    """Return ``value`` with lists for tuples, because JSON and safe YAML have no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
