"""A checkpoint's network, opened with its graph and features for predictions over a whole dataset.

`gloader.training.predict` calls `open_model`. It first checks that the network fits the dataset. Then it divides the
memory budget: edges that fit stay in memory, and the rest is for the inference, which computes rows layer by layer over
all neighbours. Of several machines, each may hold a part of the feature rows; then `MachineRows` reads all of them.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gloader.core.ids import require_all_rows
from gloader.dataset.schema import relation_text
from gloader.dataset.topology import (
    held_relations,
    open_hetero_topology,
    require_offsets,
)
from gloader.errors import BudgetError, CheckpointError, ConfigError
from gloader.models import encoder_of
from gloader.plan.available import default_budget_bytes
from gloader.plan.demand import topology_share
from gloader.plan.too_small import naming_enough
from gloader.training.dataset_checks import KIND_OF_TASK, column_groups, num_outputs
from gloader.training.embeddings import open_saved
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.model_spec import (
    KnowledgeSpec,
    LinkSpec,
    ModelSpec,
    aged_types,
    codes_of,
    edge_feature_rows,
    schema_of,
)
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from gloader.dataset import Dataset
    from gloader.dataset.tables import FeatureRows
    from gloader.models import CodeColumn
    from gloader.models.hop_columns import ColumnGroup
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.run_inference import MachineRows
    from gloader.types import FeatureSource, IdArray

# Copies of the weights in memory: one in the checkpoint, one in the network. The weights may have large learned rows,
# the trained features of nodes without features.
_WEIGHT_COPIES: Final = 2
# Bytes of each table's buffer for reading ahead, if there are several tables. Rows are read in order, so a few large
# reads are enough.
_RING_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A network, with an inference over its graph and features."""

    model: Any  # the network with the best weights, on its device
    inference: HeteroInference

    @property
    def encoder(self) -> Any:
        """The network without the pair decoder."""
        return encoder_of(self.model)

    def require_memory(
        self, *, node_type: str, layer: int | None = None, num_outputs: int | None = None
    ) -> None:
        """Raise BudgetError if the computation does not fit the budget; reads nothing.

        Parameters
        ----------
        node_type : type of the requested rows
        layer : a layer whose rows of all nodes are requested. If None, the network's output is requested
        num_outputs : number of requested output rows. None stands for `HeteroInference.embedded`
        """
        if layer is None:
            self.inference.require_memory(self.encoder, num_outputs=num_outputs)
        else:
            outputs = {node_type: self.inference.graph.num_nodes[node_type]}
            self.inference.require_layers(self.encoder, layer, outputs)

    def activations(self, node_type: str, layer: int, nodes: IdArray, **options: Any) -> Any:
        """Return an iterator over the rows of ``nodes`` after a layer."""
        return self.inference.activations(self.encoder, layer, node_type, nodes, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The memory and the device of an inference, and its readers of other machines' rows."""

    budget_bytes: int  # memory for edges, weights and the inference
    device: str | torch.device
    scratch: Path | None  # folder for activations that do not fit
    machines: MachineRows | None  # None if all rows are on this machine

    def open_rows(self, rows: FeatureRows, stack: ExitStack, **settings: Any) -> tuple[FeatureSource, int]:
        """Return (reader of all rows of a table, the reader's bytes in memory). ``stack`` closes the reader."""
        if self.machines is not None:
            return self.machines.source(rows.name), 0
        store = stack.enter_context(rows.open_features(**settings))
        return store, store.resident_bytes


@contextmanager
def open_model(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    budget_bytes: int | None,
    device: str | torch.device,
    scratch: Path | None,
    rows: MachineRows | None = None,
    require: Callable[[OpenedModel], None] = lambda _: None,
) -> Iterator[OpenedModel]:
    """Open a checkpoint's network with the graph and features of ``dataset``, within a budget.

    Edges stay in memory if they fit in half of the budget and leave room for the computation.

    Parameters
    ----------
    dataset : the network's input
    checkpoint : the network, with its best weights
    budget_bytes : budget for all memory, the topology included; None means half the free memory
    device : the compute device
    scratch : folder for activations that do not fit; None means the system's temporary folder
    rows : readers of all machines' rows if each machine has a part; otherwise None
    require : called with the opened model; raises BudgetError if the computation does not fit

    Raises
    ------
    ConfigError
        Some rows are on other machines, and there are no ``rows``. Or the network reads the ages of rows.
    CheckpointError
        The checkpoint belongs to a dataset with other types, relations, features or classes.
    BudgetError
        The budget is too small for the edges' offsets or for ``require``. The error names a sufficient budget.
    """
    require_fit(dataset, checkpoint)
    if checkpoint.spec.encoder.schema.aged:
        raise ConfigError(
            "the checkpoint's network reads the ages of rows, which depend on the time of the row that is predicted: "
            "predict the rows of a task table (gloader infer --table NAME)"
        )
    given = default_budget_bytes() if budget_bytes is None else budget_bytes
    if rows is None:
        require_all_rows([dataset.ranges])

    def attempt(budget: int, stack: ExitStack, *, holds_edges: bool) -> OpenedModel:
        """Open the model within ``budget`` bytes. ``stack`` gets the readers only if everything fits."""
        with ExitStack() as readers:
            left = max(budget - (0 if rows is None else rows.memory_bytes), 0)
            opened = _open(
                dataset,
                checkpoint,
                _Place(budget_bytes=left, device=device, scratch=scratch, machines=rows),
                edge_bytes=topology_share(left) if holds_edges else 0,
                stack=readers,
            )
            require(opened)
            stack.enter_context(readers.pop_all())
            return opened

    # The first attempt holds edges in memory. If the computation does not fit then, all edges are read page by page.
    def open_within(budget: int, stack: ExitStack) -> OpenedModel:
        try:
            return attempt(budget, stack, holds_edges=True)
        except BudgetError:
            return attempt(budget, stack, holds_edges=False)

    def try_alone(budget: int) -> None:
        with ExitStack() as readers:
            open_within(budget, readers)

    with ExitStack() as stack:
        try:
            opened = open_within(given, stack)
        except BudgetError as error:
            raise naming_enough(error, try_alone, given, first=0, keyword="memory_budget_bytes") from error
        yield opened


def _open(
    dataset: Dataset,
    checkpoint: Checkpoint,
    place: _Place,
    *,
    edge_bytes: int,
    stack: ExitStack,
) -> OpenedModel:
    """Open the network with its graph and features.

    Parameters
    ----------
    dataset, checkpoint : see `open_model`
    place : memory, device and scratch folder, and readers of other machines' rows
    edge_bytes : memory for edges; relations that exceed it are read page by page
    stack : closes all opened readers
    """
    sizes = {relation: table.topology_bytes for relation, table in dataset.edge_tables.items()}
    held = held_relations(sizes, max_bytes=edge_bytes)
    if len(held) < len(sizes):
        require_offsets(dataset, budget_bytes=place.budget_bytes)
    # Pages of edges that do not fit are not kept: each layer reads all edges, in order.
    held_bytes = sum(sizes[relation] for relation in held)
    graph = stack.enter_context(open_hetero_topology(dataset, max_bytes=held_bytes))
    spec, model = checkpoint.spec.encoder, checkpoint.model()
    encoder = encoder_of(model)
    # A ring is a reader's buffer. A single table keeps the default size.
    rings = {"ring_bytes": _RING_BYTES} if len(dataset.node_tables) > 1 else {}
    features = {
        name: place.open_rows(table.feature_rows, stack, **rings)[0]
        for name, table in dataset.node_tables.items()
        if name in encoder.layers[0].in_dims and table.feature_rows is not None
    }
    edge_features, edge_feature_bytes = {}, 0
    if spec.uses_edge_features:
        rows = edge_feature_rows(dataset)
        assert rows is not None  # noqa: S101 - `require_fit` has checked it
        edge_features[EDGE], edge_feature_bytes = place.open_rows(rows, stack, ring_bytes=_RING_BYTES)
    # Without learned rows or numbers the weights are small and count as code.
    has_tables = spec.has_types or bool(spec.schema.codes)
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters()) if has_tables else 0
    inference = HeteroInference(
        graph=graph,
        features=features,
        target=encoder.targets[0],
        memory_budget_bytes=place.budget_bytes
        - graph.held_bytes
        - _WEIGHT_COPIES * weight_bytes
        - edge_feature_bytes,
        scratch=place.scratch,
        edge_features=edge_features,
        embeddings=open_saved(checkpoint, dataset, stack),
    )
    return OpenedModel(model=model.to(place.device), inference=inference)


def require_no_triples(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if the network scores triples, and computes no rows of nodes. Pure."""
    if isinstance(checkpoint.spec, KnowledgeSpec):
        raise ConfigError(
            "the checkpoint scores triples, and predicts nothing of nodes; give --queries FILE.csv with the columns "
            "head and relation, in Python gloader.training.knowledge_answers.answer_queries"
        )


def require_fit(dataset: Dataset, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if the network belongs to another dataset."""
    require_no_triples(checkpoint)
    spec, kind = checkpoint.spec, KIND_OF_TASK.get(checkpoint.task)
    encoder = spec.encoder
    # An encoder for links gives embeddings of any width, so their width is not compared with that of the labels. Nor is
    # that of a task table: a dataset with new rows to predict may lack the table of the training rows.
    is_free = isinstance(spec, LinkSpec) or kind is None or checkpoint.table is not None
    width = encoder.out_dim if is_free or kind is None else num_outputs(kind, dataset.labelled)
    if (aged := encoder.schema.aged) and not set(aged) <= set(aged_types(dataset)):
        raise CheckpointError(
            f"the checkpoint's network reads the ages of rows of type {', '.join(aged)}, and {dataset.name} lacks "
            "times of such rows"
        )
    words = "classes" if kind == "classes" else "outputs"
    if isinstance(encoder, ModelSpec):
        if dataset.kind == "hetero":
            raise CheckpointError(
                f"the checkpoint is of a network for one node type; dataset {dataset.name} has "
                f"{len(dataset.node_types)}"
            )
        feature_dim = encoder.in_dim - encoder.embed_dim
        if (feature_dim, encoder.out_dim) != (dataset.feature_dim, width):
            raise CheckpointError(
                f"the checkpoint maps {feature_dim} features to {encoder.out_dim} {words}; dataset "
                f"{dataset.name} has {dataset.feature_dim} and {width}"
            )
        if encoder.groups:
            _require_groups(encoder.groups, dataset)
        rows = edge_feature_rows(dataset)
        edge_dim = 0 if rows is None else rows.feature_dim
        if encoder.edge_dim not in (0, edge_dim):
            raise CheckpointError(
                f"the checkpoint's network reads {encoder.edge_dim} features per edge; dataset {dataset.name} has "
                f"{edge_dim}"
            )
        _require_codes(
            encoder.codes, codes_of(dataset, encoder.config.hidden).get(dataset.node_types[0], ()), dataset
        )
        return
    # ``theirs`` describes the checkpoint's dataset, and ``ours`` the given one.
    theirs = encoder.schema
    # The ends of links may have any two types, and the rows of a task table any one, so their targets are not compared.
    ours = schema_of(dataset, dataset.node_types[:1] if is_free else None)
    targets = ours.targets if is_free else theirs.targets
    feature_dims = {name: dim - theirs.embedded.get(name, 0) for name, dim in theirs.feature_dims.items()}
    learned = [name for name, dim in theirs.feature_dims.items() if not dim]
    for what, of_checkpoint, of_dataset in (
        ("node types", ", ".join(theirs.num_nodes), ", ".join(ours.num_nodes)),
        ("relations", *(", ".join(map(relation_text, known.relations)) for known in (theirs, ours))),
        ("features of each type", feature_dims, dict(ours.feature_dims)),
        ("labelled type", ", ".join(targets), ", ".join(ours.targets)),
        (words, encoder.out_dim, width),
        # Learned rows belong to exactly these nodes.
        (
            "nodes of types without features",
            *({name: known.num_nodes.get(name) for name in learned} for known in (theirs, ours)),
        ),
    ):
        if of_checkpoint != of_dataset:
            raise CheckpointError(
                f"the checkpoint is of another dataset: its {what}: {of_checkpoint}; those of {dataset.name}: "
                f"{of_dataset}"
            )
    codes = codes_of(dataset, encoder.config.hidden)
    for name in theirs.num_nodes:
        _require_codes(theirs.codes.get(name, ()), codes.get(name, ()), dataset)


def _require_groups(theirs: tuple[ColumnGroup, ...], dataset: Dataset) -> None:
    """Raise CheckpointError if the dataset has other hop columns than the checkpoint reads."""
    ours = column_groups(dataset)
    if theirs != ours:
        of_checkpoint, of_dataset = (
            ", ".join(f"{name} {start}:{stop}" for name, start, stop in groups) for groups in (theirs, ours)
        )
        raise CheckpointError(
            f"the checkpoint reads the hop columns {of_checkpoint}; dataset {dataset.name} has {of_dataset}"
        )


def _require_codes(theirs: tuple[CodeColumn, ...], ours: tuple[CodeColumn, ...], dataset: Dataset) -> None:
    """Raise CheckpointError if a type's columns with codes differ between the checkpoint and the dataset."""
    # A network knows categories by their codes alone: other values would get the learned numbers of wrong ones.
    if [replace(each, dim=0) for each in theirs] != [replace(each, dim=0) for each in ours]:
        of_checkpoint, of_dataset = (
            ", ".join(f"{each.name} (column {each.column}, {each.num_values:,} values)" for each in codes)
            or "none"
            for codes in (theirs, ours)
        )
        raise CheckpointError(
            f"the checkpoint is of another dataset: its columns as: index: {of_checkpoint}; those of {dataset.name}: "
            f"{of_dataset}, or with other values"
        )
