"""The signature of a loader's class: its own parameters, and every setting with its default."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from gloader.config import OptionalKeywords, loader_defaults

if TYPE_CHECKING:
    from collections.abc import Callable


def with_settings(constructor: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a class with this ``constructor``, for ``help`` and editors. Pure.

    The constructor itself takes ``**keywords``, so that no setting is named twice.
    """
    own = inspect.signature(constructor).parameters.values()
    named = [parameter for parameter in own if parameter.kind != inspect.Parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=loader_defaults()[name],
            annotation=hint.__forward_arg__,
        )
        for name, hint in OptionalKeywords.__annotations__.items()
    ]
    return inspect.Signature([*named[1:], *keywords])
