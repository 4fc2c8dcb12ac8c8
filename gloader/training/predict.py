"""Predictions and embeddings of a whole dataset, from a checkpoint and all neighbours."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.dataset.schema import relation_text
from gloader.dataset.topology import (
    held_relations,
    open_hetero_topology,
    open_topology,
    require_offsets,
)
from gloader.errors import CheckpointError, ConfigError
from gloader.memory.available import default_budget_bytes
from gloader.memory.part_bytes import topology_share
from gloader.models import HeteroNetwork
from gloader.training.evaluate import predict_classes
from gloader.training.inference.hetero_inference import HeteroInference
from gloader.training.inference.layerwise_inference import LayerwiseInference
from gloader.training.model_spec import HeteroModelSpec, schema_of
from gloader.training.process import eager_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.training.model_spec import AnyModelSpec
    from gloader.types import IdArray

    Progress = Callable[[float], None]

# Of the weights of a network for several types, whose learned rows may be large: in the checkpoint and in the network.
_WEIGHT_COPIES: Final = 2
_RING_BYTES: Final = 1 << 20  # of each type: rows are read in order, a few large reads ahead are enough


def predict(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> IdArray:
    """Return the most likely class of every node of the labelled type, (N,) int64, from all neighbours.

    Nodes count as in ``dataset``, which is where its labels and splits count them too;
    `Dataset.in_original_order` puts the result in the order of the source.

    Parameters
    ----------
    dataset : whose nodes are classified
    checkpoint : the network, with its best weights
    memory_budget_bytes : for everything held, the topology included; defaults to half of what is free
    device : computes
    scratch : folder for activations that do not fit; defaults to the system's temporary folder
    on_progress : called with the share that is done, 0 to 1

    Raises
    ------
    CheckpointError
        The checkpoint belongs to a dataset with other types, relations, features or classes.
    BudgetError
        The budget is too small.
    """
    with _opened(
        dataset, checkpoint, budget_bytes=memory_budget_bytes, device=device, scratch=scratch
    ) as opened:
        everyone = np.arange(dataset.labelled.num_nodes, dtype=np.int64)
        return predict_classes(opened.model, opened.inference, everyone, on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """What a layer makes of all nodes of a type."""

    num_nodes: int
    width: int
    chunks: Iterator[NDArray[np.float32]]  # consecutive rows, in the order of the nodes' original ids


@contextmanager
def embed(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    layer: int,
    node_type: str | None = None,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Embeddings]:
    """Open what a layer makes of every node of a type, from all neighbours; computed when the first chunk is asked for.

    They are plain outputs of the layer: what lies between it and the next one, batch norm and the activation, is not
    applied.

    Parameters
    ----------
    dataset, checkpoint, memory_budget_bytes, device, scratch, on_progress : as of `predict`
    layer : 1, next to the features, to L
    node_type : None: the labelled type

    Raises
    ------
    ConfigError
        There is no such type, or the layer makes nothing of it that leads to the classes.
    CheckpointError, BudgetError
        As `predict`.
    """
    name = dataset.labelled.name if node_type is None else node_type
    if name not in dataset.node_tables:
        raise ConfigError(
            f"{dataset.root} has no node type {name!r}; there are {', '.join(map(repr, dataset.node_types))}"
        )
    table = dataset.node_tables[name]
    with _opened(
        dataset, checkpoint, budget_bytes=memory_budget_bytes, device=device, scratch=scratch
    ) as opened:
        model = opened.model
        _require_made(model, name, layer)
        everyone = np.arange(table.num_nodes, dtype=np.int64)
        order = None
        if table.original_ids is not None:
            order = np.empty_like(everyone)
            order[table.original_ids] = everyone
        made = opened.activations(name, layer, everyone, order=order, on_progress=on_progress)
        with eager_release(), closing(made):
            yield Embeddings(
                num_nodes=table.num_nodes,
                width=model.layers[layer - 1].out_dim,
                chunks=(rows.numpy() for _, rows in made),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A network, and what it computes from."""

    model: Any
    inference: LayerwiseInference | HeteroInference

    def activations(self, node_type: str, layer: int, nodes: IdArray, **options: Any) -> Any:
        """Return an iterator over what a layer makes of ``nodes``."""
        if isinstance(self.inference, HeteroInference):
            return self.inference.activations(self.model, layer, node_type, nodes, **options)
        return self.inference.activations(self.model, layer, nodes, **options)


@contextmanager
def _opened(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    budget_bytes: int | None,
    device: str | torch.device,
    scratch: Path | None,
) -> Iterator[_Opened]:
    _require_fit(dataset, checkpoint.spec)
    budget = default_budget_bytes() if budget_bytes is None else budget_bytes
    open_by_kind = _open_types if isinstance(checkpoint.spec, HeteroModelSpec) else _open_one_type
    with ExitStack() as stack:
        yield open_by_kind(dataset, checkpoint, budget, device, scratch, stack)


def _open_one_type(
    dataset: Dataset,
    checkpoint: Checkpoint,
    budget: int,
    device: str | torch.device,
    scratch: Path | None,
    stack: ExitStack,
) -> _Opened:
    share = topology_share(budget)
    is_held = dataset.topology_bytes <= share
    if not is_held:
        require_offsets(dataset, budget_bytes=budget)
    # Of edges that do not fit no page is kept: each layer reads all of them, in order.
    topology = stack.enter_context(open_topology(dataset, max_bytes=share if is_held else 0))
    features = stack.enter_context(dataset.open_features())
    inference = LayerwiseInference(
        graph=topology,
        features=features,
        memory_budget_bytes=budget - topology.held_bytes,
        scratch=scratch,
    )
    return _Opened(model=checkpoint.model().to(device), inference=inference)


def _open_types(
    dataset: Dataset,
    checkpoint: Checkpoint,
    budget: int,
    device: str | torch.device,
    scratch: Path | None,
    stack: ExitStack,
) -> _Opened:
    sizes = {relation: table.topology_bytes for relation, table in dataset.edge_tables.items()}
    held = held_relations(sizes, max_bytes=topology_share(budget))
    if len(held) < len(sizes):
        require_offsets(dataset, budget_bytes=budget)
    held_bytes = sum(sizes[relation] for relation in held)
    graph = stack.enter_context(open_hetero_topology(dataset, max_bytes=held_bytes))
    model = checkpoint.model()
    assert isinstance(model, HeteroNetwork)  # noqa: S101 - by its spec
    tables = {name: dataset.node_tables[name] for name in model.layers[0].in_dims}
    features = {
        name: stack.enter_context(table.open_features(ring_bytes=_RING_BYTES))
        for name, table in tables.items()
        if table.has_features
    }
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    inference = HeteroInference(
        graph=graph,
        features=features,
        target=dataset.labelled.name,
        memory_budget_bytes=budget - graph.held_bytes - _WEIGHT_COPIES * weight_bytes,
        scratch=scratch,
    )
    return _Opened(model=model.to(device), inference=inference)


def _require_fit(dataset: Dataset, spec: AnyModelSpec) -> None:
    """Raise CheckpointError where the network is of another dataset."""
    if not isinstance(spec, HeteroModelSpec):
        if dataset.kind == "hetero":
            raise CheckpointError(
                f"the checkpoint is of a network for one node type; dataset {dataset.name} has "
                f"{len(dataset.node_types)}"
            )
        if (spec.in_dim, spec.out_dim) != (dataset.feature_dim, dataset.num_classes):
            raise CheckpointError(
                f"the checkpoint maps {spec.in_dim} features to {spec.out_dim} classes; dataset "
                f"{dataset.name} has {dataset.feature_dim} and {dataset.num_classes}"
            )
        return
    theirs, ours = spec.schema, schema_of(dataset)
    learned = [name for name, dim in theirs.feature_dims.items() if not dim]
    for what, there, here in (
        ("node types", ", ".join(theirs.num_nodes), ", ".join(ours.num_nodes)),
        ("relations", *(", ".join(map(relation_text, known.relations)) for known in (theirs, ours))),
        ("features of each type", dict(theirs.feature_dims), dict(ours.feature_dims)),
        ("labelled type", ", ".join(theirs.targets), ", ".join(ours.targets)),
        ("classes", spec.out_dim, dataset.num_classes),
        # Rows that were learned are of these very nodes.
        (
            "nodes of types without features",
            *({name: known.num_nodes[name] for name in learned} for known in (theirs, ours)),
        ),
    ):
        if there != here:
            raise CheckpointError(
                f"the checkpoint is of another dataset: its {what}: {there}; those of {dataset.name}: {here}"
            )


def _require_made(model: Any, node_type: str, layer: int) -> None:
    """Raise ConfigError where the layer makes nothing of the type."""
    layers = range(1, len(model.layers) + 1)
    if layer not in layers:
        raise ConfigError(f"layer is {layer}; the network has the layers 1 to {len(layers)}")
    if not isinstance(model, HeteroNetwork):
        return
    made = [number for number in layers if node_type in model.layers[number - 1].types]
    if layer not in made:
        allowed = f"allowed: {', '.join(map(str, made))}" if made else "nor does another layer"
        raise ConfigError(
            f"layer {layer} makes nothing of type {node_type!r} that leads to the classes of "
            f"{model.schema.targets[0]!r}, so it was never trained; {allowed}"
        )
