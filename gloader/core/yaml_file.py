"""A YAML file of settings that anybody may have written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.core.malformed import MALFORMED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_YAML_CHARACTERS: Final = 1 << 16  # a run's config.yaml has about 1,500
_MAX_BRACKETS: Final = 1000


def read_yaml_mapping(path: Path, *, what: str, holds: str, error: type[Exception]) -> Mapping[str, object]:
    """Return the mapping that a YAML file holds.

    Parameters
    ----------
    path : the file
    what : its kind, for messages, such as "recipe"
    holds : what such a file has, and how to write it behind a semicolon, for messages
    error : raised where it cannot be read, is not YAML, or holds anything but a mapping of texts

    Raises
    ------
    error
        As said.
    """
    import yaml

    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_YAML_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or str(failure)
        raise error(f"{what} {path} cannot be read: {reason}") from failure
    # Each bracket makes the YAML reader look at all that are open.
    if len(text) > MAX_YAML_CHARACTERS or text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise error(
            f"{what} {path} is longer than {MAX_YAML_CHARACTERS} characters, or has more than {_MAX_BRACKETS} "
            f"brackets; it holds {holds.partition(';')[0]} alone"
        )
    try:
        content = yaml.safe_load(text)
    # Of values too: a date with a month 13, a number of thousands of digits, brackets within brackets.
    except (yaml.YAMLError, *MALFORMED) as failure:
        raise error(f"{what} {path} is not YAML: {' '.join(str(failure).split())}") from failure
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise error(f"{what} {path} holds a {type(content).__name__}, not {holds}")
    return content
