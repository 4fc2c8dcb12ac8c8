"""Where a script uses a library: its imports, the dotted names it asks for, and what it asks of values it was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gloader.bridges.migrate.calls import argument, items_of

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping, Sequence

    from gloader.bridges.migrate.calls import Arguments
    from gloader.bridges.migrate.library import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a variable holds."""

    kind: Kind
    is_sure: bool = True  # else by its name alone
    made_by: str = ""  # the dotted name that was called, perhaps some steps before
    literal: Arguments | None = None  # of kind "dict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands."""

    statement: ast.stmt
    body: Sequence[ast.stmt]  # the block that the statement is in


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One name that an import statement brings."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    place: Place
    dotted: str  # what it is, such as dgl.nn.SAGEConv

    @property
    def local(self) -> str:
        """The name that the script has for it."""
        return self.alias.asname or self.alias.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a library."""

    node: ast.expr  # the dotted name, or the attribute, subscript or call of a value
    name: str  # dotted, of a name that was imported; else what is asked of the value, "[]" and "()" among it
    place: Place
    held: Held | None = None  # of what is asked of a value
    call: ast.Call | None = None  # where it is called
    given: Mapping[int | str, Held | None] = field(default_factory=dict)  # what its arguments are
    spread: Sequence[Arguments] = ()  # the mappings behind ** that are written in the script
    is_written: bool = True  # all arguments are, in the call or in ``spread``
    is_stored: bool = False  # it is assigned to, or deleted

    def argument(self, position: int, name: str) -> Held | None:
        """Return what an argument is, which is given by its position or by its name."""
        return self.given.get(position, self.given.get(name))

    def written(self, position: int, name: str) -> ast.expr | None:
        """Return an argument as it is written in the call or in a mapping that it is given."""
        found = None if self.call is None else argument(self.call, position, name)
        items = (item for mapping in self.spread for item in items_of(mapping))
        return found or next((item.value for item in items if item.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What was read."""

    imports: tuple[Import, ...]  # of all libraries, in their order
    uses: tuple[Use, ...]
