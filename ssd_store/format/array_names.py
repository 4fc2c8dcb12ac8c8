"""Names of arrays, which become names of files: plain, or in the folder of a node type, a relation or a link table."""

from __future__ import annotations

import re
from typing import Final

# The folders of a dataset of several types: nodes/TYPE/ and relations/SOURCE__RELATION__DESTINATION/.
NODES: Final = "nodes"
RELATIONS: Final = "relations"
LINKS: Final = "links"  # links/NAME/ of a link table, of a dataset of one type, too
SEPARATOR: Final = "__"
# File systems take 255 bytes; some are left to whoever copies a dataset under longer names.
MAX_FOLDER_LENGTH: Final = 240

ALLOWED: Final = "1 to 100 of the characters A-Z a-z 0-9 _ . -"
# A name becomes a file's: no folder, no hidden file, no dot or dash at the end.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9_])?")
_FOLDER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,238}[A-Za-z0-9_])")


def is_plain_name(name: object) -> bool:
    """Return whether ``name`` may name an array or its file: letters, digits, ``_ . -``, no folder. Pure."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name


def is_type_name(name: object) -> bool:
    """Return whether ``name`` may name a node type or a relation: a plain name without ``__``. Pure."""
    return isinstance(name, str) and is_plain_name(name) and SEPARATOR not in name


def is_array_name(name: object) -> bool:
    """Return whether ``name`` is a plain name, or one in a folder of a type, a relation or a link table. Pure.

    Spelled out, part by part: no other folder can be named, at no depth, and none outside.
    """
    if not isinstance(name, str):
        return False
    *folders, last = name.split("/", 3)
    if not is_plain_name(last):
        return False
    match folders:
        case []:
            return True
        case [kind, folder] if kind in (NODES, LINKS):
            return is_type_name(folder)
        case [kind, folder] if kind == RELATIONS:
            is_spelled = _FOLDER.fullmatch(folder) is not None and ".." not in folder
            return is_spelled and folder.count(SEPARATOR) >= 2
    return False


def is_in_folder(name: str) -> bool:
    """Return whether the array ``name`` lies in a folder of its directory. Pure."""
    return "/" in name


def is_of_links(name: str) -> bool:
    """Return whether the array ``name`` is one of a link table. Pure."""
    return name.startswith(f"{LINKS}/")
