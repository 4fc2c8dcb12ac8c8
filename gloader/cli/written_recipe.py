"""A run written down as a recipe, for `gloader train --config`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gloader.cli.recipe import flatten
from gloader.config import TrainSettings

if TYPE_CHECKING:
    from gloader.dataset import Dataset


def recipe_of(settings: TrainSettings, dataset: "Dataset", *, spec: str, remarks: Sequence[str]) -> str:
    """Return the recipe of a run, without what is as it is anyway.

    Parameters
    ----------
    settings : of the run
    dataset : that is trained on
    spec : its path, its URL, or the source that it is prepared from
    remarks : lines in front of it, for people
    """
    import yaml

    usual = _flags_of(TrainSettings(), dataset)
    values = {name: value for name, value in _flags_of(settings, dataset).items() if value != usual.get(name)}
    head = "".join(f"# {line}\n" for remark in remarks for line in remark.splitlines())
    return head + yaml.safe_dump({"dataset": spec, **values}, sort_keys=False, allow_unicode=True)


def _flags_of(settings: TrainSettings, dataset: "Dataset") -> dict[str, Any]:
    """Return every flag of a run, hyphenated, with its value."""
    # It imports torch, which a command does as late as it can.
    from gloader.training.train import run_config

    return {
        name.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for name, value in flatten(run_config(settings, dataset))
        if name != "dataset"
    }
