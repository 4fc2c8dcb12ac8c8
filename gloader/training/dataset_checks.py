"""Checks that a dataset suits a training run, made before kernels are compiled and torch is imported.

`require_dataset` makes all checks. The single checks also serve the modules that open models and tasks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, get_args

from gloader.config import (
    CORRECT_AND_SMOOTH,
    HETERO_MODELS,
    HOP_MODELS,
    HOPS_ENTRY,
    KNOWLEDGE_MODELS,
    MLP_MODELS,
    TaskName,
)
from gloader.core.flag_values import EVERY_TYPE, require_choice
from gloader.core.near_names import near_advice
from gloader.core.row_settings import EmbedConfig, EmbedOptimizer, KnowledgeConfig
from gloader.errors import ConfigError, FormatError
from gloader.types import ENTITY, RELATION

if TYPE_CHECKING:
    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.dataset.tables import NodeTable
    from gloader.dataset.task_table import TaskTable
    from gloader.dataset.values import LabelKind
    from gloader.models.hop_columns import ColumnGroup
    from gloader.training.scores import Metric

# The task of each kind of labels, as a run records it. Runs of classes were called "node" before other tasks existed.
TASK_OF_KIND: Final[dict[LabelKind, TaskName]] = {
    "classes": "node",
    "binary": "binary",
    "multilabel": "multilabel",
    "values": "regression",
}
MARGIN_MODELS: Final = ("transe", "rotate")  # models of triples whose scores are distances
RANK_METRIC: Final = "mrr"  # the metric of triples: the filtered mean reciprocal rank
# The kinds of labels from which each task can learn, and advice for other datasets.
_LEARNABLE: Final[dict[str, tuple[tuple[LabelKind, ...], str]]] = {
    "classes": (("classes",), "classes are one whole number per node"),
    "binary": (("classes", "binary"), "binary labels are one column of 0 and 1"),
    "multilabel": (("binary", "multilabel"), "multilabel labels are columns of 0 and 1"),
    "regression": (
        ("binary", "multilabel", "values"),
        "to learn whole numbers as values, prepare the dataset with --labels-as values",
    ),
}
# The kind of labels that each task of nodes learns, as a checkpoint names the task.
KIND_OF_TASK: Final[dict[str, LabelKind]] = {task: kind for kind, task in TASK_OF_KIND.items()}


def require_dataset(settings: TrainSettings, dataset: Dataset) -> None:
    """Check that ``dataset`` has the training data for ``settings``; reads none of its arrays.

    Raises
    ------
    ConfigError
        There are no training nodes, there is no such task table (rows to predict) or no link table (edges to predict),
        the labels or the metric do not fit the task, or the model does not fit the dataset or the setting ``compile``.
    """
    require_choice("task", settings.task, get_args(TaskName))
    if settings.task != "kg":
        _require_used_knowledge(settings)
    if settings.task == "link":
        if settings.table is not None:
            raise ConfigError(
                f"--table {settings.table} names rows of nodes, and --task link learns edges; leave one of them out "
                "(--edges names a link table)"
            )
        require_link_tables(dataset)
        require_no_classes(settings)
    elif settings.task == "kg":
        require_triples(settings, dataset)
        return
    else:
        require_rows(settings, dataset)
        metric_of_task(settings, dataset)
    require_model(settings, dataset)
    require_no_compile(settings)


def require_no_compile(settings: TrainSettings) -> None:
    """Raise ConfigError if a model for several node types is to be compiled by torch."""
    # Measured: two minutes for an epoch of seven batches. Some batches have empty relations, and torch compiles
    # anew for each such case.
    if settings.step.compile and settings.model.name in HETERO_MODELS:
        raise ConfigError(
            f"--compile is for models of graphs of one node type, and {settings.model.name!r} is for several; leave it "
            "out"
        )


def require_rows(settings: TrainSettings, dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no training nodes, or a setting does not fit the rows of a task table."""
    if settings.table is None:
        require_training_nodes(dataset)
        return
    table = dataset.task_table(f"{settings.table}.train")
    if not table.num_rows:
        raise ConfigError(f"table {table.name!r} of {dataset.location} has no rows to learn")
    if settings.optim.balance != "none":
        raise ConfigError(
            f"--balance {settings.optim.balance} draws nodes, and --table {settings.table} takes each row of the table "
            "once per epoch; give --class-weights balanced instead"
        )
    if dataset.ranges is not None:
        raise ConfigError(
            f"--table {settings.table} evaluates rows on one machine, and {dataset.location} has a part of the "
            "features; prepare the whole dataset on each machine"
        )


def labels_to_learn(table: str | None, dataset: Dataset) -> NodeTable | TaskTable:
    """Return the owner of the learned labels: the training rows of a task, or the labelled type for None.

    Raises
    ------
    ConfigError
        There is no such task. The message has the tables that there are.
    """
    return dataset.labelled if table is None else dataset.task_table(f"{table}.train")


def require_training_nodes(dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no training nodes."""
    if not dataset.labelled.split_sizes["train"]:
        task = (
            "triples with --task kg" if dataset.node_types == (ENTITY, RELATION) else "edges with --task link"
        )
        instead = f"; predict its {task}" if dataset.link_tables else ""
        tasks = dict.fromkeys(name.rpartition(".")[0] for name in dataset.task_tables)
        if tasks:
            instead = f"; learn the rows of a table with --table: {', '.join(tasks)}"
        raise ConfigError(f"{dataset.location} has no training nodes with labels to learn{instead}")


def require_edges(dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no edges along which labels could spread."""
    if not any(table.num_edges for table in dataset.edge_tables.values()):
        raise ConfigError(
            f"{dataset.location} has no edges, along which {CORRECT_AND_SMOOTH} spreads the labels of the training "
            "nodes; give a dataset with edges, such as one of `gloader propagate --nodes all`, or train with --model "
            "mlp"
        )


def kind_of_task(settings: TrainSettings, dataset: Dataset) -> LabelKind:
    """Return the kind of labels that the task of nodes learns.

    The task "node" takes the kind of the dataset's labels. Two classes can be learned as "classes" or as "binary".

    Raises
    ------
    ConfigError
        The dataset's labels are of another kind, or a setting is for tasks with classes.
    """
    task, labelled = settings.task, labels_to_learn(settings.table, dataset)
    where = dataset.location if settings.table is None else f"table {settings.table!r} of {dataset.location}"
    given = labelled.label_kind
    if given is None:
        raise ConfigError(f"the training rows of {where} have no labels to learn")
    kind = given if task == "node" else KIND_OF_TASK.get(task, "classes")
    if task != "node":
        kinds, advice = _LEARNABLE[task]
        words = f"labels of kind {given}"
        is_learnable = given in kinds
        if task == "binary" and given == "classes":
            words, is_learnable = f"{labelled.num_classes} classes", labelled.num_classes == 2
        if not is_learnable:
            raise ConfigError(
                f"--task {task} does not fit {where}, which has {words}: {advice}; leave --task out, and "
                f"--task {'classes' if given == 'classes' else TASK_OF_KIND[given]} is learned"
            )
    if kind not in ("classes", "binary"):
        require_no_classes(settings, task=TASK_OF_KIND[kind])
    if settings.optim.balance == "classes" and settings.optim.class_weights == "balanced":
        raise ConfigError(
            "--balance classes and --class-weights balanced both make rare classes count as much as common ones; give "
            "one of them"
        )
    return kind


def num_outputs(kind: LabelKind, labelled: NodeTable | TaskTable) -> int:
    """Return the number of a network's outputs for each node or row that learns labels of ``kind``. Pure."""
    if kind == "classes":
        return labelled.num_classes
    return 1 if kind == "binary" else labelled.label_width


def metric_of_task(settings: TrainSettings, dataset: Dataset) -> Metric:
    """Return the metric of a task of nodes; ConfigError if the dataset or the metric does not fit the task."""
    # This import is late: it loads numba, which `gloader train --help` does not need.
    from gloader.training.scores import DEFAULT_METRICS, metric_of

    kind = kind_of_task(settings, dataset)
    name = settings.links.metric
    return metric_of(DEFAULT_METRICS[kind] if name == "auto" else name, kind)


def require_no_classes(settings: TrainSettings, *, task: TaskName = "link") -> None:
    """Raise ConfigError for a setting that is for classes of nodes, which ``task`` does not learn."""
    for name in ("class_weights", "balance"):
        if (value := getattr(settings.optim, name)) != "none":
            raise ConfigError(
                f"--{name.replace('_', '-')} {value} is for classes of nodes, and --task {task} learns none; leave it "
                "out"
            )


def require_link_tables(dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no link table."""
    if not dataset.link_tables:
        raise ConfigError(
            f"{dataset.location} has no link tables, and --task link predicts the edges of one; make some with "
            "`gloader prepare --edge-split 80/10/10`"
        )


def require_triples(settings: TrainSettings, dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` is no knowledge graph, or a setting does not fit the task "kg"."""
    # This import is late: `gloader train --help` needs no numpy.
    from gloader.core.negatives import Uniform, parse_negatives

    links, name = settings.links, settings.model.name
    if dataset.node_types != (ENTITY, RELATION) or not dataset.link_tables:
        raise ConfigError(
            f"--task kg learns the triples of a knowledge graph, and {dataset.location} is none: it has the node types "
            f"{', '.join(dataset.node_types[:10])}; make one with `gloader prepare triples:FILE OUT`"
        )
    for table in (links.edges, *(links.eval_edges or ())):
        if dataset.link_table(table).label_dtype != "int64":
            raise ConfigError(
                f"links {table!r} of {dataset.location} have no relations as labels; name others with --edges"
            )
    if name not in KNOWLEDGE_MODELS:
        raise ConfigError(
            f"model {name!r} does not score triples; give --model complex, distmult, transe or rotate"
        )
    _require_used_knowledge(settings)
    negatives = parse_negatives(links.negatives_of("kg"))
    if not (isinstance(negatives, Uniform) and negatives.shared):
        raise ConfigError(
            f"--negatives {links.negatives} are not for --task kg, which compares a triple with entities that all "
            "triples of a batch share; leave it out, or give --negatives uniform:256,shared"
        )
    if links.metric not in ("auto", RANK_METRIC):
        raise ConfigError(
            f"--metric {links.metric} is not for triples, whose metric is {RANK_METRIC}; leave it out"
        )
    unused = {
        "--table": settings.table is not None,
        "--exclude": links.exclude != "none" or links.exclude_duplicates,
        "--compile": settings.step.compile,
        "--embed": settings.embed.dims not in ({}, {ENTITY: settings.knowledge.dim}),
    }
    if given := [flag for flag, is_given in unused.items() if is_given]:
        advice = ", and give the width of the rows by --dim" if given == ["--embed"] else ""
        raise ConfigError(f"{given[0]} has no meaning for --task kg; leave it out{advice}")
    margin = settings.knowledge.margin
    if not (math.isfinite(margin) and margin > 0):
        raise ConfigError(f"--margin {margin} is no distance; give a finite number above 0")
    _require_embed_optimizer(settings.embed)
    require_no_classes(settings, task="kg")


def _require_used_knowledge(settings: TrainSettings) -> None:
    """Raise ConfigError if a setting of knowledge graphs is given, and neither the task nor the model uses it."""
    name, default = settings.model.name, KnowledgeConfig()
    users = {"dim": KNOWLEDGE_MODELS, "margin": MARGIN_MODELS, "norm": ("transe",)}
    for field, models in users.items():
        if getattr(settings.knowledge, field) == getattr(default, field):
            continue
        if settings.task != "kg":
            raise ConfigError(f"--{field} is for --task kg, and the task is {settings.task}; leave it out")
        if name in KNOWLEDGE_MODELS and name not in models:
            raise ConfigError(
                f"--{field} is for {' and '.join(models)}, and the model is {name}; leave it out"
            )


def _require_embed_optimizer(config: EmbedConfig) -> None:
    """Raise ConfigError for an unknown optimizer of embeddings, or a rate that is no positive number."""
    require_choice("embed_optimizer", config.optimizer, get_args(EmbedOptimizer))
    if not 0 < config.learning_rate < float("inf"):
        raise ConfigError(f"--embed-lr is {config.lr}; allowed: a positive number")


def require_model(settings: TrainSettings, dataset: Dataset) -> None:
    """Raise ConfigError if the model of ``settings`` does not fit ``dataset``.

    A model of one node type accepts no other graph. "gine" needs edge features that the loader reads. A model of
    `HOP_MODELS` needs hop columns, and "correct-and-smooth" needs edges and labels of nodes that are classes.
    Embeddings need a model that trains the rows of all nodes.
    """
    name = settings.model.name
    if name in KNOWLEDGE_MODELS:
        raise ConfigError(f"model {name!r} scores triples, and learns them with --task kg; add it")
    embedded_dims(settings, dataset)
    if name in HETERO_MODELS:
        return
    if name in HOP_MODELS:
        column_groups(dataset)
    if dataset.kind == "hetero":
        raise ConfigError(
            f"model {name!r} is for graphs of one node type, and dataset {dataset.name} has "
            f"{len(dataset.node_types)}: {', '.join(dataset.node_types[:10])}; models for several are "
            f"{', '.join(HETERO_MODELS)}"
        )
    if name == CORRECT_AND_SMOOTH:
        learned = "the rows of a table" if settings.table is not None else None
        if settings.task == "link":
            learned = "links"
        elif learned is None and kind_of_task(settings, dataset) not in ("classes", "binary"):
            learned = "other labels"
        if learned is not None:
            raise ConfigError(
                f"model {name!r} improves the probabilities of classes, of which a node has one; the task is to learn "
                f"{learned}: train with --model mlp instead"
            )
        require_edges(dataset)
    (table,) = dataset.edge_tables.values()
    is_read = settings.loader.sampling.edge_features != "none"
    if name == "gine" and (table.feature_rows is None or not is_read):
        lacking = (
            f"dataset {dataset.name} has none"
            if table.feature_rows is None
            else "edge_features='none' leaves them out"
        )
        raise ConfigError(f"model 'gine' needs edge features, and {lacking}; gat works without them")


def embedded_dims(settings: TrainSettings, dataset: Dataset) -> dict[str, int]:
    """Return the widths of the embeddings of ``settings`` by node type; empty without embeddings.

    Raises
    ------
    ConfigError
        There is no such type, a width, the optimizer or its learning rate is not allowed, a width for all types finds
        no type without features, or the model would leave the rows of most nodes untrained.
    """
    config, name, types = settings.embed, settings.model.name, dataset.node_types
    if not config.dims:
        given = [
            flag
            for flag, value in (("lr", config.lr), ("cache", config.cache), ("optimizer", config.optimizer))
            if value not in (None, EmbedConfig().optimizer)
        ]
        if given:
            raise ConfigError(
                f"--embed-{given[0]} is for embeddings, and --embed names none; give --embed DIM"
            )
        return {}
    _require_embed_optimizer(config)
    if name in HOP_MODELS or (name in MLP_MODELS and settings.task != "link"):
        reads = "stored hop columns" if name in HOP_MODELS else "no neighbours"
        raise ConfigError(
            f"--embed trains the rows of the nodes in a batch, and model {name!r} reads {reads}: the rows of all nodes "
            "but the training nodes would stay as they began; take a model that samples neighbours, or leave it out"
        )
    plain = [each for each in types if not dataset.node_tables[each].feature_dim]
    dims: dict[str, int] = {}
    for given_type, width in config.dims.items():
        if width < 1:
            raise ConfigError(f"--embed {given_type}={width}: a row has 1 number or more")
        if given_type == EVERY_TYPE:
            every = plain or (types if len(types) == 1 else ())
            if not every:
                raise ConfigError(
                    f"--embed {width} is for types without features, and all types of {dataset.name} have features; "
                    f"name the types that get embeddings beside their features, such as --embed {types[0]}={width}"
                )
            dims |= {each: width for each in every if each not in config.dims}
        elif given_type not in types:
            raise ConfigError(
                f"--embed names the type {given_type!r}, which {dataset.name} does not have; "
                f"{near_advice(given_type, types)}"
            )
        else:
            dims[given_type] = width
    return {each: dims[each] for each in types if each in dims}


def column_groups(dataset: Dataset) -> tuple[ColumnGroup, ...]:
    """Return the groups of hop columns of ``dataset``, from left to right; columns of labels are the last ones.

    Raises
    ------
    ConfigError
        The dataset has no hop columns, or columns of codes, which are no amounts.
    FormatError
        The groups that the dataset names are not its feature columns.
    """
    hops = dataset.metadata.get(HOPS_ENTRY)
    if hops is None:
        raise ConfigError(
            f"dataset {dataset.name} has no hop columns, and models {' and '.join(HOP_MODELS)} read nothing else; make "
            f"them with `gloader propagate {dataset.location} {dataset.location}-hops`, and train on the result"
        )
    try:
        groups = tuple((str(name), int(start), int(stop)) for name, start, stop in hops["columns"])
    except (KeyError, TypeError, ValueError):
        groups = ()
    ends = [0, *(stop for _, _, stop in groups)]
    is_whole = groups and ends[-1] == dataset.feature_dim
    if not is_whole or any(
        not end == start < stop for end, (_, start, stop) in zip(ends, groups, strict=False)
    ):
        raise FormatError(
            f"{dataset.location} names the hop columns {hops!r}, and has {dataset.feature_dim} columns; its record is "
            "damaged, or by another version: make it again with `gloader propagate`"
        )
    encoders = dataset.encoders(dataset.labelled.name)
    if encoders is not None and encoders.indexes:
        names = ", ".join(repr(each.column) for each in encoders.indexes.values())
        raise ConfigError(
            f"the features of {dataset.name} hold codes of categories ({names}, as: index), which models "
            f"{' and '.join(HOP_MODELS)} would read as amounts; prepare them with as: category"
        )
    return groups
