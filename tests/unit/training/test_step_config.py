from __future__ import annotations

import pytest

from gloader.config import StepConfig
from gloader.errors import ConfigError
from gloader.training.step_config import check_step


@pytest.mark.parametrize(
    ("config", "world_size", "message"),
    [
        ({"autocast": "fp8"}, 2, "autocast is 'fp8'; allowed: none, bf16"),
        ({"grad_compress": "zip"}, 2, "grad_compress is 'zip'; allowed: none, bf16, powersgd"),
        ({"grad_compress": "bf16"}, 1, "one rank sends no gradients; start several"),
    ],
)
def test_settings_that_are_not_allowed_are_named(config, world_size, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_step(StepConfig(**config), world_size=world_size)


def test_everything_else_is_allowed() -> None:
    check_step(StepConfig(), world_size=1)
    check_step(StepConfig(autocast="bf16", compile=True, grad_compress="powersgd"), world_size=2)
