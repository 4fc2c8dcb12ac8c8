"""A rank's copy of the network: its precision, compilation, and gradient average over the ranks.

Ranks are the processes that train together. A training step calls `Replica.forward` and `Replica.backward`; the
optimizer's step follows elsewhere. torch's DistributedDataParallel (DDP) averages the gradients of all dense
parameters. Learned rows, the trained features of nodes without features, have sparse gradients; `average_rows` averages
only the rows that the step used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.nn import functional

from gloader.config import Autocast, GradCompress
from gloader.errors import ConfigError
from gloader.models import encoder_of
from gloader.training.objectives import NODE_CLASSES
from gloader.types import LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.nn.parallel import DistributedDataParallel

    from gloader.config import StepConfig
    from gloader.training.group import RankGroup
    from gloader.training.model_spec import AnyNetwork
    from gloader.training.objectives import Objective
    from gloader.types import Delivered


def average_rows(tables: Sequence[torch.Tensor]) -> None:
    """Replace each table's sparse gradient by the mean over the ranks, equal on all ranks. Collective.

    Each rank receives all other ranks' rows. Sums are in rank order.

    Parameters
    ----------
    tables : (N_t, F) tables with a sparse gradient, which may be empty
    """
    for table in tables:
        grad = table.grad
        if grad is None:
            raise AssertionError("each table has a gradient in every step")
        grad = grad.coalesce()
        ids, rows = _gathered(grad.indices()[0], grad.values())
        world_size = torch.distributed.get_world_size()
        table.grad = torch.sparse_coo_tensor(
            ids.unsqueeze(0), rows / world_size, grad.shape, check_invariants=False
        ).coalesce()


def _gathered(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids (M,) and rows (M, F) of all ranks, in rank order. Collective: all ranks must call it."""
    from gloader.distributed.agree import collective_device

    place = collective_device()
    # A collective needs equally many rows from each rank, so all are padded to the maximum over the ranks.
    count = torch.tensor([len(ids)], device=place)
    counts = [int(number) for number in _all(count)]
    most = max(counts)
    all_ids = _all(functional.pad(ids.to(place), (0, most - len(ids))))
    all_rows = _all(functional.pad(rows.to(place), (0, 0, 0, most - len(rows))))
    picked = [(a[:n], b[:n]) for a, b, n in zip(all_ids, all_rows, counts, strict=True)]
    return (
        torch.cat([part for part, _ in picked]).to(ids.device),
        torch.cat([part for _, part in picked]).to(rows.device),
    )


def _all(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's ``tensor``, in rank order. All have one shape. Collective."""
    received = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(received, tensor.contiguous())
    return received


# Rank of the matrices that PowerSGD sends instead of a gradient, as in the paper (Vogels et al., NeurIPS'19).
_POWERSGD_RANK = 2
_POWERSGD_START = 0.1  # share of the steps with full gradients, as torch recommends


class Replica:
    """A rank's copy of ``model``. Shares its parameters; collective with several ranks.

    Parameters
    ----------
    model : the network, on its device
    config : precision, compilation and compression of gradients
    group : the ranks that train together
    num_steps : steps in the run
    objective : the loss
    """

    def __init__(
        self,
        model: AnyNetwork,
        config: StepConfig,
        group: RankGroup,
        *,
        num_steps: int,
        objective: Objective = NODE_CLASSES,
    ) -> None:
        self._objective = objective
        self._autocast = config.autocast
        self._group = group
        self._tables = tuple(_learned_rows(model).values())
        # DDP is inside the compiled module, so that torch splits the compiled graph at DDP's groups of gradients.
        network: torch.nn.Module = model
        if not group.is_alone:
            network = _distribute(model, config, num_steps=num_steps)
        self._network: Callable[..., torch.Tensor] = (
            torch.compile(network, dynamic=True) if config.compile else network
        )
        # torch compiles at the first batch, perhaps minutes later. A missing compiler is reported now instead.
        if config.compile and next(model.parameters()).device.type == "cpu":
            _require_compiler()

    def forward(
        self, batch: Delivered, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the network's float32 outputs, such as logits (B, classes), and their mean float32 loss.

        ``rows`` is as in `logits_and_loss`.
        """
        return logits_and_loss(self._network, batch, self._autocast, self._objective, rows)

    def backward(self, loss: torch.Tensor, *, num_seeds: int, is_last: bool) -> None:
        """Compute gradients of the mean loss over all ranks' seeds, or over the other items of the objective.

        Gradients are averaged over the ranks. Ranks may have different numbers of seeds in an epoch's last step, and of
        known labels in every step. Then each rank is weighted by its number.

        Parameters
        ----------
        loss : mean loss over this rank's seeds
        num_seeds : this rank's number of seeds or other items, see `Objective.count`
        is_last : whether the step ends the epoch, equal on every rank
        """
        # DDP takes the mean over ranks. It is the mean over seeds if all ranks have equally many. Otherwise
        # each loss is weighted by its share of the seeds.
        if (is_last or self._objective.is_uneven) and not self._group.is_alone:
            total = self._group.sum({"seeds": num_seeds})["seeds"]
            loss = loss * (num_seeds * self._group.world_size / max(total, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        if not self._group.is_alone:
            average_rows(self._tables)


def logits_and_loss(
    network: Callable[..., torch.Tensor],
    batch: Delivered,
    autocast: Autocast,
    objective: Objective = NODE_CLASSES,
    rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (B, classes), or pair scores (P,), and their mean loss, both float32.

    Parameters
    ----------
    network : maps features and blocks, or a batch with several types or links, to logits
    batch : the batch, on the network's device
    autocast : precision of the layers; the loss is computed in float32
    objective : the loss
    rows : (B,) the network's row for each label of the batch; None if they are in the same order. A seed that was drawn
        several times has one row of the network, and a label for each draw
    """
    labels = batch.labels if isinstance(batch, LinkBatch) else batch.y
    with torch.autocast(labels.device.type, dtype=torch.bfloat16, enabled=autocast == "bf16"):
        if isinstance(batch, ReadyBatch):
            ages = () if batch.row_age is None else (batch.row_age,)
            logits = network(batch.x, batch.blocks, *ages)
        else:
            logits = network(batch)
    # The softmax and the sums of the loss lose too much precision in bfloat16.
    logits = logits.float()
    if rows is not None:
        logits = logits[rows]
    return logits, objective.loss(logits, batch)


def _distribute(model: AnyNetwork, config: StepConfig, *, num_steps: int) -> DistributedDataParallel:
    """Return ``model`` within DDP, with the compression of gradients that ``config`` names."""
    # This import is only for several ranks: it loads torch's compiler, 70 MB and a second.
    from torch.nn.parallel import DistributedDataParallel

    if names := list(_learned_rows(model)):
        # DDP would send full tables, although a step uses few of their rows: see `average_rows`.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)  # type: ignore[no-untyped-call]  # noqa: SLF001 - no public name
    network = DistributedDataParallel(model)
    match config.grad_compress:
        case "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            # torch refuses this hook by its name without NCCL, although gloo sums bf16 as well.
            is_cuda = next(model.parameters()).device.type == "cuda"
            by_any_name = lambda state, bucket: bf16_compress_hook(state, bucket)  # noqa: E731, PLW0108
            network.register_comm_hook(None, bf16_compress_hook if is_cuda else by_any_name)
        case "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=_POWERSGD_RANK,
                start_powerSGD_iter=max(2, int(_POWERSGD_START * num_steps)),
            )
            network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case "none":
            pass
    return network


def _learned_rows(model: AnyNetwork) -> dict[str, torch.Tensor]:
    """Return the tables of learned rows by their parameter names in the model."""
    tables = set(encoder_of(model).embs.values())
    return {name: parameter for name, parameter in model.named_parameters() if parameter in tables}


def _require_compiler() -> None:
    """Raise ConfigError if torch.compile would find no C++ compiler for the CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ConfigError(
            "--compile needs a C++ compiler on the CPU; install g++, or leave it out"
        ) from error


def check_step(config: StepConfig, *, world_size: int) -> None:
    """Raise ConfigError naming the first invalid setting of ``config``. Pure."""
    choices: tuple[tuple[str, Any], ...] = (("autocast", Autocast), ("grad_compress", GradCompress))
    for name, allowed in choices:
        if (value := getattr(config, name)) not in get_args(allowed):
            raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(get_args(allowed))}")
    if config.grad_compress != "none" and world_size == 1:
        raise ConfigError(
            f"grad_compress is {config.grad_compress!r}, and one rank sends no gradients; start several with "
            "torchrun --nproc-per-node, or leave it out"
        )
