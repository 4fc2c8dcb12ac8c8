"""Inference over a run's graph and features, including feature rows on other machines.

An inference computes the model's outputs for all nodes, layer by layer, over all neighbours; an evaluation uses it.
`gloader.training.train` builds the inference with `inference_of` and gives it to the trainer. Before that,
`require_inference` checks that an evaluation fits the memory budget.

A dataset may be prepared in parts: each machine stores some of the feature rows and all edges. The first rank computes
an inference alone. Meanwhile the first rank of each other machine serves: it reads the requested rows and sends them
(`MachineRows`). Each feature table belongs to one node type; edge features are one more table.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from gloader.core.ids import RowRanges, host_bounds, hosts_by_part, require_all_rows
from gloader.core.machine import distinct_names, shown_machine
from gloader.dataset.tables import ONLY_EDGES
from gloader.distributed.exchange.exchange import Exchange
from gloader.distributed.exchange.host_group import Launch
from gloader.distributed.exchange.owner import OwnedRows
from gloader.distributed.exchange.serve_rows import PIECE_BYTES, AllRows, RowReader, serve_rows
from gloader.errors import LoaderClosedError
from gloader.loader import Loader
from gloader.samplers.graph import HeteroGraph
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.core.signals import Cancellation
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.loader.node_embedding import FrozenEmbedding
    from gloader.ssd_store import FeatureStore
    from gloader.training.group import RankGroup
    from gloader.training.run_budget import RunBudget
    from gloader.training.task import Task
    from gloader.types import FeatureSource


_EXCHANGE_BYTES: Final = 32 * 2**20  # memory for sending and receiving rows
# The first rank receives rows in pieces of `PIECE_BYTES`: memory for one piece, and as much to distribute its rows.
_PIECE_MEMORY: Final = 2 * PIECE_BYTES


class MachineRows:
    """The feature rows of all machines. The first rank reads; the first rank of each other machine serves.

    Parameters
    ----------
    launch : the machines, and the means to connect them
    stores : this machine's rows of each table, by table name; all machines have equal tables in equal order
    """

    memory_bytes: Final = _EXCHANGE_BYTES + _PIECE_MEMORY  # memory inside a `reading` block

    def __init__(self, launch: Launch, stores: Mapping[str, FeatureStore]) -> None:
        self._launch = launch
        self._stores = dict(stores)
        self._reader: RowReader | None = None

    def source(self, table: str) -> FeatureSource:
        """Return all rows of ``table``, readable inside a `reading` block; outside, LoaderClosedError."""
        return AllRows(list(self._stores).index(table), self._stores[table], self._require_reader)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the first rank read all machines' rows in the block, while the others `serve`.

        Raises
        ------
        RankError
            A machine is lost, does not answer or failed. The error names the machine.
        """
        with RowReader(self._connect(), tuple(self._stores.values())) as reader:
            self._reader = reader
            try:
                yield
            finally:
                self._reader = None

    def serve(self, cancellation: Cancellation) -> None:
        """Serve the first rank until its `reading` block ends; raises like `serve_rows`."""
        serve_rows(self._connect(), cancellation=cancellation)

    def _connect(self) -> Exchange:
        """Return a new exchange of rows between the machines. `reading` and `serve` each open one, as a pair."""
        tables = [
            OwnedRows(store=store, bounds=host_bounds(self._launch.parts, name))
            for name, store in self._stores.items()
        ]
        return Exchange(
            self._launch.connect(), tables, memory_bytes=_EXCHANGE_BYTES, verify=self._launch.verify
        )

    def _require_reader(self) -> RowReader:
        """Return the open reader; LoaderClosedError outside a `reading` block."""
        if self._reader is None:
            raise LoaderClosedError(
                "the rows of other machines are read while these serve; open `reading` first"
            )
        return self._reader


def launch_machine_rows(
    dataset: Dataset, group: RankGroup, *, timeout_s: float, verify: bool
) -> Launch | None:
    """Return the connection of the machines for `MachineRows`, if each machine stores a part of the rows. Collective.

    Returns None if the dataset is not in parts, or if this rank is not the first one of its machine.

    Parameters
    ----------
    dataset : this machine's dataset
    group : the ranks
    timeout_s : longest wait for another machine
    verify : whether rows are checked against their checksums

    Raises
    ------
    ConfigError
        Some rows are on no machine.
    """
    ranges = dataset.ranges
    own_part = None if ranges is None else [ranges.part, ranges.of]  # part number and number of parts
    # One dictionary per rank. All ranks use the first rank's random key.
    cards = group.gather({"part": own_part, "key": secrets.token_hex(8), "machine": shown_machine()})
    hosts = group.machine_hosts  # the first rank of each machine
    names = distinct_names([cards[rank]["machine"] for rank in hosts], hosts)
    tables = {} if ranges is None else ranges.tables
    parts = [
        None if part is None else RowRanges(part=part[0], of=part[1], tables=tables)
        for part in (cards[rank]["part"] for rank in hosts)
    ]
    require_all_rows(parts, [group.machines[rank] for rank in hosts])
    known = [part for part in parts if part is not None]
    if not known or group.rank not in hosts:
        return None
    # The exchange takes the machines in the order of their row ranges.
    order = hosts_by_part(known)
    return Launch(
        hosts=tuple(hosts[number] for number in order),
        names=tuple(names[number] for number in order),
        rank=group.rank,
        key=f"rows-{cards[0]['key']}",
        mode="always",
        parts=tuple(known[number] for number in order),
        timeout_s=timeout_s,
        verify=verify,
    )


def require_inference(task: Task, dataset: Dataset, budget: RunBudget, loader: Any) -> None:
    """Raise BudgetError if an evaluation does not fit ``budget.phase_bytes``; reads no features.

    Parameters
    ----------
    task, dataset : the run's task and dataset
    budget : the division of the run's memory
    loader : see `inference_of`
    """
    # Tensors on torch's meta device have a size but no memory: the check needs only the sizes.
    with torch.device("meta"):
        model = task.spec.build()
    # Other machines' rows arrive during the computation.
    arriving = 0 if dataset.ranges is None else MachineRows.memory_bytes
    memory = max(budget.phase_bytes - arriving, 0)
    task.require_memory(model, inference_of(task, dataset, loader, memory_bytes=memory))


def inference_of(
    task: Task,
    dataset: Dataset,
    loader: Any,
    *,
    memory_bytes: int,
    rows: MachineRows | None = None,
    scratch: Path | None = None,
    embeddings: Mapping[str, FrozenEmbedding] | None = None,
) -> HeteroInference:
    """Return the inference over a loader's graph and features.

    Parameters
    ----------
    task : the run's task
    dataset : the loader's dataset
    loader : a loader with batches for the model, or its plan; has ``graph`` and ``features``
    memory_bytes : budget of the inference, buffers of ``rows`` included
    rows : readers of other machines' rows. None means that this machine stores all rows
    scratch : folder for activations that do not fit; None has the default of `HeteroInference`
    embeddings : the trained rows by type; None for a check of the memory alone
    """
    spec = task.spec.encoder  # the network without a decoder of node pairs
    features = features_of(task, dataset, loader)
    if rows is not None:
        features = {name: rows.source(name) for name in features}
        memory_bytes = max(memory_bytes - rows.memory_bytes, 0)
    return HeteroInference(
        graph=HeteroGraph.of(loader.graph),
        # Without the table of edge features, whose name is not a node type.
        features={name: source for name, source in features.items() if name in spec.schema.num_nodes},
        target=spec.schema.targets[0],
        memory_budget_bytes=memory_bytes,
        scratch=scratch,
        edge_features={EDGE: features[ONLY_EDGES]} if spec.uses_edge_features else {},
        tiers={} if spec.has_types else _device_tiers(loader),
        embeddings=embeddings or {},
    )


def _device_tiers(loader: Any) -> dict[str, DeviceTier]:
    """Return the loader's part of the device memory, with its cached feature rows, by type. For graphs of one type.

    A `LinkLoader` has ``device_tiers`` for every table; only the node table's tier is returned.
    """
    tiers = {NODE: loader.device_tier} if isinstance(loader, Loader) else loader.device_tiers
    return {name: tier for name, tier in tiers.items() if name == NODE}


def features_of(task: Task, dataset: Dataset, loader: Any) -> dict[str, FeatureSource]:
    """Return the loader's features by table name: a node type, or `ONLY_EDGES` for edge features."""
    if isinstance(loader.features, Mapping):
        return dict(loader.features)
    # A graph of one type: the loader has a single source of features.
    (name,) = dataset.node_types
    edge_features = loader.edge_features if task.spec.encoder.uses_edge_features else None
    return {name: loader.features} | ({} if edge_features is None else {ONLY_EDGES: edge_features})
