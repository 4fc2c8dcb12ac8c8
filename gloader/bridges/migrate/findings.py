"""What was found about a script: a verdict on each name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Verdict: TypeAlias = Literal["maps", "stays", "changes", "ignored", "missing", "perhaps missing"]
MISSING: Final[frozenset[Verdict]] = frozenset({"missing", "perhaps missing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What becomes of one name, where it stands."""

    line: int
    name: str
    verdict: Verdict
    text: str  # "maps", "stays": where it is; else what takes its place, or why nothing does
    page: str = ""  # that says what to do, of what is missing
