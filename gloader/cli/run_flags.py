"""The flags of a training run, and the configuration that they make."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from gloader.cli.flags import Fanout, Size, SizeOrShare
from gloader.config import (
    Features,
    IoStrategy,
    Layout,
    LoaderConfig,
    ModelConfig,
    ModelName,
    OptimConfig,
    Policy,
)
from gloader.errors import ConfigError
from gloader.training.step_config import Autocast, GradCompress, LoaderSharing, StepConfig

_LOADER, _MODEL, _OPTIM, _STEP = LoaderConfig(), ModelConfig(), OptimConfig(), StepConfig()


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The network."""

    model: ModelName = _MODEL.name
    """Which network; mlp ignores the edges."""
    fanout: Fanout = (15, 10, 5)
    """Neighbours sampled per node, one number per layer, the hop next to the seeds first; -1 takes all."""
    sampler: str = _LOADER.sampler
    """neighbor, weighted, labor, ladies or fastgcn; options may follow, as in labor:iterations=1."""
    layout: Layout = _LOADER.layout
    """Who draws in a hop: every node found so far (layered, as in DGL), or those found last (merged, as in PyG)."""
    hidden: int = _MODEL.hidden
    """Width of the hidden layers."""
    dropout: float = _MODEL.dropout
    """Share of activations dropped while training."""
    batch_norm: bool = _MODEL.batch_norm
    """Normalise the hidden activations."""
    heads: int = _MODEL.heads
    """Attention heads of gat."""

    def config(self) -> ModelConfig:
        """Return the model's configuration."""
        return ModelConfig(
            name=self.model,
            hidden=_positive("hidden", self.hidden),
            dropout=_share("dropout", self.dropout),
            batch_norm=self.batch_norm,
            heads=_positive("heads", self.heads),
        )


@Parameter(name="*", group=Group("Optimisation", sort_key=2))
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimFlags:
    """The optimisation."""

    epochs: int = _OPTIM.epochs
    """Passes over the training nodes."""
    batch_size: int = _LOADER.batch_size
    """Training nodes per step; of each rank where there are several."""
    seed_blocks: int = _LOADER.seed_blocks
    """Neighbouring training nodes that stay together in a batch: fewer rows to read, and batches less random."""
    optimizer: Literal["adam", "adamw"] = _OPTIM.optimizer
    """Update rule."""
    lr: float = _OPTIM.lr
    """Learning rate."""
    weight_decay: float = _OPTIM.weight_decay
    """Weight decay."""
    lr_schedule: Literal["constant", "cosine", "step"] = _OPTIM.lr_schedule
    """How the learning rate changes over the epochs."""
    patience: int = _OPTIM.patience
    """Evaluations without a better validation accuracy before stopping; 0 never stops early."""
    eval_every: int = _OPTIM.eval_every
    """Epochs between evaluations."""
    checkpoint_every: int = _OPTIM.checkpoint_every
    """Steps between checkpoints within an epoch; 0 saves after each epoch only."""

    def config(self) -> OptimConfig:
        """Return the optimisation's configuration."""
        return OptimConfig(
            epochs=_positive("epochs", self.epochs),
            optimizer=self.optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
            lr_schedule=self.lr_schedule,
            patience=self.patience,
            eval_every=_positive("eval-every", self.eval_every),
            checkpoint_every=self.checkpoint_every,
        )


@Parameter(name="*", group=Group("Memory and machine", sort_key=3))
@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFlags:
    """Where things are held and computed, and by how many. None of these changes what is in a batch."""

    memory_budget: Size = None
    """Host memory that the run, with all its ranks, may use, such as 8GB; half of what is free when not given."""
    features: Features = _LOADER.features
    """Where the features live: ram, ssd, or ram where they fit the budget (auto)."""
    cache: SizeOrShare = None
    """Host cache of features that live on the SSD: a size, or a share of the features such as 10%."""
    policy: Policy = _LOADER.policy
    """What the host cache keeps; belady looks ahead and keeps what is needed soonest."""
    spill_budget: Size = None
    """Disk that packs may use, such as 20GB; a share of what is free when not given, 0 for none."""
    spill_dir: Path | None = None
    """Folder for them; the system's temporary folder when not given."""
    io_strategy: IoStrategy = _LOADER.io_strategy
    """How rows that are not cached are read: by the cost model (auto), or always the same way."""
    max_gap: Size = None
    """Longest hole between two wanted rows that one read goes over; what suits the device when not given."""
    superbatch: int | None = None
    """Most batches that are planned together; what the budgets allow when not given."""
    superbatch_reset: bool = _LOADER.superbatch_reset
    """Begin every superbatch with an empty host cache, as Ginex does."""
    device: str = "auto"
    """auto, cpu or cuda:0; with several ranks auto gives each its own GPU."""
    device_cache: str = str(_LOADER.device_cache)
    """Rows that are held on a GPU: a size such as 4GB, 0 for none, or what its memory allows beside a training step."""
    loader: LoaderSharing = "auto"
    """Several ranks: one loader for those of a machine (shared; auto does that), or one for each of them (private)."""
    autocast: Autocast = _STEP.autocast
    """Precision of the training steps: float32 (none), or bf16 where torch deems it safe."""
    compile: Annotated[bool, Parameter(negative=())] = _STEP.compile
    """Run the network through torch.compile: slower to start, and faster steps of large networks."""
    grad_compress: GradCompress = _STEP.grad_compress
    """Several ranks: what they send of their gradients; powersgd sends low-rank matrices after a tenth of the steps."""
    threads: int | None = None
    """Sampling threads; as many as this process has cores when not given."""
    stall_timeout: float = _LOADER.stall_timeout_s
    """Seconds after which a stage that makes no progress ends the run."""

    def stall_timeout_s(self) -> float:
        """Return the stall timeout; ConfigError where it is none."""
        return _duration("stall-timeout", self.stall_timeout)

    def step_config(self) -> StepConfig:
        """Return how a step is computed."""
        return StepConfig(autocast=self.autocast, compile=self.compile, grad_compress=self.grad_compress)

    def loader_config(
        self, *, model: ModelFlags, optim: OptimFlags, seed: int, feature_bytes: int
    ) -> LoaderConfig:
        """Return the loader's configuration for a dataset with ``feature_bytes`` of features."""
        cache = self.cache
        return LoaderConfig(
            sampler=model.sampler,
            layout=model.layout,
            fanouts=model.fanout,
            batch_size=_positive("batch-size", optim.batch_size),
            seed_blocks=_positive("seed-blocks", optim.seed_blocks),
            memory_budget_bytes=self.memory_budget,
            features=self.features,
            policy=self.policy,
            cache_bytes=int(cache * feature_bytes) if isinstance(cache, float) else cache,
            spill_budget_bytes=self.spill_budget,
            spill_dir=None if self.spill_dir is None else str(self.spill_dir),
            io_strategy=self.io_strategy,
            max_gap_bytes=self.max_gap,
            superbatch=None if self.superbatch is None else _positive("superbatch", self.superbatch),
            superbatch_reset=self.superbatch_reset,
            device_cache=self.device_cache,
            threads=None if self.threads is None else _positive("threads", self.threads),
            stall_timeout_s=self.stall_timeout_s(),
            seed=seed,
        )


@Parameter(name="*", group=Group("Run", sort_key=0))
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """What is run and where the results go."""

    dataset: str
    """A prepared folder, or any source of `gloader prepare`, which is then prepared once under $GLOADER_HOME."""
    config: Path | None = None
    """A YAML recipe whose keys are these flags; flags on the command line win over it."""
    out: Path | None = None
    """Folder of the results; runs/DATASET-MODEL-DATE-TIME when not given."""
    seed: int = 0
    """Key of the order, the sampling and the initial weights."""
    runs: int = 1
    """Repetitions with seeds seed, seed+1, ...; the result is their mean and standard deviation."""
    resume: Annotated[bool, Parameter(negative=())] = False
    """Continue the interrupted run in --out."""
    tensorboard: bool = False
    """Write TensorBoard events into --out."""
    compare_mlp: bool = False
    """Train an MLP on the same features as well, to see what the edges are worth."""
    explain: Annotated[bool, Parameter(negative=())] = False
    """Say what is held where and why before training, and what was predicted and measured after it."""
    trace: Annotated[bool, Parameter(negative=())] = False
    """Write what every stage did when to trace.json, for ui.perfetto.dev: in --out, or here without --out."""

    def validate(self) -> None:
        """Refuse what does not go together.

        Raises
        ------
        ConfigError
            A flag has a value that is not allowed, or needs another one.
        """
        _positive("runs", self.runs)
        if self.resume and self.out is None:
            raise ConfigError("--resume continues the run in a folder; name the folder with --out")


def _positive(flag: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"--{flag} is {value}; it must be 1 or more")
    return value


def _duration(flag: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"--{flag} is {value}; it must be a number of seconds above 0")
    return value


def _share(flag: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"--{flag} is {value}; it must be at least 0 and below 1")
    return value
