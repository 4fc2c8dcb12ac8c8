"""The flags of a training run, and the configuration that they make."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from gloader.cli.flags import Fanout, Size, SizeOrShare
from gloader.config import Features, LoaderConfig, ModelConfig, ModelName, OptimConfig, Policy
from gloader.errors import ConfigError

_LOADER, _MODEL, _OPTIM = LoaderConfig(), ModelConfig(), OptimConfig()


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The network."""

    model: ModelName = _MODEL.name
    """Which network; mlp ignores the edges."""
    fanout: Fanout = (15, 10, 5)
    """Neighbours sampled per node, one number per layer, the hop next to the seeds first; -1 takes all."""
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
    """Training nodes per step."""
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
    """Where things are held and computed. None of these changes a batch."""

    memory_budget: Size = None
    """Host memory that the run may use, such as 8GB or 512MiB; half of what is free when not given."""
    features: Features = _LOADER.features
    """Where the features live: ram, ssd, or ram where they fit the budget (auto)."""
    cache: SizeOrShare = None
    """Host cache of features that live on the SSD: a size, or a share of the features such as 10%."""
    policy: Policy = _LOADER.policy
    """What the host cache keeps."""
    device: str = "auto"
    """auto, cpu or cuda:0."""
    threads: int | None = None
    """Sampling threads; as many as this process has cores when not given."""

    def loader_config(
        self, *, fanout: tuple[int, ...], batch_size: int, seed: int, feature_bytes: int
    ) -> LoaderConfig:
        """Return the loader's configuration for a dataset with ``feature_bytes`` of features."""
        cache = self.cache
        return LoaderConfig(
            fanouts=fanout,
            batch_size=_positive("batch-size", batch_size),
            memory_budget_bytes=self.memory_budget,
            features=self.features,
            policy=self.policy,
            cache_bytes=int(cache * feature_bytes) if isinstance(cache, float) else cache,
            threads=None if self.threads is None else _positive("threads", self.threads),
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


def _share(flag: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"--{flag} is {value}; it must be at least 0 and below 1")
    return value
