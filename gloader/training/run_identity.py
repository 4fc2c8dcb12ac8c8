"""What a run is: its id, and every setting that changes what it comes to."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gloader.core.fanouts import plain_fanouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.config import TrainSettings

_FREE_OF_OPTIM = frozenset({"checkpoint_every"})  # when a run is saved does not change what it comes to
_OF_THE_MODEL = frozenset(
    {"dataset", "model", "hidden", "dropout", "batch_norm", "heads", "task", "decoder", "decoder_layers"}
)
# What runs of earlier versions, which had no such settings, did.
_FORMER: dict[str, Any] = {
    "task": "node",
    "edge_features": "auto",
    "time_strategy": "none",
    "time_bound": "<",
}


def new_run_id() -> str:
    """Return an id that no other run has."""
    return secrets.token_hex(8)


def decisive_settings(settings: TrainSettings, *, world_size: int) -> dict[str, Any]:
    """Return every setting that changes what a run comes to, by name, as JSON values. Pure.

    Budgets, threads, folders and everything else that says how batches are loaded may change while a run is
    interrupted: that never changes a batch.

    Parameters
    ----------
    settings : of the run, with its own seed
    world_size : number of ranks; they may become more or fewer where the global batch keeps its size
    """
    model, sampling = asdict(settings.model), asdict(settings.loader.sampling)
    optim = {name: value for name, value in asdict(settings.optim).items() if name not in _FREE_OF_OPTIM}
    return {
        "model": model.pop("name"),
        **model,
        **optim,
        **asdict(settings.step),
        "global_batch_size": sampling.pop("batch_size") * world_size,
        **sampling,
        "fanouts": plain_fanouts(settings.loader.sampling.fanouts),
        **({"task": "link", **_of_links(settings)} if settings.task == "link" else {}),
    }


def _of_links(settings: TrainSettings) -> dict[str, Any]:
    values = asdict(settings.links)
    # As JSON has it: a checkpoint of several ranks is read so.
    names = values["eval_edges"]
    return values | {"eval_edges": None if names is None else list(names)}


def differing(saved: Mapping[str, Any], ours: Mapping[str, Any], *, epochs_done: int) -> list[str]:
    """Return the names of the settings that keep a run from going on as the saved one. Pure.

    Parameters
    ----------
    saved, ours : `decisive_settings` of the saved run and of this one, and what else both name
    epochs_done : epochs that the saved run has behind it
    """
    saved, ours = {**_FORMER, **saved}, {**_FORMER, **ours}
    names = [name for name in dict.fromkeys((*saved, *ours)) if saved.get(name) != ours.get(name)]
    return [name for name in names if name != "epochs" or _epochs_matter(saved, ours, epochs_done)]


def is_of_the_model(names: list[str]) -> bool:
    """Return whether one of the settings ``names`` makes the weights those of another model or dataset. Pure."""
    return not _OF_THE_MODEL.isdisjoint(names)


def _epochs_matter(saved: Mapping[str, Any], ours: Mapping[str, Any], epochs_done: int) -> bool:
    """Return whether another number of epochs changes those that are done. Pure."""
    # Schedules, and what is sent of gradients, follow the share of the epochs that is done.
    follows_share = saved.get("lr_schedule") != "constant" or saved.get("grad_compress") == "powersgd"
    # The last epoch is evaluated, due or not; a longer run would not have looked at it there.
    was_last = epochs_done == saved.get("epochs") and epochs_done % max(saved.get("eval_every") or 1, 1) != 0
    return follows_share or was_last or int(ours.get("epochs") or 0) < epochs_done
