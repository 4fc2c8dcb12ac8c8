"""Settings of a loader and of a training run, as frozen dataclasses, each explained once.

Each field is a setting. On the command line, cyclopts turns a field into a flag, and the text below the field into its
help. `LoaderSettings.of` builds the settings from the keywords of ``gloader.Loader``. ``config.yaml`` records them. All
other code reads them from here. A group is one of the dataclasses in `LoaderSettings`, such as `MemorySettings`.

- The features lie in memory or on the SSD. The host cache is memory for rows of features on the SSD.
- A superbatch is a number of batches that are sampled and planned together.
- The spill disk holds temporary files. A pack is such a file: the rows of a superbatch that no cache holds, in batch
  order.
- Fan-outs are the numbers of neighbours to sample per node, one for each hop. A relation is an edge type.
- A rank is one of several processes that train together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypedDict, get_args, get_type_hints

from gloader.core.fanouts import FanoutsLike, checked_fanouts, checked_hops, plain_fanouts
from gloader.core.flag_parameter import Group, Parameter
from gloader.core.flag_values import (
    NOT_A_FLAG,
    SWITCH,
    AnyFanout,
    Count,
    Duration,
    Names,
    Price,
    Share,
    Size,
    SizeOrAuto,
    SizeOrShare,
    parse_share,
    parse_size_or_auto,
    require_choice,
)
from gloader.core.near_names import require_keywords
from gloader.core.object_traffic import ObjectPrice
from gloader.core.row_settings import EmbedConfig as EmbedConfig  # noqa: PLC0414 - exported from here
from gloader.core.row_settings import KnowledgeConfig as KnowledgeConfig  # noqa: PLC0414
from gloader.core.units import parse_bytes
from gloader.errors import ConfigError
from gloader.types import CollectiveFanouts, Fanouts, RelationFanouts

if TYPE_CHECKING:
    from typing import Unpack

    import torch

    from gloader.ssd_store.os_io import StrPath

# The allowed values of settings. The field with each type explains the values.
TripleModel = Literal["complex", "distmult", "transe", "rotate"]
NodeModel = Literal[
    "graphsage", "gcn", "gat", "gine", "mlp", "rsage", "rgcn", "rgat", "sign", "sgc", "correct-and-smooth"
]
ModelName = Literal[NodeModel, TripleModel]
HETERO_MODELS: Final = ("rsage", "rgcn", "rgat")  # models for graphs with several node types
HOP_MODELS: Final = ("sign", "sgc")  # models for the datasets that `gloader propagate` makes
HOPS_ENTRY: Final = "hops"  # metadata entry of these datasets: their groups of hop columns
CORRECT_AND_SMOOTH: Final = "correct-and-smooth"  # an MLP whose outputs are improved by labels of neighbours
MLP_MODELS: Final = ("mlp", CORRECT_AND_SMOOTH)  # models whose network reads no neighbours
KNOWLEDGE_MODELS: Final = ("complex", "distmult", "transe", "rotate")  # models of triples, for the task "kg"
Layout = Literal["layered", "merged"]
Features = Literal["auto", "ram", "ssd"]
TopologyHome = Literal["auto", "ram", "sweep", "direct"]
OnlineName = Literal["lru", "fifo", "clock", "sieve", "s3fifo"]  # policies that decide batch by batch
Policy = Literal["belady", "static", OnlineName, "none"]
IoStrategy = Literal["auto", "direct", "staged", "packed"]
IoMode = Literal["auto", "uring", "threads", "buffered"]
Verify = Literal["read", "open", "off"]
DeviceHotness = Literal["presampled", "vip", "degree"]
SamplingDevice = Literal["auto", "cpu", "cuda"]
Exclude = Literal["none", "self", "reverse"]
TaskName = Literal["node", "classes", "binary", "multilabel", "regression", "link", "kg"]
LINK_TASKS: Final = ("link", "kg")  # tasks that learn the rows of a link table
Balance = Literal["none", "classes"]
Decoder = Literal["dot", "mlp"]
EdgeFeatures = Literal["auto", "none"]
TimeStrategy = Literal["none", "uniform", "last"]
TimeBound = Literal["<", "<="]
ExchangeMode = Literal["auto", "never", "always"]
Sharing = Literal["auto", "shared", "private"]
Autocast = Literal["none", "bf16"]
GradCompress = Literal["none", "bf16", "powersgd"]


# The group of flags that --help lists first, because most runs need them.
FIRST: Final = Parameter(group=Group("Start with these", sort_key=-1))
Budget = Annotated[Size, FIRST]


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: Annotated[ModelName, Parameter(name="model"), FIRST] = "graphsage"
    """The network. gat and gine use edge features; mlp ignores edges; correct-and-smooth is an mlp whose predictions
    are then improved by the training labels of near nodes. Graphs with several node types take rsage, rgcn or rgat.
    sign and sgc take what `gloader propagate` makes. --task kg takes complex, distmult, transe or rotate."""
    hidden: Annotated[Count, FIRST] = 256
    """Width of the hidden layers."""
    dropout: Share = 0.5
    """Share of activations dropped during training."""
    batch_norm: bool = False
    """Normalise the hidden activations."""
    residual: bool = False
    """Add each layer's result to its input, with layer norm and a feed-forward part; for models of one node type."""
    heads: Count = 4
    """Attention heads of gat and rgat."""


@Parameter(name="*", group=Group("Optimisation", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The optimisation of one run."""

    epochs: Annotated[Count, FIRST] = 10
    """Passes over the training nodes."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Update rule."""
    lr: float = 0.003
    """Learning rate."""
    weight_decay: float = 0.0
    """Weight decay."""
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    """Change of the learning rate over the epochs."""
    patience: int = 0
    """Epochs without a better validation result before training stops; 0 never stops early."""
    eval_every: Count = 1
    """Epochs between evaluations."""
    class_weights: str = "none"
    """Weights of node classes in the loss: one number for each class, as in 1,5, or n / (classes * nodes of the class)
    over the training nodes (balanced). One number is that of class 1 of a binary task."""
    balance: Balance = "none"
    """Training nodes of an epoch: each once (none), or equally many draws from every class, so that nodes of rare
    classes repeat (classes)."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0 saves after each epoch only."""


@Parameter(name="*", group=Group("Training step", sort_key=3))
@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """The cost and the precision of a step; never changes the content of a batch."""

    autocast: Autocast = "none"
    """Precision of training steps: float32 (none), or bf16 where torch considers it safe. Evaluation uses float32."""
    compile: Annotated[bool, SWITCH] = False
    """Run the network through torch.compile: the start is slower, steps of large networks are faster."""
    grad_compress: GradCompress = "none"
    """Compression of the gradients that several ranks exchange; powersgd sends low-rank matrices after a tenth of the
    steps."""


@Parameter(name="*", group=Group("Sampling", sort_key=4))
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The content of a batch. Together with the dataset, the seeds and the world size, these alone decide it."""

    fanouts: Annotated[AnyFanout, FIRST] = (15, 10, 5)
    """Neighbours sampled per node: one number per layer, first the hop next to the seeds; -1 takes all neighbours. With
    several relations, each relation has these numbers; author:writes:paper=25,20;*=10,5 sets them by relation, with *
    for all others; collective:25,20 samples from all relations together."""
    batch_size: Annotated[Count, FIRST] = 1024
    """Training nodes per step, for each rank."""
    shuffle: Annotated[bool, NOT_A_FLAG] = True
    """Draw a new seed order for every epoch, as in ``torch.utils.data.DataLoader``."""
    drop_last: Annotated[bool, NOT_A_FLAG] = False
    """Leave out the last batch if it is smaller, as in ``torch.utils.data.DataLoader``."""
    seed: int = 0
    """Key of the seed order, the sampling and the initial weights."""
    seed_blocks: Count = 1
    """Neighbouring training nodes that stay together in a batch. A larger number reads fewer rows and makes batches
    less random."""
    seed_window: Count = 1
    """Steps whose training nodes are shuffled together, if seed blocks are larger than 1. Then the rows of a window are
    a few ranges of node ids, which are read at once, and a batch is a random choice of them."""
    sampler: str = "neighbor"
    """neighbor, weighted, labor, ladies or fastgcn; options may follow, as in labor:iterations=1."""
    layout: Layout = "layered"
    """Nodes that draw neighbours in a hop: all nodes found so far (layered, as in DGL), or the nodes of the last hop
    (merged, as in PyG, with fewer rows to read). neighbor and weighted have both."""
    edge_features: EdgeFeatures = "auto"
    """Edge features of the dataset: in every block (auto), or left out (none)."""
    time_strategy: TimeStrategy = "none"
    """Edges that a node may take if the seeds have query times: all edges (none), a random choice of earlier edges
    (uniform), or the latest earlier edges (last)."""
    time_bound: TimeBound | None = None
    """An edge is earlier than a seed if its time is before the seed's time (<), or at most the seed's time (<=).
    Default: <, and <= for the rows of a task table."""
    time_window: int | None = None
    """Greatest age of an edge, in seconds before the seed's time. Default: no limit."""

    @property
    def hops(self) -> tuple[int, ...]:
        """The fan-outs of a graph of one type.

        Raises
        ------
        ConfigError
            The fan-outs differ by relation, or count over all relations together.
        """
        return checked_hops(self.fanouts)

    @property
    def is_temporal(self) -> bool:
        """True if seeds have query times."""
        return self.time_strategy != "none"

    @property
    def bound(self) -> TimeBound:
        """``time_bound``, or the default for seeds that are no rows of a task table."""
        return "<" if self.time_bound is None else self.time_bound


@Parameter(name="*", group=Group("Memory", sort_key=5))
@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The rows and edges in memory and on the spill disk; never changes the content of a batch."""

    memory_budget: Budget = None
    """Host memory for all ranks of a machine together, such as 8GB. Python and torch themselves come on top. Default:
    half of the free memory."""
    features: Annotated[Features, FIRST] = "auto"
    """Place of the features: memory (ram), SSD (ssd), or memory if they fit the budget (auto)."""
    topology: TopologyHome = "auto"
    """Place of the edges: memory (ram), SSD with reads in sweeps that serve many batches (sweep), or SSD with reads by
    each batch (direct). auto takes ram if the edges fit half of the budget, else sweep."""
    cache: SizeOrShare = None
    """Host cache for features on the SSD: a size, or a share of the features such as 10%. Default: the rest of the
    budget."""
    policy: Policy = "belady"
    """Policy of the host cache. belady plans from the sampled future, static holds the nodes with the most out-edges,
    none has no cache; the others decide batch by batch."""
    spill_budget: Size = None
    """Disk space for packs, such as 20GB, or 0 for none. Default: a share of the free space."""
    spill_dir: Path | None = None
    """Folder for packs. Default: $GLOADER_SPILL_DIR, or the system's temporary folder."""
    superbatch: Count | None = None
    """Most batches planned together. Default: the number that fits the budget."""
    superbatch_reset: bool = False
    """Empty the host cache before every superbatch, as Ginex does, for comparisons."""
    buffers: Count | None = None
    """Most batches whose rows are in memory on their way to the loop, for each rank. Default: the number predicted to
    be fastest, and more if memory is idle."""

    def cache_bytes(self, feature_bytes: int) -> int | None:
        """Return the bytes of the host cache for ``feature_bytes`` of features; None means the rest of the budget."""
        return int(self.cache * feature_bytes) if isinstance(self.cache, float) else self.cache


@Parameter(name="*", group=Group("Reading", sort_key=6))
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings:
    """The reads of uncached rows from the SSD."""

    io_strategy: IoStrategy = "auto"
    """Reads of uncached rows: by each batch (direct), in one pass into memory (staged), in one pass into a pack on the
    disk (packed), or the fastest of these for each superbatch (auto)."""
    max_gap: Size = None
    """Longest gap between two needed rows that one read covers, or 0 for none. Default: the gap that suits the disk."""
    io: Annotated[IoMode, NOT_A_FLAG] = "auto"
    """System calls for reads, see `gloader.ssd_store.FeatureStore.open`."""
    verify: Annotated[Verify, NOT_A_FLAG] = "read"
    """Moment at which rows are compared with their checksums, see `gloader.ssd_store.FeatureStore.open`."""


@Parameter(name="*", group=Group("Device", sort_key=7))
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The device that receives the batches, and its rows."""

    # The flag --device is another setting: the device that trains the network. It may be "auto". Each rank has one GPU.
    device: Annotated[str, NOT_A_FLAG] = "cpu"
    """Device that receives the batches."""
    device_cache: SizeOrAuto = "auto"
    """Rows held on a GPU for the whole run: a size such as 4GB, 0 for none, or all that the GPU's memory allows next to
    a training step (auto). On the CPU, auto holds none, and a size, which is for tests, comes on top of the budget.
    Ranks that share a loader all hold the same rows."""
    device_hotness: Annotated[DeviceHotness, NOT_A_FLAG] = "presampled"
    """Choice of these rows: "presampled" counts accesses in sampled batches, "vip" computes their probability, "degree"
    takes the nodes with the most out-edges."""
    sampling_device: SamplingDevice = "auto"
    """Device that samples; the batches are the same on each. cuda holds the edges on the GPU that computes. auto does
    so if three quarters of the room, or room for all rows, is left for rows and the GPU samples no slower than the
    CPU."""


@Parameter(name="*", group=Group("Several ranks", sort_key=8))
@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """The part of each step that this process loads, and the ranks that share its loader."""

    sharing: Annotated[Sharing, Parameter(name="loader")] = "auto"
    """Loaders of several ranks: one for all ranks of a machine (shared, which auto takes), or one for each rank
    (private)."""
    rank: Annotated[int | None, NOT_A_FLAG] = None
    """Number of this process among the processes that share each step. Default: its rank in the process group."""
    world_size: Annotated[int | None, NOT_A_FLAG] = None
    """Processes that share each step. Default: the size of the process group."""
    exchange: ExchangeMode = "auto"
    """Several machines, features on the SSD: each machine reads a range of rows for all machines (always), each reads
    its own rows (never), or the way predicted to be faster for each superbatch (auto)."""


@Parameter(name="*", group=Group("Stages", sort_key=9))
@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """The stages of a loader: the background threads that prepare the batches."""

    threads: Count | None = None
    """Sampling threads. Default: one for each core of this process."""
    stall_timeout_s: Annotated[Duration, Parameter(name="stall-timeout")] = 300.0
    """Seconds after which a stage that makes no progress ends the run."""
    epochs: Annotated[int | None, NOT_A_FLAG] = None
    """Epochs after which no batch is prepared. Default: the stages work ahead without end."""
    trace: Annotated[bool, NOT_A_FLAG] = False
    """Record the work of each stage, for `Loader.write_trace`."""

    @property
    def sampler_threads(self) -> int:
        """``threads``, or the cores that this process may use."""
        return len(os.sched_getaffinity(0)) if self.threads is None else self.threads


@Parameter(name="*", group=Group("Links", sort_key=10))
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """The link task (--task link); others ignore these settings, except for the metric, and --task kg the tables."""

    edges: str = "train"
    """Link table to train on; --batch-size counts its edges."""
    negatives: str | None = None
    """Negative pairs for each edge: uniform:5 (other destinations; uniform:5,strict takes none that is an edge),
    binary:1.0 (random pairs), in_batch (the destinations of the other edges), table:NAME, or none if the table has
    labels of its own. --task kg takes uniform:256,shared: 256 entities for a batch, as wrong heads and tails of all its
    triples. Default: uniform:1, and uniform:256,shared for --task kg."""
    exclude: Exclude = "none"
    """Edges without messages while they are predicted: no edges (none), the predicted edges (self), or these and their
    reverse edges (reverse)."""
    exclude_duplicates: bool = False
    """Exclude edges parallel to an excluded edge, too."""
    decoder: Decoder = "dot"
    """Score of a pair of nodes: the dot product of their embeddings (dot), or a network on their product (mlp)."""
    decoder_layers: Count = 3
    """Layers of an mlp decoder."""
    metric: str = "auto"
    """Metric of validation and test. Nodes: acc, auroc, ap, f1, f1-macro, mae, rmse or r2; auto takes acc for classes,
    auroc for binary and multilabel, rmse for regression. Links: hits@K, mrr or auc; auto takes mrr if each edge has its
    own negatives, hits@50 for one table of negatives, and auc if no negatives are given. Knowledge graphs: mrr."""
    eval_edges: Names | None = None
    """Link tables for validation and test. Default: valid,test, if the dataset has them."""

    def negatives_of(self, task: str) -> str:
        """Return ``negatives``, or the default of ``task``, "link" or "kg"."""
        return self.negatives or ("uniform:256,shared" if task == "kg" else "uniform:1")


@Parameter(name="*", group=Group("Object store", sort_key=13))
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """The transfer of a dataset at a URL (s3://, gs://, az://, https://, file://); never changes a batch."""

    mirror_dir: Path | None = None
    """Folder for mirrors of datasets at URLs, on an SSD. Default: mirrors below $GLOADER_HOME."""
    mirror_budget: Size = None
    """Disk space of the mirror, such as 40GB; other parts of the dataset are fetched again when they are needed.
    Default: the whole dataset."""
    object_limit: str | None = None
    """Highest load on the store, such as 500MB/s,3000req/s. Default: no limit."""
    object_requests: Count = 64
    """Most requests in progress at the same time."""
    object_price: Price | None = None
    """Prices of the store, such as 0.0004/1000req,0.09/GB. The cost of the traffic is then shown."""
    object_redirects: bool = False
    """Follow redirects of a web server to another host. The record and the checksums of that host are then trusted."""

    @property
    def price(self) -> ObjectPrice | None:
        """The prices, or None without prices. Raises ConfigError if they are malformed."""
        return None if self.object_price is None else ObjectPrice.parse(self.object_price)

    @classmethod
    def of(
        cls,
        *,
        mirror_dir: StrPath | None = None,
        mirror_budget: str | int | None = None,
        object_limit: str | None = None,
        object_requests: int = 64,
        object_price: str | None = None,
        object_redirects: bool = False,
    ) -> Self:
        """Return the settings from keywords of `gloader.Dataset.open`; sizes may be text.

        Raises
        ------
        ConfigError
            A value cannot be parsed, or is not allowed.
        """
        settings = cls(
            mirror_dir=None if mirror_dir is None else Path(mirror_dir),
            mirror_budget=None if mirror_budget is None else parse_bytes(mirror_budget),
            object_limit=object_limit,
            object_requests=object_requests,
            object_price=object_price,
            object_redirects=object_redirects,
        )
        if object_requests < 1:
            raise ConfigError(f"object_requests is {object_requests}; it must be at least 1")
        _ = settings.price  # raises if the prices are malformed
        return settings

    def keywords(self) -> dict[str, Any]:
        """Return these settings as keywords of `gloader.Dataset.open`."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def recorded(self) -> dict[str, Any]:
        """Return the section ``objects`` of ``config.yaml``, as plain values."""
        return {name: _recorded(value) for name, value in self.keywords().items()}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Every setting of a loader: the keywords of `gloader.Loader`, in groups."""

    sampling: SamplingSettings = SamplingSettings()
    memory: MemorySettings = MemorySettings()
    reading: ReadingSettings = ReadingSettings()
    device: DeviceSettings = DeviceSettings()
    ranks: RankSettings = RankSettings()
    stages: StageSettings = StageSettings()

    @classmethod
    def of(cls, **keywords: Unpack[LoaderKeywords]) -> Self:
        """Return the settings from keywords of `gloader.Loader`; sizes may be text.

        Raises
        ------
        TypeError
            There is no such keyword.
        ConfigError
            A size cannot be parsed.
        """
        given: dict[str, Any] = {**keywords}
        require_keywords("Loader", given, loader_defaults())
        values = {name: _read_named(name, value) for name, value in given.items()}
        groups = {
            group: type(default)(
                **{part.name: values[part.name] for part in fields(default) if part.name in values}
            )
            for group, default in _GROUPS.items()
        }
        return cls(**groups)

    def changed(self, **keywords: Unpack[LoaderKeywords]) -> Self:
        """Return these settings with other values for some keywords. Raises as `of`."""
        merged = self.keywords()
        merged.update(keywords)
        return self.of(**merged)

    def keywords(self) -> LoaderKeywords:
        """Return these settings as keywords of `gloader.Loader`."""
        groups = [getattr(self, group) for group in _GROUPS]
        values: Any = {part.name: getattr(group, part.name) for group in groups for part in fields(group)}
        return values

    def check(self) -> None:
        """Raise ConfigError for the first invalid setting. Settings that are missing here are checked at their use."""
        require_choice("features", self.memory.features, get_args(Features))
        require_choice("topology", self.memory.topology, get_args(TopologyHome))
        require_choice("policy", self.memory.policy, get_args(Policy))
        require_choice("io_strategy", self.reading.io_strategy, get_args(IoStrategy))
        require_choice("exchange", self.ranks.exchange, get_args(ExchangeMode))
        require_choice("sampling_device", self.device.sampling_device, get_args(SamplingDevice))
        for name, value, least in (
            ("batch_size", self.sampling.batch_size, 1),
            ("seed_blocks", self.sampling.seed_blocks, 1),
            ("seed_window", self.sampling.seed_window, 1),
            ("threads", self.stages.threads, 1),
            ("superbatch", self.memory.superbatch, 1),
            ("buffers", self.memory.buffers, 1),
            ("epochs", self.stages.epochs, 0),
        ):
            count: object = value  # a caller may pass another type than the annotated one
            if count is not None and not isinstance(count, Integral):
                raise ConfigError(f"{name} is {count!r}; it must be a whole number")
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        self._check_times()
        seed: object = self.sampling.seed
        if not isinstance(seed, Integral):
            raise ConfigError(f"seed is {seed!r}; it must be an integer")

    def _check_times(self) -> None:
        """Raise ConfigError for an invalid setting of the query times."""
        sampling = self.sampling
        require_choice("time_strategy", sampling.time_strategy, get_args(TimeStrategy))
        require_choice("time_bound", sampling.bound, get_args(TimeBound))
        require_window(sampling.time_window)
        if sampling.time_window is not None and not sampling.is_temporal:
            raise ConfigError(
                f"time_window is {sampling.time_window}, and time_strategy='none' takes edges of all times; use "
                "time_strategy='uniform' or 'last', or leave out time_window"
            )

    def recorded(self) -> dict[str, Any]:
        """Return the section ``loader`` of ``config.yaml``: all settings that have a flag, as plain values."""
        return {
            RECORDED_AS.get(name, name): _recorded(value)
            for name, value in self.keywords().items()
            if NOT_A_FLAG not in getattr(_types()[name], "__metadata__", ())  # the arguments of Annotated
        }


# The default of each group, by the group's field in `LoaderSettings`.
_GROUPS: Final[Mapping[str, Any]] = {part.name: part.default for part in fields(LoaderSettings)}

# The keywords whose key in config.yaml has another name. The keys are those of earlier versions, whose runs can be
# resumed.
RECORDED_AS: Final[Mapping[str, str]] = {
    "memory_budget": "memory_budget_bytes",
    "cache": "cache_bytes",
    "spill_budget": "spill_budget_bytes",
    "max_gap": "max_gap_bytes",
    "sharing": "loader",
}


def require_window(window: object) -> None:
    """Raise ConfigError unless ``window`` is None or a number of seconds from 1 to 2**63 - 1. Pure."""
    if window is None:
        return
    if isinstance(window, bool) or not isinstance(window, Integral):
        raise ConfigError(f"time_window is {window!r}; it must be a whole number of seconds")
    if not 1 <= int(window) < 2**63:
        raise ConfigError(f"time_window is {window}; it must be at least 1 second, and below 2**63")


class OptionalKeywords(TypedDict, total=False):
    """Keywords of `gloader.Loader` with a default, for type checkers. They are the fields of the groups."""

    shuffle: bool
    drop_last: bool
    seed: int
    seed_blocks: int
    seed_window: int
    sampler: str
    layout: Layout
    edge_features: EdgeFeatures
    time_strategy: TimeStrategy
    time_bound: TimeBound | None
    time_window: int | None
    memory_budget: str | int | None
    features: Features
    topology: TopologyHome
    cache: str | int | float | None
    policy: Policy
    spill_budget: str | int | None
    spill_dir: StrPath | None
    superbatch: int | None
    superbatch_reset: bool
    buffers: int | None
    io_strategy: IoStrategy
    max_gap: str | int | None
    io: IoMode
    verify: Verify
    device: str | torch.device
    device_cache: str | int
    device_hotness: DeviceHotness
    sampling_device: SamplingDevice
    sharing: Sharing
    rank: int | None
    world_size: int | None
    exchange: ExchangeMode
    threads: int | None
    stall_timeout_s: float
    epochs: int | None
    trace: bool


class LoaderKeywords(OptionalKeywords, total=False):
    """All keywords of the settings. `gloader.Loader` requires the two keywords below."""

    fanouts: FanoutsLike
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Every setting of a training run that ``config.yaml`` records."""

    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    step: StepConfig = StepConfig()
    loader: LoaderSettings = LoaderSettings()
    task: TaskName = "node"
    # Its metric is that of every task: the flag was first for links, and recorded settings have it there.
    links: LinkConfig = LinkConfig()
    knowledge: KnowledgeConfig = KnowledgeConfig()  # noqa: RUF009 - frozen
    embed: EmbedConfig = EmbedConfig()  # noqa: RUF009 - frozen
    # The task whose task tables have the rows to learn, such as "churn" for the table "churn.train"; None learns nodes.
    table: str | None = None
    # Number of networks to train, which differ only in their seed: run k uses the loader's seed + k.
    runs: int = 1


@cache
def loader_defaults() -> dict[str, Any]:
    """Return the default of every field of `LoaderSettings`, by the keyword of `gloader.Loader`. Pure."""
    return {part.name: part.default for group in _GROUPS.values() for part in fields(group)}


@cache
def _types() -> dict[str, Any]:
    """Return the annotation of every field of the groups, by name, with the arguments of Annotated."""
    hints = (get_type_hints(type(group), include_extras=True) for group in _GROUPS.values())
    return {name: hint for group in hints for name, hint in group.items()}


def _recorded(value: Any) -> Any:
    """Return a setting's value as a plain value for ``config.yaml``."""
    if isinstance(value, RelationFanouts | CollectiveFanouts):
        return plain_fanouts(value)
    return str(value) if isinstance(value, Path) else value


def _as_fanouts(value: Any) -> Fanouts:
    """Return fan-outs unchanged if they are by relation or collective, and otherwise as a tuple."""
    return value if isinstance(value, RelationFanouts | CollectiveFanouts) else tuple(value)


def _read_named(name: str, value: Any) -> Any:
    """Return ``value`` as `_read` does. A ConfigError names the keyword."""
    try:
        return _read(name, value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _read(name: str, value: Any) -> Any:
    """Return a keyword's ``value`` in the type of the field ``name``: sizes and shares may be text."""
    hint = _types()[name]
    if value is None:
        return None
    if hint in (Size, Budget):
        return parse_bytes(value)
    if hint == SizeOrShare:
        return value if isinstance(value, float) else parse_share(value)
    if hint == SizeOrAuto:
        return parse_size_or_auto(value)
    if name == "fanouts":
        # Lists are not checked here, because the samplers check them.
        return checked_fanouts(value) if isinstance(value, str | Mapping) else _as_fanouts(value)
    if name == "spill_dir":
        return Path(value)
    return str(value) if name == "device" else value
