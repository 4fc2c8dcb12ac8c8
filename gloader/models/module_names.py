"""Names of types and relations as names of modules, as PyG's `to_hetero` forms them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

if TYPE_CHECKING:
    from gloader.types import Relation

_TAKEN: Final = frozenset(dir(nn.ModuleDict)) | frozenset(dir(nn.ParameterDict))


def key_of(name: str | Relation) -> str:
    """Return the key of a type or relation in a dict of modules. Pure.

    As PyG forms them where it can: a relation's parts are joined by two underscores; torch takes no dot and no name of
    its own methods.
    """
    key = name if isinstance(name, str) else "__".join(name)
    return f"<{key}>" if key in _TAKEN else key.replace(".", "#")
