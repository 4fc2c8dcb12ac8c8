"""DGL's names: its data columns, its relations, and one error for every name that `gloader.compat.dgl` lacks.

`gloader.compat.dgl` replaces DGL in a script's imports. If the script uses a DGL name that does not exist in it,
`missing` makes the error, with advice from `gloader.bridges.migrate.advice`.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gloader.bridges.migrate.advice import FROM_DGL, GRAPH_ADVICE, advice_of
from gloader.core.near_names import nearest
from gloader.errors import ConfigError, DglFeatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gloader.types import Relation


# DGL's column names for ids and types of nodes and edges.
NID: Final = "_ID"
EID: Final = "_ID"
NTYPE: Final = "_TYPE"
ETYPE: Final = "_TYPE"

# DGL's names for the only node type and the only relation.
NODE: Final = "_N"
RELATION: Final[Relation] = (NODE, "_E", NODE)

# The columns of a dataset's features, labels and edge weights, named as in DGL's examples.
FEATURE: Final = "feat"
LABEL: Final = "label"
WEIGHT: Final = "weight"


_K = TypeVar("_K")


def only(names: Iterable[_K]) -> _K:
    """Return the only entry in ``names``.

    Raises
    ------
    ConfigError
        There is not exactly one.
    """
    entries = list(names)
    if len(entries) != 1:
        raise ConfigError(
            f"there are {len(entries)} types or relations: name one of {', '.join(map(repr, entries))}"
        )
    return entries[0]


def relation_of(relations: Iterable[Relation], name: Any) -> Relation:
    """Return the relation for ``name``, which is a triple or the relation's own name. None means the only relation.

    Raises
    ------
    ConfigError
        No relation or several relations have this name.
    """
    known = list(relations)
    if name is None:
        return only(known)
    found = [
        each for each in known if name in (each, each[1]) or (isinstance(name, list) and tuple(name) == each)
    ]
    if len(found) != 1:
        problem = (
            "is no relation"
            if not found
            else "is the name of several relations; give one of them as a triple"
        )
        raise ConfigError(f"{name!r} {problem}: there are {', '.join(map(repr, known))}")
    return found[0]


_COMPAT: Final = "gloader.compat."  # prefix of the modules that replace DGL's modules


def missing(name: str, advice: str | None = None) -> DglFeatureError:
    """Return the error for the missing DGL name ``name``. Pure.

    Parameters
    ----------
    name : a name such as "dgl.sparse.spmatrix"
    advice : the replacement; None means the text from `gloader.bridges.migrate.advice.advice_of`
    """
    return DglFeatureError(f"gloader.compat.dgl has no {name}: {advice or advice_of(name)} (see {FROM_DGL})")


def missing_of_graph(owner: str, name: str, there: Iterable[str] = ()) -> Exception:
    """Return the error for the attribute ``name``, which the graph or block called ``owner`` lacks. Pure.

    Parameters
    ----------
    owner, name : the object's and the attribute's name
    there : the object's attributes, from which to suggest a similar name
    """
    # Python and torch probe for such names, and continue without them.
    if name.startswith("_"):
        return AttributeError(name)
    near = (
        None
        if name in GRAPH_ADVICE
        else nearest(name, (known for known in there if known[0] != "_"), cutoff=0.8)
    )
    return missing(f"{owner}.{name}", f"did you mean {near!r}?" if near else GRAPH_ADVICE.get(name))


def missing_from(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` for the module that replaces DGL's ``module``. It raises `missing` for each name."""

    def getattr_of_module(name: str) -> Any:
        # Python itself looks up such names, and continues without them.
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing(f"{module}.{name}")

    return getattr_of_module


class _Submodules(MetaPathFinder):
    """Raises gloader's error for ``from gloader.compat.dgl.data import ...``, instead of Python's "no module"."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> None:  # noqa: ARG002
        if fullname.startswith(f"{_COMPAT}dgl."):
            raise missing(fullname.removeprefix(_COMPAT))


def answer_for_submodules() -> None:
    """Let ``import gloader.compat.dgl.NAME`` raise gloader's error if there is no such module."""
    # The finder is last in order: searches for existing modules never reach it.
    sys.meta_path.append(_Submodules())
