"""How a step is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from gloader.errors import ConfigError

Autocast = Literal["none", "bf16"]
GradCompress = Literal["none", "bf16", "powersgd"]
LoaderSharing = Literal["auto", "shared", "private"]  # as `gloader.distributed.Sharing`, without torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What a step costs and how it rounds; never what is in a batch."""

    autocast: Autocast = "none"  # precision of the forward and backward pass; evaluation is in float32
    compile: bool = False  # run the network through torch.compile
    grad_compress: GradCompress = "none"  # what several ranks send of their gradients


def check_step(config: StepConfig, *, world_size: int) -> None:
    """Raise ConfigError naming the first setting of ``config`` that is not allowed. Pure."""
    choices: tuple[tuple[str, Any], ...] = (("autocast", Autocast), ("grad_compress", GradCompress))
    for name, allowed in choices:
        if (value := getattr(config, name)) not in get_args(allowed):
            raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(get_args(allowed))}")
    if config.grad_compress != "none" and world_size == 1:
        raise ConfigError(
            f"grad_compress is {config.grad_compress!r}, and one rank sends no gradients; start several with "
            "torchrun --nproc-per-node, or leave it out"
        )
