"""Checks of how a step is computed."""

from __future__ import annotations

from typing import Any, get_args

from gloader.config import Autocast, GradCompress, StepConfig
from gloader.errors import ConfigError


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
