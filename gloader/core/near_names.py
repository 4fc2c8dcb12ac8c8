"""Names that a user wrote and that are not there: the nearest one that is, for keywords and attributes alike."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_SLIP: Final = 0.9  # likeness of a name with a letter too many

# What other libraries call it.
_ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "num_neighbors": ("fanouts",),
    "num_neighbours": ("fanouts",),
    "input_nodes": ("seeds",),
    "indices": ("seeds",),
    "num_workers": ("threads",),
    "neg_sampling": ("negatives",),
    "negative_sampler": ("negatives",),
    "edge_label_index": ("edges",),
    "graph_sampler": ("fanouts",),
    # The same the other way round, in PyG's words and in DGL's.
    "fanout": ("num_neighbors", "graph_sampler"),
    "fanouts": ("num_neighbors", "graph_sampler"),
    "seeds": ("input_nodes", "indices"),
    "edges": ("edge_label_index", "indices"),
    "negatives": ("neg_sampling", "graph_sampler"),
}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the one of ``known`` that ``name`` probably means; None: none is near. Pure."""
    names = list(known)
    meant = [other for other in _ELSEWHERE.get(name, ()) if other in names]
    # A slip of the pen comes first: the name itself is there then.
    slips = get_close_matches(name, names, n=1, cutoff=max(cutoff, _SLIP))
    near = slips or meant or get_close_matches(name, names, n=1, cutoff=cutoff)
    return near[0] if near else None


def near_advice(name: str, known: Collection[str]) -> str:
    """Return what to write in place of ``name``: the nearest of ``known``, or all of them. Pure."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"allowed: {', '.join(known)}"


def require_keywords(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError, as Python does, where a keyword of ``owner`` is not among those ``known``. Pure."""
    for name in given:
        if name not in known:
            raise TypeError(
                f"{owner}() got an unexpected keyword argument {name!r}; {near_advice(name, known)}"
            )


def missing_attribute(
    owner: str, name: str, there: Iterable[str], advice: Mapping[str, str]
) -> AttributeError:
    """Return the error of an attribute that is not there. Pure.

    Parameters
    ----------
    owner : what has none, with an article: "a GraphData"
    name : of the attribute
    there : the attributes that it has
    advice : what takes the place of some that are not there, by name
    """
    if name in advice:
        return AttributeError(f"{owner} has no {name!r}: {advice[name]}")
    near = (
        None
        if name.startswith("_")
        else nearest(name, (known for known in there if known[0] != "_"), cutoff=0.7)
    )
    return AttributeError(f"{owner} has no {name!r}" + (f"; did you mean {near!r}?" if near else ""))
