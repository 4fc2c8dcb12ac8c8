"""Model specifications: the settings and dataset facts that define the names and shapes of a model's weights.

A run makes its specification with `spec_of`, and builds its network from it. A checkpoint stores the specification as
JSON (`spec_content`, `parse_spec`), so that ``build`` gives a network that fits the checkpoint's weights. There are
three kinds: for nodes of one type, for graphs of several types, and for links, pairs of nodes. Learned rows are
weights: the trained features of nodes without features.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, get_args

from gloader.config import HETERO_MODELS, HOP_MODELS, ModelConfig
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError
from gloader.models import (
    CodeColumn,
    GraphNetwork,
    KnowledgeNetwork,
    LinkNetwork,
    Schema,
    build_decoder,
    build_hetero_model,
    build_model,
    code_dim,
    takes_edge_features,
)
from gloader.training.dataset_checks import column_groups, embedded_dims, require_model
from gloader.types import ENTITY, RELATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.dataset.tables import FeatureRows
    from gloader.models.hop_columns import ColumnGroup

LinkTarget = Literal["pairs", "classes", "values"]  # see `LinkSpec.learns`

# Names of entries in older checkpoints, and their names today.
_FORMER_NAMES: Final = {"num_classes": "out_dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A network for nodes of one type."""

    config: ModelConfig  # the model's settings, such as its name and hidden width
    in_dim: int  # width of the features, with the embedding behind them
    out_dim: int  # width of the logits or embeddings
    num_layers: int
    add_self_loops: bool  # False if the graph stores a loop at each node
    edge_dim: int = 0  # width of the edge features that the network reads
    codes: tuple[CodeColumn, ...] = ()  # the feature columns with codes, from left to right
    groups: tuple[ColumnGroup, ...] = ()  # the groups of hop columns, for a model of `HOP_MODELS`
    is_aged: bool = False  # whether the network reads the ages of rows
    embed_dim: int = 0  # width of the embedding, whose rows are the last of the ``in_dim`` columns

    has_types: ClassVar[bool] = False  # whether the network takes batches of several types

    @property
    def schema(self) -> Schema:
        """The graph as a graph of several types would be described: one type and one relation, no node count."""
        return Schema.of_one_type(self.in_dim, self.codes, is_aged=self.is_aged, embed_dim=self.embed_dim)

    @property
    def uses_edge_features(self) -> bool:
        """True if the model reads edge features. Otherwise a loader need not read them."""
        return self.edge_dim > 0

    @property
    def encoder(self) -> ModelSpec:
        """The specification of the network that computes node rows: this one."""
        return self

    def with_rows(self, counts: Mapping[str, int]) -> ModelSpec:  # noqa: ARG002 - no row is learned
        """Return the same specification: the weights do not depend on the node count."""
        return self

    def with_one_value(self) -> ModelSpec:
        """Return the specification with one value in each column with codes. Memory is measured with such networks."""
        return replace(self, codes=_with_one_value(self.codes))

    def build(self) -> GraphNetwork:
        """Return the network, freshly initialised."""
        return build_model(
            self.config,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            num_layers=self.num_layers,
            add_self_loops=self.add_self_loops,
            edge_dim=self.edge_dim,
            codes=self.codes,
            groups=self.groups,
            is_aged=self.is_aged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroModelSpec:
    """A network over the types and relations of a graph."""

    config: ModelConfig
    schema: Schema  # node types, relations, feature widths and target types
    out_dim: int  # width of the logits or embeddings
    num_layers: int
    has_head: bool = True  # whether rsage and rgat have their MLP head; embeddings have none

    has_types: ClassVar[bool] = True
    edge_dim: ClassVar[int] = 0
    uses_edge_features: ClassVar[bool] = False

    @property
    def encoder(self) -> HeteroModelSpec:
        """The specification of the network that computes node rows: this one."""
        return self

    def with_rows(self, counts: Mapping[str, int]) -> HeteroModelSpec:
        """Return the specification for ``counts`` nodes of each type, at least one.

        Learned rows, one for each node, change with the counts. Memory is measured with such smaller networks.
        """
        num_nodes = {name: max(1, counts.get(name, 1)) for name in self.schema.num_nodes}
        return replace(self, schema=replace(self.schema, num_nodes=num_nodes))

    def with_one_value(self) -> HeteroModelSpec:
        """Return the specification with one value in each column with codes. Memory is measured with such networks."""
        codes = {name: _with_one_value(columns) for name, columns in self.schema.codes.items()}
        return replace(self, schema=replace(self.schema, codes=codes))

    def build(self) -> GraphNetwork:
        """Return the network, freshly initialised."""
        return build_hetero_model(
            self.config,
            self.schema,
            out_dim=self.out_dim,
            num_layers=self.num_layers,
            has_head=self.has_head,
        )


def _with_one_value(codes: tuple[CodeColumn, ...]) -> tuple[CodeColumn, ...]:
    """Return columns of one value each, with as many learned numbers as before."""
    return tuple(replace(each, num_values=1) for each in codes)


EncoderSpec: TypeAlias = ModelSpec | HeteroModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A network for pairs of nodes: an encoder gives a row per node, and a decoder maps two rows to outputs."""

    encoder: EncoderSpec
    ends: tuple[str, str]  # types of the sources and of the destinations
    decoder: str  # "dot" or "mlp"
    decoder_layers: int
    # The learned target: whether a pair is an edge ("pairs"), its class, or its value.
    learns: LinkTarget
    num_outputs: int = 1  # outputs per pair: the number of classes, otherwise 1

    @property
    def has_types(self) -> bool:
        """True if the network takes batches of several types."""
        return self.encoder.has_types

    def with_rows(self, counts: Mapping[str, int]) -> LinkSpec:
        """Return the specification with the encoder's `with_rows`."""
        return replace(self, encoder=self.encoder.with_rows(counts))

    def with_one_value(self) -> LinkSpec:
        """Return the specification with the encoder's `with_one_value`."""
        return replace(self, encoder=self.encoder.with_one_value())

    def build(self) -> LinkNetwork:
        """Return the network, freshly initialised."""
        encoder, config = self.encoder.build(), self.encoder.config
        decoder = build_decoder(
            self.decoder,
            dim=self.encoder.out_dim,
            hidden=config.hidden,
            dropout=config.dropout,
            layers=self.decoder_layers,
            num_outputs=self.num_outputs,
        )
        return LinkNetwork(encoder, decoder, ends=self.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeSpec:
    """A network that scores triples of a knowledge graph. The rows of entities are an embedding."""

    name: str  # one of `KNOWLEDGE_MODELS`
    dim: int  # columns of an entity's row
    norm: int  # the norm of "transe"
    num_entities: int
    num_relations: int

    has_types: ClassVar[bool] = True
    edge_dim: ClassVar[int] = 0
    num_layers: ClassVar[int] = 0  # no neighbours are read
    uses_edge_features: ClassVar[bool] = False

    @property
    def schema(self) -> Schema:
        """The graph: two types without edges, of which one has an embedding."""
        return Schema(
            num_nodes={ENTITY: self.num_entities, RELATION: self.num_relations},
            feature_dims={ENTITY: self.dim, RELATION: 0},
            relations=(),
            targets=(ENTITY,),
            embedded={ENTITY: self.dim},
        )

    @property
    def encoder(self) -> Any:
        """The specification of the part that computes node rows: this one, which has no layers and no width of them."""
        return self

    def with_rows(self, counts: Mapping[str, int]) -> KnowledgeSpec:  # noqa: ARG002 - no entity's row is a weight
        """Return the same specification: the rows of entities are no weights."""
        return self

    def with_one_value(self) -> KnowledgeSpec:
        """Return the same specification: there are no categories."""
        return self

    def build(self) -> KnowledgeNetwork:
        """Return the network, freshly initialised."""
        return KnowledgeNetwork(self.name, dim=self.dim, num_relations=self.num_relations, norm=self.norm)


AnyModelSpec: TypeAlias = EncoderSpec | LinkSpec | KnowledgeSpec
AnyNetwork: TypeAlias = GraphNetwork | LinkNetwork | KnowledgeNetwork


def spec_of(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    targets: tuple[str, ...] | None = None,
    num_outputs: int | None = None,
) -> EncoderSpec:
    """Return the specification of a run's model.

    Parameters
    ----------
    settings : the run's settings
    dataset : the training data
    targets : types whose nodes get embeddings, as wide as a hidden layer; for links these are both end types. If None,
        the nodes of the learned type get outputs: the labelled type, or the type of the task table in ``settings``
    num_outputs : outputs of a node of the learned type; None means one for each class

    Raises
    ------
    ConfigError
        The model is for one node type and the dataset has several, or the model needs edge features that do not exist
            or are not read, or that hold codes of categories.
    """
    require_model(settings, dataset)
    config, num_layers = settings.model, len(settings.loader.sampling.fanouts)
    out_dim, has_head = config.hidden, targets is None
    if has_head:
        out_dim = dataset.num_classes if num_outputs is None else num_outputs
    aged: tuple[str, ...] = ()
    if settings.table is not None:
        table = dataset.task_table(f"{settings.table}.train")
        targets = (table.node_type,)
        aged = aged_types(dataset) if table.has_times else ()
    embedded = embedded_dims(settings, dataset)
    if config.name in HETERO_MODELS:
        schema = replace(schema_of(dataset, targets), codes=codes_of(dataset, config.hidden), aged=aged)
        return HeteroModelSpec(
            config=config,
            schema=_with_embeddings(schema, embedded, settings.embed.dims, num_layers),
            out_dim=out_dim,
            num_layers=num_layers,
            has_head=has_head,
        )
    embed_dim = sum(embedded.values())  # there is one type
    return ModelSpec(
        config=config,
        in_dim=dataset.feature_dim + embed_dim,
        out_dim=out_dim,
        num_layers=num_layers,
        add_self_loops=not dataset.has_self_loops,
        edge_dim=_edge_dim(settings, dataset) if takes_edge_features(config.name) else 0,
        codes=codes_of(dataset, config.hidden).get(dataset.node_types[0], ()),
        groups=column_groups(dataset) if config.name in HOP_MODELS else (),
        is_aged=bool(aged),
        embed_dim=embed_dim,
    )


def _with_embeddings(
    schema: Schema, embedded: Mapping[str, int], named: Mapping[str, int], num_layers: int
) -> Schema:
    """Return ``schema`` with the embeddings of the types that reach the output.

    Parameters
    ----------
    schema : types with their features
    embedded : the width of each type's embedding
    named : the types that the settings name, which must reach the output
    num_layers : L

    Raises
    ------
    ConfigError
        A named type does not reach the output, so that its rows would never be trained.
    """
    read = schema.reaching(num_layers)[0]
    kept = {name: dim for name, dim in embedded.items() if name in read}
    lost = [name for name in embedded if name not in read and (name in named or not kept)]
    if lost:
        raise ConfigError(
            f"--embed is for type {lost[0]!r}, whose rows do not reach {', '.join(map(repr, schema.targets))} within "
            f"{num_layers} layers: they would never be trained; leave it out"
        )
    dims = {name: dim + kept.get(name, 0) for name, dim in schema.feature_dims.items()}
    return replace(schema, feature_dims=dims, embedded=kept)


def aged_types(dataset: Dataset) -> tuple[str, ...]:
    """Return the node types whose rows have times, so that batches of a table with times have their ages. Pure."""
    return tuple(name for name, table in dataset.node_tables.items() if table.has_row_times)


def codes_of(dataset: Dataset, hidden: int) -> dict[str, tuple[CodeColumn, ...]]:
    """Return the columns with codes of each type that has some, with tables for a network of width ``hidden``. Pure."""
    found = {}
    for name in dataset.node_types:
        encoders = dataset.encoders(name)
        if encoders is not None and encoders.indexes:
            found[name] = tuple(
                CodeColumn(
                    name=each.column,
                    column=number,
                    num_values=len(each.values),
                    digest=each.digest,
                    dim=code_dim(len(each.values), hidden),
                )
                for number, each in encoders.indexes.items()
            )
    return found


def codes_text(spec: AnyModelSpec) -> str:
    """Return a line on the columns with codes and the widths of their tables, or "" without such columns. Pure."""
    codes, has_types = spec.encoder.schema.codes, spec.has_types
    texts = [
        f"{f'{name}.' if has_types else ''}{each.name} ({each.num_values:,} values) as {each.dim} numbers"
        for name, columns in codes.items()
        for each in columns
    ]
    return f"learned numbers for categories: {', '.join(texts)}" if texts else ""


def edge_feature_rows(dataset: Dataset) -> FeatureRows | None:
    """Return the edge features of ``dataset``, which has one node type, or None."""
    (table,) = dataset.edge_tables.values()
    return table.feature_rows


def _edge_dim(settings: TrainSettings, dataset: Dataset) -> int:
    """Return the width of the batches' edge features, or 0."""
    rows = edge_feature_rows(dataset)
    if rows is None or settings.loader.sampling.edge_features == "none":
        return 0
    (relation,) = dataset.relations
    encoders = dataset.encoders(relation_text(relation))
    if encoders is not None and encoders.indexes:
        names = ", ".join(repr(each.column) for each in encoders.indexes.values())
        raise ConfigError(
            f"the edge features of {dataset.name} hold codes of categories ({names}, as: index), which model "
            f"{settings.model.name!r} would read as amounts; prepare them with as: category, or leave edge features "
            "out with --edge-features none"
        )
    return rows.feature_dim


def schema_of(dataset: Dataset, targets: tuple[str, ...] | None = None) -> Schema:
    """Return the dataset facts for a model over several types. ``dataset`` may have one type.

    Parameters
    ----------
    dataset : dataset with the types and relations
    targets : types of the output rows; None means the labelled type
    """
    tables = dataset.node_tables
    return Schema(
        num_nodes={name: table.num_nodes for name, table in tables.items()},
        feature_dims={name: table.feature_dim for name, table in tables.items()},
        relations=dataset.relations,
        targets=(dataset.labelled.name,) if targets is None else tuple(dict.fromkeys(targets)),
    )


def spec_content(spec: AnyModelSpec) -> dict[str, Any]:
    """Return ``spec`` as JSON values for `parse_spec`. Pure."""
    content = asdict(spec)
    if isinstance(spec, KnowledgeSpec):
        return content
    if isinstance(spec, LinkSpec):
        return content | {"encoder": spec_content(spec.encoder), "ends": list(spec.ends)}
    if isinstance(spec, HeteroModelSpec):
        # Pairs keep the order of types, which is part of the model. JSON objects promise no order.
        content["schema"] = {
            "types": [
                [name, count, spec.schema.feature_dims[name]] for name, count in spec.schema.num_nodes.items()
            ],
            "relations": [list(relation) for relation in spec.schema.relations],
            "targets": list(spec.schema.targets),
        }
        if spec.schema.codes:
            content["schema"]["codes"] = {
                name: _codes_content(codes) for name, codes in spec.schema.codes.items()
            }
        if spec.schema.aged:
            content["schema"]["aged"] = list(spec.schema.aged)
        if spec.schema.embedded:
            content["schema"]["embedded"] = [[name, dim] for name, dim in spec.schema.embedded.items()]
        return content
    # Without codes, groups, ages or an embedding there is no entry, as in checkpoints of earlier versions.
    del content["codes"], content["groups"], content["is_aged"], content["embed_dim"]
    return (
        content
        | ({"codes": _codes_content(spec.codes)} if spec.codes else {})
        | ({"groups": [list(group) for group in spec.groups]} if spec.groups else {})
        | ({"is_aged": True} if spec.is_aged else {})
        | ({"embed_dim": spec.embed_dim} if spec.embed_dim else {})
    )


def _codes_content(codes: tuple[CodeColumn, ...]) -> list[list[Any]]:
    """Return columns with codes as JSON values for `_parse_codes`."""
    return [list(astuple(each)) for each in codes]


def parse_spec(content: Mapping[str, Any], file: Path) -> AnyModelSpec:
    """Return the specification in ``content``, a result of `spec_content`. Pure.

    Parameters
    ----------
    content : any value
    file : file of the content, for messages

    Raises
    ------
    TypeError, ValueError, ConfigError
        The content is malformed.
    """
    if "encoder" in content:
        return _parse_link_spec(content, file)
    if "num_entities" in content:
        return KnowledgeSpec(**content)
    return _parse_encoder_spec(content, file)


def _parse_link_spec(content: Mapping[str, Any], file: Path) -> LinkSpec:
    """Return the specification of a network for pairs, see `parse_spec`."""
    if {field.name for field in fields(LinkSpec)} != set(content):
        raise TypeError(f"the model of links in {file} has the wrong entries: {sorted(content)}")
    source, destination = content["ends"]
    if content["learns"] not in get_args(LinkTarget):
        raise TypeError(f"the model of links in {file} learns {content['learns']!r}")
    return LinkSpec(
        encoder=_parse_encoder_spec(content["encoder"], file),
        ends=(str(source), str(destination)),
        decoder=str(content["decoder"]),
        decoder_layers=int(content["decoder_layers"]),
        learns=content["learns"],
        num_outputs=int(content["num_outputs"]),
    )


def _parse_encoder_spec(content: Mapping[str, Any], file: Path) -> EncoderSpec:
    """Return the specification of a network that computes node rows, see `parse_spec`."""
    kind = HeteroModelSpec if "schema" in content else ModelSpec
    content = {_FORMER_NAMES.get(name, name): value for name, value in content.items()}
    known = {field.name: field.default for field in fields(kind)}
    lacking = {name for name, default in known.items() if default is MISSING} - set(content)
    if lacking or not set(content) <= set(known):
        raise TypeError(f"the model in {file} has the wrong entries: {sorted(content)}")
    config = ModelConfig(**content["config"])
    if kind is ModelSpec:
        codes, groups = _parse_codes(content.get("codes", ())), _parse_groups(content.get("groups", ()))
        return ModelSpec(**{**content, "config": config, "codes": codes, "groups": groups})
    return HeteroModelSpec(**{**content, "config": config, "schema": _parse_schema(content["schema"])})


def _parse_schema(content: Mapping[str, Any]) -> Schema:
    """Return the schema in ``content``, the entry that `spec_content` makes."""
    if "labelled" in content:  # an entry of earlier versions
        content = {name: value for name, value in content.items() if name != "labelled"} | {
            "targets": [content["labelled"]]
        }
    if set(content) - {"codes", "aged", "embedded"} != {"types", "relations", "targets"}:
        raise TypeError(f"its schema has the entries {sorted(content)}")
    return Schema(
        num_nodes={str(name): int(count) for name, count, _ in content["types"]},
        feature_dims={str(name): int(dim) for name, _, dim in content["types"]},
        relations=tuple(
            (str(source), str(name), str(destination)) for source, name, destination in content["relations"]
        ),
        targets=tuple(map(str, content["targets"])),
        codes={str(name): _parse_codes(codes) for name, codes in content.get("codes", {}).items()},
        aged=tuple(map(str, content.get("aged", ()))),
        embedded={str(name): int(dim) for name, dim in content.get("embedded", ())},
    )


def _parse_codes(content: Sequence[Sequence[Any]]) -> tuple[CodeColumn, ...]:
    """Return the columns with codes in ``content``, an entry that `spec_content` makes."""
    return tuple(
        CodeColumn(
            name=str(name), column=int(column), num_values=int(count), digest=str(digest), dim=int(dim)
        )
        for name, column, count, digest, dim in content
    )


def _parse_groups(content: Sequence[Sequence[Any]]) -> tuple[ColumnGroup, ...]:
    """Return the groups of hop columns in ``content``, an entry that `spec_content` makes."""
    return tuple((str(name), int(start), int(stop)) for name, start, stop in content)
