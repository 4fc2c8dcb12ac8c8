"""The known column names in tables: edge ends, weights, times, node ids, labels and negatives.

The readers of CSV and Parquet files find the columns of edges and nodes by these names. The ends of an edge are its
source and its destination. Negatives are node pairs without an edge, in a table of edges to predict. Names are compared
in their *plain* form: only letters and digits, in lower case. So ``Source_ID`` equals ``sourceid``.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Final

from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WEIGHT_NAMES: Final = ("weight", "weights", "edgeweight", "w")
LABEL_NAMES: Final = ("label", "labels", "edgelabel", "y", "class", "target")
TIME_NAMES: Final = ("time", "times", "timestamp", "edgetime", "t")
NEGATIVE_NAMES: Final = ("negatives", "negative", "neg")
# A node table may have its labels in a column with such a name. The column is never a feature.
OWN_LABELS: Final = frozenset({"label", "labels"})

# The plain names of the columns of triples, by role.
TRIPLE_NAMES: Final = {
    "head": frozenset({"head", "headid", "subject", "subjectid", "source", "src", "from", "h", "s"}),
    "relation": frozenset({"relation", "relationid", "rel", "predicate", "property", "type", "r", "p"}),
    "tail": frozenset({"tail", "tailid", "object", "objectid", "target", "dst", "to", "t", "o"}),
}
KNOWN_TRIPLES: Final = "head, relation and tail; subject, predicate and object; or h, r and t"  # for messages

# The plain names of edge ends: each beginning with each ending.
_SOURCES = ("src", "source", "from", "head", "subject", "start")
_DESTINATIONS = ("dst", "dest", "destination", "target", "to", "tail", "object", "end")
_ENDINGS = ("", "id", "ids", "node", "nodeid", "index", "idx", "vertex")
# "start" and "end" alone are left out, because they may be times.
_FROM = {a + b for a, b in product(_SOURCES, _ENDINGS)} - {"start"} | {"u", "row"}
_TO = {a + b for a, b in product(_DESTINATIONS, _ENDINGS)} - {"end"} | {"v", "col", "column"}
# Pairs of names that are ends only together: the first end's name, and the second end's. Most differ in a number.
_NUMBERED = {
    text.format(1): text.format(2)
    for stem in ("node", "vertex", "entity", "id", "nodeid", "vertexid", "entityid")
    for text in (f"{stem}{{}}", f"{stem}{{}}id")
} | {"uid": "vid"}
_IDS = (
    {"id", "ids", "idx", "nid", "vid", "index", "key", "uuid", "guid"}
    | {"node", "nodes", "nodeid", "nodeids", "nodeindex", "nodeidx", "nodekey"}
    | {"vertex", "vertexid", "entity", "entityid"}
)
# Names such as user_id or userId, which may have node ids if no column has a name in `_IDS`.
_KEY_LIKE = re.compile(r"(?i:[_ .-](id|key|uuid))$|[a-z](Id|ID|Key)$")
# Names that pandas gives to columns without a name.
_UNNAMED = re.compile(r"\s*|Unnamed: \d+(_level_\d+)?|__index_level_\d+__|None")
# Roles in the headers of Neo4j's import files, after a colon, such as ``userId:START_ID(User)`` or ``:TYPE``. Other
# words after the colon are types, as in ``stars:int``.
_ROLES = frozenset({"start_id", "end_id", "type", "id", "label"})
# The kind of a column is a text such as "integer" or "string", see `NumberTable.kind`. `ALMOST` is the kind of a column
# with texts such as "[0.1, 0.2]", "1,5" or "7%". `LISTS` begins the kind of a column with lists, such as "list of 768".
ALMOST: Final = "near number"
LISTS: Final = "list of"
_MOST_NAMES: Final = 20  # maximum number of names per message
_LONG_NAME: Final = 60  # maximum number of characters per name in a message
# Examples of column names for an edge's ends, for messages.
KNOWN_ENDS: Final = "src and dst, source and target, from and to, head and tail, u and v, node1 and node2"


def plain(name: str) -> str:
    """Return the form of ``name`` for comparisons: only letters and digits, in lower case. Pure.

    A role of Neo4j replaces the name: ``userId:START_ID(User)`` becomes ``startid``.
    """
    first, _, kind = name.strip().lower().partition(":")
    kind = kind.partition("(")[0]
    return re.sub(r"[^a-z0-9]", "", kind if kind in _ROLES else first)


def is_unnamed(name: str) -> bool:
    """True if a column has no real name, such as a pandas index. Pure."""
    return _UNNAMED.fullmatch(name) is not None


def twice_in(names: Sequence[str]) -> str | None:
    """Return a name that two columns have, or None. Pure."""
    if len(set(names)) == len(names):
        return None
    return next(name for number, name in enumerate(names) if name in names[:number])


def require_different(names: Sequence[str], where: str) -> None:
    """Raise SourceError if two columns of ``where`` share a name. Pure."""
    twice = twice_in(names)
    if twice is not None:
        raise SourceError(f"{where} has the column {shown(twice)} twice; give each column another name")


def listed(names: Sequence[str]) -> str:
    """Return columns as text for a message. Long names, and a long list, are shortened. Pure."""
    few = [name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..." for name in names[:_MOST_NAMES]]
    return (", ".join(few) or "none") + (
        f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    )


def named_column(names: Iterable[str], known: Sequence[str], *, what: str) -> str | None:
    """Return the column in ``names`` with a name in ``known``, or None. Pure.

    Raises
    ------
    SourceError
        Several columns may be ``what``, such as "the labels of nodes.csv".
    """
    matches = [name for name in names if plain(name) in known]
    if len(matches) > 1:
        raise SourceError(
            f"several columns may be {what}: {listed(matches)}; keep one of these names, and give the others another"
        )
    return matches[0] if matches else None


def triple_columns(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of a table of triples by their roles, as far as exactly one column has a role's name. Pure."""
    found = {role: [name for name in names if plain(name) in known] for role, known in TRIPLE_NAMES.items()}
    return {role: matches[0] for role, matches in found.items() if len(matches) == 1}


def end_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return each column pair that may be source and destination, by the names. Pure.

    If there is only one such pair, it counts as certain.
    """
    plain_names = {name: plain(name) for name in names if not is_unnamed(name)}
    return [
        (first, last)
        for first in plain_names
        for last in plain_names
        if _is_pair(plain_names[first], plain_names[last])
    ]


def end_columns(names: Sequence[str], *, is_source: bool) -> list[str]:
    """Return the columns that may be edge sources, or edge destinations. Pure."""
    known = _FROM | set(_NUMBERED) if is_source else _TO | set(_NUMBERED.values())
    return [name for name in names if plain(name) in known]


def id_columns(names: Iterable[str]) -> list[str]:
    """Return the columns with a usual name for node ids, or else those with a name such as ``user_id``. Pure."""
    named = [name for name in names if not is_unnamed(name)]
    return [name for name in named if plain(name) in _IDS] or [
        name for name in named if _KEY_LIKE.search(name)
    ]


def is_known(names: Sequence[str]) -> bool:
    """True if ``names``, a file's first line, is certainly a header: it names both edge ends, or one node id. Pure."""
    return len(end_pairs(names)) == 1 or sum(plain(name) in _IDS for name in names) == 1


def no_whole_numbers(missing: int | None) -> str:
    """Return the end of a message about float ids. ``missing`` is the first row without an id. Pure."""
    if missing is None:
        return "ids are whole numbers: if all of these ids are, write the column with .astype('int64')"
    return (
        f"ids are whole numbers, and row {missing} has none, so pandas wrote all ids as floats: leave such rows out "
        "(DataFrame.dropna), and write the column with .astype('int64')"
    )


def _is_pair(first: str, last: str) -> bool:
    """True if two plain names may be those of source and destination."""
    return (first in _FROM and last in _TO) or _NUMBERED.get(first, "") == last
