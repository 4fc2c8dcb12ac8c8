"""What fixes the shape and meaning of a model's weights: its settings, and what it knows of the dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from gloader.config import ModelConfig
from gloader.errors import ConfigError
from gloader.models import (
    HETERO_MODELS,
    GraphNetwork,
    HeteroNetwork,
    Schema,
    build_hetero_model,
    build_model,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A network for nodes of one type."""

    config: ModelConfig
    in_dim: int
    num_classes: int
    num_layers: int
    add_self_loops: bool

    def build(self) -> GraphNetwork:
        """Return the network, freshly initialised."""
        return build_model(
            self.config,
            in_dim=self.in_dim,
            num_classes=self.num_classes,
            num_layers=self.num_layers,
            add_self_loops=self.add_self_loops,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroModelSpec:
    """A network over the types and relations of a graph."""

    config: ModelConfig
    schema: Schema
    num_classes: int
    num_layers: int

    def build(self) -> HeteroNetwork:
        """Return the network, freshly initialised."""
        return build_hetero_model(
            self.config, self.schema, num_classes=self.num_classes, num_layers=self.num_layers
        )


AnyModelSpec: TypeAlias = ModelSpec | HeteroModelSpec
AnyNetwork: TypeAlias = GraphNetwork | HeteroNetwork


def spec_of(settings: TrainSettings, dataset: Dataset) -> AnyModelSpec:
    """Return what fixes the model of a run.

    Raises
    ------
    ConfigError
        The model is for graphs of one type, and the dataset has several.
    """
    config, num_layers = settings.model, len(settings.loader.sampling.fanouts)
    if config.name in HETERO_MODELS:
        return HeteroModelSpec(
            config=config, schema=schema_of(dataset), num_classes=dataset.num_classes, num_layers=num_layers
        )
    if dataset.kind == "hetero":
        raise ConfigError(
            f"model {config.name!r} is for graphs of one node type, and dataset {dataset.name} has "
            f"{len(dataset.node_types)}: {', '.join(dataset.node_types[:10])}; models for several are "
            f"{', '.join(HETERO_MODELS)}"
        )
    return ModelSpec(
        config=config,
        in_dim=dataset.feature_dim,
        num_classes=dataset.num_classes,
        num_layers=num_layers,
        add_self_loops=not dataset.has_self_loops,
    )


def schema_of(dataset: Dataset) -> Schema:
    """Return what a model over several types knows of ``dataset``, which may be of one."""
    tables = dataset.node_tables
    return Schema(
        num_nodes={name: table.num_nodes for name, table in tables.items()},
        feature_dims={name: table.feature_dim for name, table in tables.items()},
        relations=dataset.relations,
        labelled=dataset.labelled.name,
    )


def spec_content(spec: AnyModelSpec) -> dict[str, Any]:
    """Return ``spec`` as JSON values, which `parse_spec` reads. Pure."""
    content = asdict(spec)
    if isinstance(spec, HeteroModelSpec):
        # Pairs: the order of types is part of the model, and JSON objects promise none.
        content["schema"] = {
            "types": [
                [name, count, spec.schema.feature_dims[name]] for name, count in spec.schema.num_nodes.items()
            ],
            "relations": [list(relation) for relation in spec.schema.relations],
            "labelled": spec.schema.labelled,
        }
    return content


def parse_spec(content: Mapping[str, Any], file: Path) -> AnyModelSpec:
    """Return the spec that `spec_content` made ``content`` of. Pure.

    Parameters
    ----------
    content : of any kind
    file : where it is from, for messages

    Raises
    ------
    TypeError, ValueError, ConfigError
        It is malformed.
    """
    kind = HeteroModelSpec if "schema" in content else ModelSpec
    if {field.name for field in fields(kind)} != set(content):
        raise TypeError(f"the model in {file} has the wrong entries: {sorted(content)}")
    config = ModelConfig(**content["config"])
    if kind is ModelSpec:
        return ModelSpec(**{**content, "config": config})
    return HeteroModelSpec(**{**content, "config": config, "schema": _parse_schema(content["schema"])})


def _parse_schema(content: Mapping[str, Any]) -> Schema:
    if set(content) != {"types", "relations", "labelled"}:
        raise TypeError(f"its schema has the entries {sorted(content)}")
    return Schema(
        num_nodes={str(name): int(count) for name, count, _ in content["types"]},
        feature_dims={str(name): int(dim) for name, _, dim in content["types"]},
        relations=tuple(
            (str(source), str(name), str(destination)) for source, name, destination in content["relations"]
        ),
        labelled=content["labelled"],
    )
