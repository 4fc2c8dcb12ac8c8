"""One training step: a forward pass, a backward pass, and the optimiser's update of the weights.

`Trainer` makes one `TrainStep` per run and calls `TrainStep.take` for each batch. `Adam` updates the weights. A node
type without features has learned rows: one trained vector per node. Their gradients are sparse: a step holds gradients
only of the rows in its batch. A type with an embedding has trained rows in files instead, which come with the batch
(`gloader.training.embeddings`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from gloader.config import Balance
from gloader.core.flag_values import require_choice
from gloader.errors import ConfigError
from gloader.training.embeddings import NO_EMBEDDINGS
from gloader.training.process import seed_torch
from gloader.training.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gloader.config import OptimConfig, StepConfig, TrainSettings
    from gloader.training.embeddings import RunEmbeddings
    from gloader.training.group import RankGroup
    from gloader.training.model_spec import AnyNetwork
    from gloader.training.task import Task
    from gloader.types import Delivered


# The defaults of torch.optim.Adam. Updates agree with torch's bit for bit.
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
# Bytes of a sparse gradient's rows that are updated together on the CPU, see `Adam._update_rows`.
_PIECE_BYTES = 1 << 20
_STATE_NAMES = ("steps", "means", "squares")  # entries of the optimiser's saved state
_SCHEDULES = ("constant", "cosine", "step")
_OPTIMIZERS = ("adam", "adamw")


class Adam:
    """The updates of ``torch.optim.Adam`` or ``torch.optim.AdamW``, bit for bit. Fused on a GPU.

    torch's optimiser classes import its compiler at the first call, which takes 70 MB of every run's memory and 0.8 s.
    This class calls the functions below torch's classes, which do not import it. A sparse gradient is applied as in
    ``torch.optim.SparseAdam``: rows outside the gradient keep their values and moments, without decay.

    Parameters
    ----------
    parameters : the trained parameters
    lr : learning rate; assignable between steps
    weight_decay : this factor times the weights is added to the gradient; with ``decoupled``, this factor times ``lr``
        times the weights is subtracted from the weights
    decoupled : True for AdamW
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float, decoupled: bool
    ) -> None:
        self.lr = lr
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        self._update = adamw if decoupled else adam
        self._steps = [torch.zeros(()) for _ in self._parameters]
        self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]

    def zero_grad(self) -> None:
        """Drop the gradients and their memory."""
        # Gradients are dropped, not zeroed: an evaluation between two epochs uses their memory.
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter with a gradient."""
        # A parameter without a gradient was not used by the batch. It keeps its moments, as in torch.
        grads = [
            (i, grad) for i, parameter in enumerate(self._parameters) if (grad := parameter.grad) is not None
        ]
        dense = [(i, grad) for i, grad in grads if not grad.is_sparse]
        chosen = [i for i, _ in dense]
        is_fused = bool(chosen) and all(_is_fused(self._parameters[i]) for i in chosen)
        if is_fused:
            # The fused kernel reads the step counts, so they must be on the device.
            for i in chosen:
                self._steps[i] = self._steps[i].to(self._parameters[i].device)
        # The empty list would hold the maxima of AMSGrad, which is off.
        self._update(
            [self._parameters[i] for i in chosen],
            [grad for _, grad in dense],
            [self._means[i] for i in chosen],
            [self._squares[i] for i in chosen],
            [],
            [self._steps[i] for i in chosen],
            fused=is_fused or None,
            amsgrad=False,
            beta1=_BETA1,
            beta2=_BETA2,
            lr=self.lr,
            weight_decay=self._weight_decay,
            eps=_EPS,
            maximize=False,
        )
        for i, grad in grads:
            if grad.is_sparse:
                # `_update_rows` reads the step count on the host. On the device, each read would wait for the device.
                self._steps[i] = self._steps[i].cpu() + 1
                self._update_rows(i, *_distinct_rows(grad))

    def _update_rows(self, number: int, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Update a parameter's rows ``ids`` (n,), unique, with their gradients (n, width), as torch does."""
        # The update needs eight temporary arrays of the gradient's size. Large arrays on the CPU are fresh memory: its
        # first use takes several times as long as the arithmetic. So the rows are updated in small pieces, for which
        # the allocator reuses memory.
        step = int(self._steps[number])
        size = self.lr * math.sqrt(1 - _BETA2**step) / (1 - _BETA1**step)
        rows_per_piece = len(ids) if values.is_cuda else max(_PIECE_BYTES // max(values[:1].nbytes, 1), 1)
        tables = (self._parameters[number], self._means[number], self._squares[number])
        for first in range(0, len(ids), rows_per_piece):
            piece, grad = ids[first : first + rows_per_piece], values[first : first + rows_per_piece]
            parameter, mean, square = (table.index_select(0, piece) for table in tables)
            # The terms are in torch's order, so that every bit is equal.
            mean = grad.sub(mean).mul_(1 - _BETA1).add_(mean)
            square = grad.pow(2).sub_(square).mul_(1 - _BETA2).add_(square)
            tables[1].index_copy_(0, piece, mean)
            tables[2].index_copy_(0, piece, square)
            change = mean.div_(square.sqrt_().add_(_EPS)).mul_(-size)
            tables[0].index_copy_(0, piece, parameter.add_(change))

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        """Return step counts, means and squares, one tensor per parameter; shares the optimiser's tensors."""
        return {"steps": self._steps, "means": self._means, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the tensors of `state_dict`.

        Raises
        ------
        ValueError
            The state belongs to an optimiser for other parameters.
        """
        tensors = self.state_dict()
        if set(state) != set(_STATE_NAMES) or any(
            [tensor.shape for tensor in state[name]] != [tensor.shape for tensor in tensors[name]]
            for name in _STATE_NAMES
        ):
            raise ValueError("the optimiser's state has other parameters than the model")
        # The values are copied into the existing tensors, whose device and dtype stay.
        for name in _STATE_NAMES:
            for tensor, saved in zip(tensors[name], state[name], strict=True):
                tensor.copy_(saved)


def _is_fused(parameter: torch.Tensor) -> bool:
    """Return whether one fused kernel can update ``parameter`` together with the others. True on a GPU."""
    return parameter.is_cuda


def _distinct_rows(grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sparse gradient's rows (n,), unique, and their gradients (n, width)."""
    ids, values = grad._indices()[0], grad._values()  # noqa: SLF001 - the public names need a coalesced tensor
    ordered = ids.sort().values
    # Usually the rows of a batch are distinct. Then no sum over repeats is needed, which takes five times as long.
    if bool((ordered[1:] != ordered[:-1]).all()):
        return ids, values
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()


def learning_rate(config: OptimConfig, epoch: int) -> float:
    """Return the learning rate of ``epoch``, counted from 0. Pure.

    "cosine" falls from ``lr`` towards 0 over the epochs. "step" divides by 10 after half of the epochs and again after
    three quarters.
    """
    progress = epoch / config.epochs
    match config.lr_schedule:
        case "constant":
            return config.lr
        case "cosine":
            return config.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "step":
            return config.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))


def build_optimizer(config: OptimConfig, parameters: Iterable[torch.nn.Parameter]) -> Adam:
    """Return the optimiser named in ``config``."""
    return Adam(
        parameters, lr=config.lr, weight_decay=config.weight_decay, decoupled=config.optimizer == "adamw"
    )


def check_optim(config: OptimConfig) -> None:
    """Raise ConfigError naming the first invalid setting of ``config``."""
    if config.optimizer not in _OPTIMIZERS:
        raise ConfigError(f"optimizer {config.optimizer!r} is not known; allowed: {', '.join(_OPTIMIZERS)}")
    if config.lr_schedule not in _SCHEDULES:
        raise ConfigError(
            f"lr_schedule {config.lr_schedule!r} is not known; allowed: {', '.join(_SCHEDULES)}"
        )
    require_choice("balance", config.balance, get_args(Balance))
    for name, least in (("epochs", 1), ("eval_every", 1), ("patience", 0), ("checkpoint_every", 0)):
        if (value := getattr(config, name)) < least:
            raise ConfigError(f"{name} is {value}; allowed: {least} or more")
    if not (config.lr > 0 and math.isfinite(config.lr)):
        raise ConfigError(f"lr is {config.lr}; allowed: a positive number")
    if not (config.weight_decay >= 0 and math.isfinite(config.weight_decay)):
        raise ConfigError(f"weight_decay is {config.weight_decay}; allowed: 0 or a positive number")


# torch's generators are seeded with an address: the seed, the epoch and the batch. The initial weights have this number
# in place of an epoch.
_INIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """Settings that determine a network's training, besides its batches."""

    task: Task
    optim: OptimConfig
    step: StepConfig
    seed: int  # seed of the initial weights and of dropout
    run_id: str  # id of the run that owns the checkpoints
    # Settings that a resumed run must have in common with the checkpoint's run, see `run_folder.decisive_settings`.
    settings: Mapping[str, Any]


def new_step(
    task: Task, settings: TrainSettings, device: torch.device, group: RankGroup, *, num_steps: int
) -> TrainStep:
    """Return a new network's training steps, equal to those of `gloader.training.train.fit`, without checkpoints.

    Parameters
    ----------
    task : the run's task
    settings : the run's settings
    device : the network's device
    group : the ranks that train together
    num_steps : steps in the run

    Raises
    ------
    ConfigError
        The network reads embeddings, whose rows have tables in the folder of a run.
    """
    if task.spec.encoder.schema.embedded:
        raise ConfigError(
            "the run trains embeddings (--embed), and only gloader train opens their tables: measure a run of it with "
            "--trace"
        )
    recipe = TrainRecipe(
        task=task,
        optim=settings.optim,
        step=settings.step,
        seed=settings.loader.sampling.seed,
        run_id="",
        settings={},
    )
    model = first_network(recipe, device)
    model.train()
    return TrainStep(model, recipe, group, num_steps=num_steps)


def first_network(recipe: TrainRecipe, device: torch.device) -> AnyNetwork:
    """Return the network with its initial weights, which depend only on the seed. Seeds torch's generators."""
    seed_torch(recipe.seed, _INIT, device=device)
    return recipe.task.spec.build().to(device)


class TrainStep:
    """A run's training steps. Shares the parameters of ``model``; collective with several ranks.

    Seeds torch's generators: use it in `private_randomness`.

    Parameters
    ----------
    model : the network, on its device
    recipe : precision, optimisation and seed
    group : the ranks that train together
    num_steps : steps in the run
    embeddings : trained rows of nodes in the batches, each with an optimizer of its own
    """

    def __init__(
        self,
        model: AnyNetwork,
        recipe: TrainRecipe,
        group: RankGroup,
        *,
        num_steps: int,
        embeddings: RunEmbeddings = NO_EMBEDDINGS,
    ) -> None:
        self._group = group
        self._embeddings = embeddings
        self._seed = recipe.seed
        self._device = next(model.parameters()).device
        self._objective = recipe.task.objective
        with group.lost_rank_errors():
            self._replica = Replica(model, recipe.step, group, num_steps=num_steps, objective=self._objective)
        self.optimizer = build_optimizer(recipe.optim, model.parameters())

    def take(
        self, batch: Delivered, *, is_last: bool, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Learn from ``batch``; return the network's outputs and their mean loss, a scalar. Collective.

        Parameters
        ----------
        batch : a batch on the device
        is_last : whether the batch ends the epoch, equal on every rank
        rows : the network's row for each label of ``batch``; None if they are in the same order
        """
        # The rank is a part of the seed's address, so that each rank has its own dropout. A single process has no rank.
        rank = () if self._group.is_alone else (self._group.rank,)
        seed_torch(self._seed, batch.id.epoch, batch.id.index, *rank, device=self._device)
        outputs, loss = self._replica.forward(batch, rows)
        # Without this, the gradients would be added to the previous step's.
        self.optimizer.zero_grad()
        self._replica.backward(loss, num_seeds=self._objective.count(batch), is_last=is_last)
        self.optimizer.step()
        self._embeddings.step(batch, num_ranks=self._group.world_size)
        return outputs, loss
