"""The dataset and the stream of batches of a recorded run, found again, and checked to be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.cache.device_plan import cache_bytes
from gloader.core.loader_state import LoaderState
from gloader.core.yaml_file import read_yaml_mapping
from gloader.dataset import Dataset
from gloader.errors import ConfigError, ReplayError, SeedError, StateError, StoreError
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.seed_order import named_facts, stream_fingerprint
from gloader.pipeline.table_files import feature_rows
from gloader.pipeline.typed_seeds import plan_training_seeds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.config import LoaderSettings
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.replay.recording import RunHeader

_CONFIG = "config.yaml"


def read_config(run: Path | None) -> Mapping[str, Any]:
    """Return the config.yaml of a run folder; empty where there is no folder, or none in it.

    Raises
    ------
    ReplayError
        It cannot be read.
    """
    if run is None or not (run / _CONFIG).exists():
        return {}
    return read_yaml_mapping(
        run / _CONFIG, what="the settings of a run", holds="what gloader train wrote", error=ReplayError
    )


def open_recorded_dataset(header: RunHeader, config: Mapping[str, Any]) -> Dataset:
    """Open the dataset of a recorded run.

    Parameters
    ----------
    header : of the recording
    config : the run's config.yaml, which says how a dataset at a URL is mirrored

    Raises
    ------
    ReplayError
        It is not there, or it is another one by now.
    """
    try:
        dataset = Dataset.open(header.dataset, **config.get("objects", {}))
    except (StoreError, ConfigError) as error:
        raise ReplayError(f"the dataset of the run cannot be opened: {error}") from error
    if dataset.fingerprint != header.fingerprint:
        dataset.close()
        raise ReplayError(
            f"{header.dataset} is not the dataset that the run was recorded on: it has the fingerprint "
            f"{dataset.fingerprint}, the recording says {header.fingerprint}; record the run again"
        )
    return dataset


def is_typed_run(dataset: Dataset, settings: LoaderSettings) -> bool:
    """Return whether batches have several types, as far as it makes a difference: of one relation they are the same."""
    return dataset.kind == "hetero" or not isinstance(settings.sampling.fanouts, tuple)


def plan_recorded_seeds(
    dataset: Dataset, settings: LoaderSettings, header: RunHeader, *, is_typed: bool
) -> SeedPlan:
    """Return the seeds of a loader of ``settings`` that learns what the recorded run learned.

    Parameters
    ----------
    dataset : whose nodes or links
    settings : those of the run, or with changes
    header : of the recording, whose state says what is predicted
    is_typed : whether batches have several types

    Raises
    ------
    ReplayError
        There are no such seeds.
    """
    stream, ranks = header.state["stream"], settings.ranks
    try:
        return plan_training_seeds(
            dataset,
            settings.sampling,
            is_typed=is_typed,
            links=_links_of(dataset, stream) if "links" in stream else None,
            rank=ranks.rank or 0,
            world_size=ranks.world_size or 1,
        )
    except (ConfigError, SeedError) as error:
        raise ReplayError(f"the batches of the run cannot be sampled again: {error}") from error


def require_same_stream(
    dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings, header: RunHeader
) -> None:
    """Raise ReplayError where ``seeds`` and ``settings`` do not make the batches that were recorded."""
    facts = None if seeds.links is None else seeds.links.facts()
    recorded = LoaderState.from_json(header.state)
    own = LoaderState(
        next=recorded.next,
        seed=settings.sampling.seed,
        global_batch_size=seeds.order.global_batch_size,
        fingerprint=stream_fingerprint(dataset, seeds.order, settings.sampling, facts),
        stream=named_facts(dataset, seeds.order, settings.sampling, facts),
    )
    try:
        own.require_same_stream(recorded)
    except StateError as error:
        raise ReplayError(
            f"the batches of the run cannot be sampled again: {error}. Seeds, or times, that a program gave its loader "
            "are not in a recording"
        ) from error


def with_recorded_device(settings: LoaderSettings, header: RunHeader, dataset: Dataset) -> LoaderSettings:
    """Return ``settings`` with room for as many rows on the device as it held; what is free of it now is another."""
    if settings.device.device_cache != "auto":
        return settings
    num_bytes = 0
    for rows, table in zip(feature_rows(dataset, settings), header.tables, strict=False):
        has_scale = rows.feature_dtype == "int8"
        num_bytes += cache_bytes(
            table.device_rows,
            num_nodes=table.num_rows,
            row_bytes=table.row_bytes,
            has_scale=has_scale,
            has_all_scales=has_scale and header.shape.is_sending,
        )
    return settings.changed(device_cache=num_bytes)


def require_all_rows(dataset: Dataset) -> None:
    """Raise ReplayError where rows come from other machines."""
    if dataset.ranges is not None:
        raise ReplayError(
            f"{dataset.location} has a range of the rows, and the others come from other machines: what they exchange "
            "cannot be planned here"
        )


def require_own_rows(header: RunHeader, settings: LoaderSettings) -> None:
    """Raise ReplayError where rows may have come from other machines."""
    ranks = settings.ranks
    others = (ranks.world_size or 1) > header.shape.num_ranks
    if others and ranks.sharing != "private" and ranks.exchange != "never":
        raise ReplayError(
            "the run was one of several machines, which may have exchanged rows: what they would exchange cannot be "
            "planned here"
        )


def _links_of(dataset: Dataset, stream: Mapping[str, Any]) -> LinkTask:
    negatives = stream["negatives"]
    return LinkTask.of(
        dataset,
        stream["links"],
        negatives=None if negatives == str(None) else negatives,
        exclude=stream["exclude"],
        duplicates=stream["exclude_duplicates"],
    )
