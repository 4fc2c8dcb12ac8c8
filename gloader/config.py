"""Settings of a loader and of a training run, as frozen dataclasses, each explained once.

The command line fills them (cyclopts turns fields into flags and the texts below them into help), ``config.yaml``
records them, ``Loader(**keywords)`` builds them, and all other code reads them from here.
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
from gloader.core.units import parse_bytes
from gloader.errors import ConfigError
from gloader.types import CollectiveFanouts, Fanouts, RelationFanouts

if TYPE_CHECKING:
    from typing import Unpack

    import torch

    from gloader.ssd_store.os_io import StrPath

ModelName = Literal["graphsage", "gcn", "gat", "gine", "mlp", "rsage", "rgcn", "rgat"]
HETERO_MODELS: Final = ("rsage", "rgcn", "rgat")
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
TaskName = Literal["node", "link"]
Decoder = Literal["dot", "mlp"]
EdgeFeatures = Literal["auto", "none"]
TimeStrategy = Literal["none", "uniform", "last"]
TimeBound = Literal["<", "<="]
ExchangeMode = Literal["auto", "never", "always"]
Sharing = Literal["auto", "shared", "private"]
Autocast = Literal["none", "bf16"]
GradCompress = Literal["none", "bf16", "powersgd"]


# The ten flags that most runs need stand first in --help.
FIRST: Final = Parameter(group=Group("Start with these", sort_key=-1))
Budget = Annotated[Size, FIRST]


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: Annotated[ModelName, Parameter(name="model"), FIRST] = "graphsage"
    """Which network; gat and gine look at features of edges, mlp ignores the edges. Graphs of several types take rsage,
    rgcn or rgat."""
    hidden: Annotated[Count, FIRST] = 256
    """Width of the hidden layers."""
    dropout: Share = 0.5
    """Share of activations dropped while training."""
    batch_norm: bool = False
    """Normalise the hidden activations."""
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
    """How the learning rate changes over the epochs."""
    patience: int = 0
    """Epochs without a better result on the validation part before stopping; 0 never stops early."""
    eval_every: Count = 1
    """Epochs between evaluations."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0 saves after each epoch only."""


@Parameter(name="*", group=Group("Training step", sort_key=3))
@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """The cost and the precision of a step; never changes the content of a batch."""

    autocast: Autocast = "none"
    """Precision of the training steps: float32 (none), or bf16 where torch deems it safe; evaluation is in float32."""
    compile: Annotated[bool, SWITCH] = False
    """Run the network through torch.compile: slower to start, and faster steps of large networks."""
    grad_compress: GradCompress = "none"
    """Several ranks: what they send of their gradients; powersgd sends low-rank matrices after a tenth of the steps."""


@Parameter(name="*", group=Group("Sampling", sort_key=4))
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """The content of a batch. Together with the dataset, the seeds and the world size, these alone decide it."""

    fanouts: Annotated[AnyFanout, FIRST] = (15, 10, 5)
    """Neighbours sampled per node, one number per layer, the hop next to the seeds first; -1 takes all. Of a dataset
    with several relations: of each of them; or as in author:writes:paper=25,20;*=10,5 by relation, * for all that are
    not named; or as in collective:25,20 of all relations together."""
    batch_size: Annotated[Count, FIRST] = 1024
    """Training nodes per step; of each rank where there are several."""
    shuffle: Annotated[bool, NOT_A_FLAG] = True
    """Order the seeds anew in every epoch, as in ``torch.utils.data.DataLoader``."""
    drop_last: Annotated[bool, NOT_A_FLAG] = False
    """Leave out the last batch where it is smaller, as in ``torch.utils.data.DataLoader``."""
    seed: int = 0
    """Key of the order, the sampling and the initial weights."""
    seed_blocks: Count = 1
    """Neighbouring training nodes that stay together in a batch: fewer rows to read, and batches less random."""
    sampler: str = "neighbor"
    """neighbor, weighted, labor, ladies or fastgcn; options may follow, as in labor:iterations=1."""
    layout: Layout = "layered"
    """Who draws in a hop: every node found so far (layered, as in DGL), or those found last (merged, as in PyG, with
    fewer rows to read); neighbor and weighted have both."""
    edge_features: EdgeFeatures = "auto"
    """Features of edges, where the dataset has them: in every block (auto), or not (none)."""
    time_strategy: TimeStrategy = "none"
    """Which edges a node may take, where seeds ask at a time: all (none); drawn among those before it (uniform); the
    latest before it (last)."""
    time_bound: TimeBound = "<"
    """Whether an edge of the very second of the seed counts as before it."""
    time_window: int | None = None
    """Seconds before the seed that edges may lie back. Default: any number."""

    @property
    def hops(self) -> tuple[int, ...]:
        """The fan-outs of a graph of one type.

        Raises
        ------
        ConfigError
            They are by relation, or over all relations together.
        """
        return checked_hops(self.fanouts)

    @property
    def is_temporal(self) -> bool:
        """True if seeds have query times."""
        return self.time_strategy != "none"


@Parameter(name="*", group=Group("Memory", sort_key=5))
@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The rows and edges in memory and on the spill disk; never changes the content of a batch."""

    memory_budget: Budget = None
    """Host memory for everything, such as 8GB, of all ranks of a machine together; Python and torch themselves come on
    top. Default: half of what is free."""
    features: Annotated[Features, FIRST] = "auto"
    """Where the features live: ram, ssd, or ram where they fit the budget (auto)."""
    topology: TopologyHome = "auto"
    """Where the edges live: in memory (ram), on the SSD and read in sweeps that serve many batches (sweep) or by each
    batch (direct); ram where they fit half of the budget, else sweep (auto)."""
    cache: SizeOrShare = None
    """Host cache of features that live on the SSD: a size, or a share of the features such as 10%. Default: what the
    budget leaves."""
    policy: Policy = "belady"
    """What the host cache keeps. belady plans it from the sampled future, static holds the nodes with the most
    out-edges, none has no cache; the others decide batch by batch."""
    spill_budget: Size = None
    """Disk that packs may use, such as 20GB, or 0 for none. Default: a share of what is free."""
    spill_dir: Path | None = None
    """Folder for packs. Default: $GLOADER_SPILL_DIR, or the system's temporary folder."""
    superbatch: Count | None = None
    """Batches planned together at most. Default: what fits."""
    superbatch_reset: bool = False
    """Begin every superbatch with an empty host cache, as Ginex does, to compare with."""
    buffers: Count | None = None
    """Batches whose rows may be in memory on their way to the loop, of each rank. Default: what is predicted to be
    fastest, and what idle memory holds."""

    def cache_bytes(self, feature_bytes: int) -> int | None:
        """Return the bytes of the host cache for ``feature_bytes`` of features; None means the rest of the budget."""
        return int(self.cache * feature_bytes) if isinstance(self.cache, float) else self.cache


@Parameter(name="*", group=Group("Reading", sort_key=6))
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings:
    """The reads of uncached rows from the SSD."""

    io_strategy: IoStrategy = "auto"
    """How: by each batch (direct), by one pass into memory (staged), by one pass into a pack on the disk (packed), or
    the fastest of these for each superbatch (auto)."""
    max_gap: Size = None
    """Longest hole between two wanted rows that one read goes over, or 0 for none. Default: what suits the disk."""
    io: Annotated[IoMode, NOT_A_FLAG] = "auto"
    """System calls that read, see `gloader.ssd_store.FeatureStore.open`."""
    verify: Annotated[Verify, NOT_A_FLAG] = "read"
    """When rows are compared with their checksums, see `gloader.ssd_store.FeatureStore.open`."""


@Parameter(name="*", group=Group("Device", sort_key=7))
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """The device that receives the batches, and its rows."""

    # Not the flag --device, which is a network's training device: that may be "auto", and is each rank's own GPU.
    device: Annotated[str, NOT_A_FLAG] = "cpu"
    """Device that the batches are delivered to."""
    device_cache: SizeOrAuto = "auto"
    """Rows held on a GPU for the whole run: a size such as 4GB, 0 for none, or what its memory allows beside a training
    step (auto). On the CPU auto holds none, and a size, which is for tests, is memory beside the budget. Ranks that
    share a loader all hold the same rows."""
    device_hotness: Annotated[DeviceHotness, NOT_A_FLAG] = "presampled"
    """Which rows: "presampled" counts accesses in sampled batches, "vip" computes their probability, "degree" takes
    the nodes with the most out-edges."""
    sampling_device: SamplingDevice = "auto"
    """Where batches are sampled; the same batches everywhere. cuda holds the topology on the GPU that computes; auto
    does so where that leaves three quarters of the room for rows, or all rows, and is not slower than the CPU."""


@Parameter(name="*", group=Group("Several ranks", sort_key=8))
@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """The part of each step that this process loads, and the ranks that share its loader."""

    sharing: Annotated[Sharing, Parameter(name="loader")] = "auto"
    """Several ranks: one loader for those of a machine (shared; auto does that), or one for each of them (private)."""
    rank: Annotated[int | None, NOT_A_FLAG] = None
    """This process among those that share out each step. Default: that of the process group."""
    world_size: Annotated[int | None, NOT_A_FLAG] = None
    """Processes that share out each step. Default: the size of the process group."""
    exchange: ExchangeMode = "auto"
    """Several machines, features on the SSD: each reads a range of the rows for all of them (always), all that it needs
    itself (never), or what is predicted to be faster for each superbatch (auto)."""


@Parameter(name="*", group=Group("Stages", sort_key=9))
@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """The work of the stages behind a loader."""

    threads: Count | None = None
    """Sampling threads. Default: one for each core of this process."""
    stall_timeout_s: Annotated[Duration, Parameter(name="stall-timeout")] = 300.0
    """Seconds after which a stage that makes no progress ends the run."""
    epochs: Annotated[int | None, NOT_A_FLAG] = None
    """Epochs behind which nothing is prepared. Default: the stages work ahead for ever."""
    trace: Annotated[bool, NOT_A_FLAG] = False
    """Record what every stage does, for `Loader.write_trace`."""

    @property
    def sampler_threads(self) -> int:
        """``threads``, or the cores that this process may use."""
        return len(os.sched_getaffinity(0)) if self.threads is None else self.threads


@Parameter(name="*", group=Group("Links", sort_key=10))
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """The task of a run with --task link; other runs do not use it."""

    edges: str = "train"
    """Link table whose edges are trained on; --batch-size counts them."""
    negatives: str = "uniform:1"
    """Wrong edges beside each of them: uniform:5 (other destinations; uniform:5,strict: none that is an edge),
    binary:1.0 (random pairs), in_batch (the destinations of the others), table:NAME, or none, where the table has
    labels of its own."""
    exclude: Exclude = "none"
    """Edges that no message passes over while they are predicted: all may (none), not themselves (self), nor those
    that lead back (reverse)."""
    exclude_duplicates: bool = False
    """Leave out what runs parallel to an excluded edge, too."""
    decoder: Decoder = "dot"
    """What makes a score of the embeddings of two nodes: their dot product, or a network on their product (mlp)."""
    decoder_layers: Count = 3
    """Layers of an mlp decoder."""
    metric: str = "auto"
    """hits@K, mrr or auc; as the given negatives are (auto): mrr for those of each edge, hits@50 for a table of them,
    auc where none are given."""
    eval_edges: Names | None = None
    """Link tables to validate with and to test with. Default: valid,test, where the dataset has them."""


@Parameter(name="*", group=Group("Object store", sort_key=11))
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """The transfer of a dataset at a URL (s3://, gs://, az://, https://, file://); never changes a batch."""

    mirror_dir: Path | None = None
    """Folder for mirrors of datasets at URLs, on an SSD. Default: mirrors below $GLOADER_HOME."""
    mirror_budget: Size = None
    """Disk that the mirror may take, such as 40GB; what does not fit is fetched again when it is needed. Default: all
    of the dataset."""
    object_limit: str | None = None
    """Most that is asked of the store, such as 500MB/s,3000req/s. Default: no limit."""
    object_requests: Count = 64
    """Most requests under way at a time."""
    object_price: Price | None = None
    """What the store asks, such as 0.0004/1000req,0.09/GB: the cost is shown then."""
    object_redirects: bool = False
    """Follow a web server that sends requests on to another host, whose record and checksums are believed then."""

    @property
    def price(self) -> ObjectPrice | None:
        """The prices, or None; ConfigError if they are malformed."""
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
        found = cls(
            mirror_dir=None if mirror_dir is None else Path(mirror_dir),
            mirror_budget=None if mirror_budget is None else parse_bytes(mirror_budget),
            object_limit=object_limit,
            object_requests=object_requests,
            object_price=object_price,
            object_redirects=object_redirects,
        )
        if object_requests < 1:
            raise ConfigError(f"object_requests is {object_requests}; it must be at least 1")
        _ = found.price
        return found

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `gloader.Dataset.open` with these settings."""
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
        values: dict[str, Any] = {**keywords}
        known = loader_defaults()
        require_keywords("Loader", values, known)
        read = {name: _read_named(name, value) for name, value in values.items()}
        groups = {
            group: type(default)(
                **{part.name: read[part.name] for part in fields(default) if part.name in read}
            )
            for group, default in _GROUPS.items()
        }
        return cls(**groups)

    def changed(self, **keywords: Unpack[LoaderKeywords]) -> Self:
        """Return these settings with other values for some keywords; errors as `of`."""
        merged = self.keywords()
        merged.update(keywords)
        return self.of(**merged)

    def keywords(self) -> LoaderKeywords:
        """Return the keywords of `gloader.Loader` with these settings."""
        groups = [getattr(self, group) for group in _GROUPS]
        values: Any = {part.name: getattr(group, part.name) for group in groups for part in fields(group)}
        return values

    def check(self) -> None:
        """Raise ConfigError naming the first invalid setting, among those without a later check."""
        require_choice("features", self.memory.features, get_args(Features))
        require_choice("topology", self.memory.topology, get_args(TopologyHome))
        require_choice("policy", self.memory.policy, get_args(Policy))
        require_choice("io_strategy", self.reading.io_strategy, get_args(IoStrategy))
        require_choice("exchange", self.ranks.exchange, get_args(ExchangeMode))
        require_choice("sampling_device", self.device.sampling_device, get_args(SamplingDevice))
        for name, value, least in (
            ("batch_size", self.sampling.batch_size, 1),
            ("seed_blocks", self.sampling.seed_blocks, 1),
            ("threads", self.stages.threads, 1),
            ("superbatch", self.memory.superbatch, 1),
            ("buffers", self.memory.buffers, 1),
            ("epochs", self.stages.epochs, 0),
        ):
            count: object = value
            if count is not None and not isinstance(count, Integral):
                raise ConfigError(f"{name} is {count!r}; it must be a whole number")
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        self._check_times()
        seed: object = self.sampling.seed
        if not isinstance(seed, Integral):
            raise ConfigError(f"seed is {seed!r}; it must be an integer")

    def _check_times(self) -> None:
        sampling = self.sampling
        require_choice("time_strategy", sampling.time_strategy, get_args(TimeStrategy))
        require_choice("time_bound", sampling.time_bound, get_args(TimeBound))
        require_window(sampling.time_window)
        if sampling.time_window is not None and not sampling.is_temporal:
            raise ConfigError(
                f"time_window is {sampling.time_window}, and time_strategy='none' takes edges of all times; use "
                "time_strategy='uniform' or 'last', or leave the window out"
            )

    def recorded(self) -> dict[str, Any]:
        """Return the section ``loader`` of ``config.yaml``: the settings with a flag, as plain values."""
        return {
            RECORDED_AS.get(name, name): _recorded(value)
            for name, value in self.keywords().items()
            if NOT_A_FLAG not in getattr(_types()[name], "__metadata__", ())
        }


_GROUPS: Final[Mapping[str, Any]] = {part.name: part.default for part in fields(LoaderSettings)}

# Keys of config.yaml that differ from the keywords: files of earlier versions have them, and are resumed.
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
    """Keywords of `gloader.Loader` with a default, for type checkers: the fields of `LoaderSettings`."""

    shuffle: bool
    drop_last: bool
    seed: int
    seed_blocks: int
    sampler: str
    layout: Layout
    edge_features: EdgeFeatures
    time_strategy: TimeStrategy
    time_bound: TimeBound
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
    """All keywords of the settings; `gloader.Loader` requires these two."""

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
    links: LinkConfig = LinkConfig()
    runs: int = 1  # networks that differ in their seed alone: run k uses the loader's seed + k


@cache
def loader_defaults() -> dict[str, Any]:
    """Return the default of every field of `LoaderSettings`, by the keyword of `gloader.Loader`. Pure."""
    return {part.name: part.default for group in _GROUPS.values() for part in fields(group)}


@cache
def _types() -> dict[str, Any]:
    hints = (get_type_hints(type(group), include_extras=True) for group in _GROUPS.values())
    return {name: hint for group in hints for name, hint in group.items()}


def _recorded(value: Any) -> Any:
    if isinstance(value, RelationFanouts | CollectiveFanouts):
        return plain_fanouts(value)
    return str(value) if isinstance(value, Path) else value


def _held_fanouts(value: Any) -> Fanouts:
    return value if isinstance(value, RelationFanouts | CollectiveFanouts) else tuple(value)


def _read_named(name: str, value: Any) -> Any:
    try:
        return _read(name, value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _read(name: str, value: Any) -> Any:
    """Return ``value`` in the type of the field ``name``."""
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
        # Lists are checked by the samplers.
        return checked_fanouts(value) if isinstance(value, str | Mapping) else _held_fanouts(value)
    if name == "spill_dir":
        return Path(value)
    return str(value) if name == "device" else value
