"""Suggestions for misspelled names: the nearest existing keyword, attribute or key.

`near_keywords` and `near_attributes` are decorators. They add "did you mean ...?" to Python's errors about unknown
keywords and attributes. Names from PyG and DGL also lead to gloader's names.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")
K = TypeVar("K", bound=type)
N = TypeVar("N")
V = TypeVar("V")

# Least `difflib` similarity of two names that differ by about one letter: a slip of the fingers.
_SLIP: Final = 0.9

# By a name from another library: gloader's names for the same thing, as suggestions.
_FOREIGN_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "num_neighbors": ("fanouts",),
    "num_neighbours": ("fanouts",),
    "input_nodes": ("seeds",),
    "indices": ("seeds",),
    "num_workers": ("threads",),
    "neg_sampling": ("negatives",),
    "negative_sampler": ("negatives",),
    "edge_label_index": ("edges",),
    "graph_sampler": ("fanouts",),
    "num_features": ("feature_dim",),
    "num_node_features": ("feature_dim",),
    "train_mask": ("train",),
    "train_idx": ("train",),
    "val_mask": ("valid",),
    "val_idx": ("valid",),
    "test_mask": ("test",),
    "test_idx": ("test",),
    "y": ("labels",),
    # The opposite direction, for gloader's adapters with PyG's and DGL's keywords.
    "fanout": ("num_neighbors", "graph_sampler"),
    "fanouts": ("num_neighbors", "graph_sampler"),
    "seeds": ("input_nodes", "indices"),
    "edges": ("edge_label_index", "indices"),
    "negatives": ("neg_sampling", "graph_sampler"),
}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the entry of ``known`` that ``name`` probably means, or None. Pure.

    Parameters
    ----------
    name : the unknown name
    known : the existing names
    cutoff : least similarity, from 0 to 1, as in `difflib.get_close_matches`
    """
    names = list(known)
    translated = [other for other in _FOREIGN_NAMES.get(name, ()) if other in names]
    # A misspelling, which is very close to an existing name, comes before another library's name.
    misspelled = get_close_matches(name, names, n=1, cutoff=max(cutoff, _SLIP))
    near = misspelled or translated or get_close_matches(name, names, n=1, cutoff=cutoff)
    return near[0] if near else None


def near_advice(name: str, known: Collection[str]) -> str:
    """Return advice on replacing ``name``: the nearest of ``known``, or all known names. Pure."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"allowed: {', '.join(known)}"


def require_keywords(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError, like Python, if a keyword for ``owner`` is not in ``known``. Pure."""
    for name in given:
        if name not in known:
            raise TypeError(
                f"{owner}() got an unexpected keyword argument {name!r}; {near_advice(name, known)}"
            )


def near_keywords(target: F) -> F:
    """Make a function or a class suggest the nearest keyword for an unknown keyword."""
    if isinstance(target, type):
        # A class may pass keywords on to its bases as **keywords, so the bases' keywords are accepted too.
        base_signatures = [inspect.signature(base.__init__) for base in target.__mro__[1:]]  # type: ignore[misc]
        inherited = {name for signature in base_signatures for name in signature.parameters}
        target.__init__ = _checked(target.__init__, target.__name__, inherited)  # type: ignore[misc]
        return target
    return cast("F", _checked(target, target.__qualname__))


def near_options(owner: str, also: Iterable[str]) -> Callable[[F], F]:
    """Return a decorator like `near_keywords`.

    Parameters
    ----------
    owner : the function's name in messages
    also : the keywords that the function accepts as ``**keywords``
    """

    def decorate(function: F) -> F:
        return cast("F", _checked(function, owner, also))

    return decorate


def _checked(function: Callable[..., Any], owner: str, also: Iterable[str] = ()) -> Callable[..., Any]:
    """Return ``function`` with a check of its keywords; see `near_options`."""
    parameters = inspect.signature(function).parameters
    known = [
        name
        for name, each in parameters.items()
        if each.kind != each.VAR_KEYWORD and name not in {"self", "cls"}
    ]
    if any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        known += also

    @wraps(function)
    def checked(*given: Any, **keywords: Any) -> Any:
        require_keywords(owner, keywords, known)
        return function(*given, **keywords)

    return checked


def near_attributes(target: K) -> K:
    """Make a class suggest the nearest attribute for a missing attribute."""

    def getattr_of(self: object, name: str) -> Any:
        # Python calls __getattr__ if the normal look-up raised AttributeError. If the class has the attribute, it is a
        # property that raised the error itself. The second read raises it again, with the property's own message.
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)
        raise missing_attribute(with_article(type(self).__name__), name, dir(self), {})

    target.__getattr__ = getattr_of  # type: ignore[attr-defined]
    return target


class Named(dict[N, V]):
    """A batch's values by type or relation. A missing key raises an error with the nearest existing key."""

    __slots__ = ()

    def __missing__(self, key: N) -> V:
        """Raise KeyError with the nearest existing key."""
        raise missing_key(key, self, "no type or relation of this batch")


def missing_key(key: object, there: Iterable[object], is_no: str) -> KeyError:
    """Return the error for a missing key, a type or a relation. Pure.

    Parameters
    ----------
    key : the requested key
    there : the existing keys
    is_no : end of the sentence "KEY is ...", such as "no relation of this dataset"
    """
    names = {":".join(map(str, each)) if isinstance(each, tuple) else str(each): each for each in there}
    near = nearest(":".join(map(str, key)) if isinstance(key, tuple) else str(key), names)
    listed = ", ".join(map(repr, names.values())) or "none"
    return KeyError(
        f"{key!r} is {is_no}; {f'did you mean {names[near]!r}?' if near else f'there are {listed}'}"
    )


def with_article(noun: str) -> str:
    """Return ``noun`` with its article, such as "a Loader" or "an EdgeData". Pure."""
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"


def missing_attribute(
    owner: str, name: str, there: Iterable[str], advice: Mapping[str, str]
) -> AttributeError:
    """Return the error for a missing attribute. Pure.

    Parameters
    ----------
    owner : the object's kind, with an article: "a GraphData"
    name : the attribute's name
    there : the existing attributes
    advice : messages for some missing attributes, by name
    """
    if name in advice:
        return AttributeError(f"{owner} has no {name!r}: {advice[name]}")
    near = (
        None
        if name.startswith("_")
        else nearest(name, (known for known in there if known[0] != "_"), cutoff=0.7)
    )
    return AttributeError(f"{owner} has no {name!r}" + (f"; did you mean {near!r}?" if near else ""))
