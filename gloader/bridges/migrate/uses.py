"""A script's uses of a library, as values: imports, dotted names, call arguments, and names that hold graphs.

A `Use` is one place in the script that uses the library (DGL or PyG). A `Held` describes the value of a variable, as
far as the reader (`gloader.bridges.migrate.read_uses`) can infer it. A `Library` has the rules for one library's
values. The functions at the end answer questions about a script's syntax tree, for example which names a graph has.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet


Kind: TypeAlias = str
"""The kind of a variable's value: "graph", "block", "blocks", "loader", "data", "batch", ...; "" for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Rules that find the kinds of one library's values."""

    kind_of_call: Callable[[str], Kind]  # maps a called dotted name to its result's kind
    hands_on: Callable[[str], bool]  # True if the named function returns its first argument, perhaps changed
    # The kind that a method returns. "()" is the call of the value itself; kind "" means a method of any other value.
    methods: Mapping[tuple[Kind, str], Kind]
    attributes: Mapping[tuple[Kind, str], Kind]  # the kind of an attribute
    items: Mapping[Kind, Kind]  # the kind of x[...]
    several: Mapping[Kind, Kind]  # the kind of a list, by the kind of its values
    # The kinds of the variables in a loop over a value. The key has the value's kind and the number of variables; the
    # number 0 means one kind for any number of variables.
    loops: Mapping[tuple[Kind, int], tuple[Kind, ...]]
    parameters: Mapping[str, Kind]  # function parameters by their usual names in examples


Arguments: TypeAlias = "ast.Call | ast.Dict"
"""The node that holds arguments: a call, such as ``dict(...)``, or a mapping."""


class Item(NamedTuple):
    """An argument in a call, or an item in a mapping."""

    name: object  # None for a positional argument or a mapping after **
    value: ast.expr
    first: ast.expr | ast.keyword  # the node at which the item's text begins

    @property
    def last(self) -> ast.expr | ast.keyword:
        """The node at which the item's text ends. Only a keyword includes brackets around its value."""
        return self.first if isinstance(self.first, ast.keyword) else self.value


def literal(node: ast.AST | None) -> object:
    """Return a constant's value, or None for any other node. Pure."""
    return node.value if isinstance(node, ast.Constant) else None


def items_of(node: Arguments) -> list[Item]:
    """Return a call's arguments, or a mapping's items. Pure."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [Item(literal(key), value, value if key is None else key) for key, value in pairs]
    items = [Item(None, each, each) for each in node.args]
    return items + [Item(each.arg, each.value, each) for each in node.keywords]


def are_written(node: Arguments) -> bool:
    """Return True if the names in a ``dict(...)`` call or a mapping are all constants in the script. Pure."""
    if isinstance(node, ast.Dict):
        return all(isinstance(key, ast.Constant) for key in node.keys)
    is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
    return is_dict and all(isinstance(item.name, str) for item in items_of(node))


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return a call's argument, found by its position or its name. Pure."""
    if len(call.args) > position and not any(
        isinstance(each, ast.Starred) for each in call.args[: position + 1]
    ):
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A variable's value, described by its kind. `read_uses` makes it without running the script."""

    kind: Kind
    is_sure: bool = True  # False if only the variable's name suggests the kind
    made_by: str = ""  # the dotted name whose call made the value, perhaps some steps before
    literal: Arguments | None = None  # the mapping, for the kind "dict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's place in the script."""

    statement: ast.stmt
    body: Sequence[ast.stmt]  # all statements of the block that contains the statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One name in an import statement."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    place: Place
    dotted: str  # the full name, such as dgl.nn.SAGEConv

    @property
    def local(self) -> str:
        """The script's name for the import."""
        return self.alias.asname or self.alias.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a library."""

    node: ast.expr  # the dotted name, or an attribute, subscript or call on a value
    # The full imported name, such as dgl.nn.SAGEConv. For a value: its attribute's name, "[]" or "()".
    name: str
    place: Place
    held: Held | None = None  # the value on which the node is; None for an imported name
    call: ast.Call | None = None  # the call of the node, if any
    given: Mapping[int | str, Held | None] = field(default_factory=dict)  # the call's argument values
    spread: Sequence[Arguments] = ()  # the mappings after ** that the script spells out
    is_written: bool = True  # the script spells out all arguments, in the call or in ``spread``
    is_stored: bool = False  # the node is assigned or deleted

    def argument(self, position: int, name: str) -> Held | None:
        """Return an argument's value, found by its position or its name."""
        return self.given.get(position, self.given.get(name))

    def written(self, position: int, name: str) -> ast.expr | None:
        """Return an argument's node from the call or from one of its mappings."""
        found = None if self.call is None else argument(self.call, position, name)
        items = (item for mapping in self.spread for item in items_of(mapping))
        return found or next((item.value for item in items if item.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """All imports and uses in a script."""

    imports: tuple[Import, ...]  # imports from all libraries, in order
    uses: tuple[Use, ...]


MOVES: Final = ("to", "cuda", "cpu", "contiguous", "pin_memory", "share_memory_")
"""Methods that return a PyG graph in other memory."""


def hands_on(use: Use) -> bool:
    """Return True if a use is a call that returns its graph, moved or transformed."""
    if use.held is None:
        return False
    kind, name = use.held.kind, use.name
    return (kind == "transform" and name == "()") or (kind == "data" and name in MOVES)


def sources_of(tree: ast.Module, names: AbstractSet[str], handed_on: Collection[int]) -> set[str]:
    """Return the names of the graphs from which the graphs ``names`` were made.

    ``handed_on`` has the identities of the calls that return their graph argument, moved or transformed.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        bound = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if not bound & set(names) or not isinstance(node, ast.Assign):
            continue
        value: ast.AST = node.value
        while isinstance(value, ast.Call) and id(value) in handed_on:
            is_move = isinstance(value.func, ast.Attribute) and value.func.attr in MOVES
            value = value.func.value if is_move and isinstance(value.func, ast.Attribute) else value.args[0]
        if isinstance(value, ast.Name):
            found.add(value.id)
    return found | _sources_by_calls(tree, names)


def _sources_by_calls(tree: ast.Module, names: AbstractSet[str]) -> set[str]:
    """Return the graph names that a script's functions take or return on the way to the graphs ``names``."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=called))) if (
                called in functions
            ):
                for each in ast.walk(functions[called]):
                    if isinstance(each, ast.Return) and each.value is not None:
                        found |= {given.id for bound, given in _pairs(target, each.value) if bound in names}
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=args, keywords=keywords
            ) if called in functions:
                taken = [each.arg for each in functions[called].args.args if each.arg != "self"]
                given = [*zip(taken, args, strict=False), *((each.arg, each.value) for each in keywords)]
                pairs = {(str(name), arg.id) for name, arg in given if isinstance(arg, ast.Name)}
                found |= {name for pair in pairs if names & set(pair) for name in pair}
    return found


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.Name]]:
    """Return each name that ``target = value`` binds, with the name on the right side whose value it gets. Pure."""
    both = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        both = list(zip(target.elts, value.elts, strict=False))
    return [
        (bound.id, given)
        for bound, given in both
        if isinstance(bound, ast.Name) and isinstance(given, ast.Name)
    ]


def parts_of(tree: ast.Module, names: Collection[str]) -> set[str]:
    """Return the names of graph parts, as ``paper`` in ``paper = data["paper"]``. Pure."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and root_of(node.value) in names
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def innermost(node: ast.AST) -> ast.AST:
    """Return the innermost call in a chain of method calls: ``f()`` in ``f().to(x).cpu()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not isinstance(node.func.value, ast.Call):
            return node
        node = node.func.value
    return node


def is_stored(node: ast.AST, names: Collection[str]) -> bool:
    """Return True if a statement sets or deletes a part of a graph in ``names``, directly or by a call. Pure."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return root_of(node) in names
        case ast.Expr(value=ast.Call(func=called, args=args)):
            return any(isinstance(each, ast.Name) and each.id in names for each in args) or (
                isinstance(called, ast.Attribute) and root_of(called) in names
            )
    return False


def sets_by_name(node: ast.AST, names: Collection[str]) -> bool:
    """Return True if a statement calls ``setattr`` on one of ``names``. Pure."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), *_])):
            return name in names
    return False


def is_changed(use: Use) -> bool:
    """Return True if the statement sets a part of the attribute, as ``data.train_mask[ids] = True``. Pure."""
    statement = use.place.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(
        isinstance(each, ast.Subscript) and any(node is use.node for node in ast.walk(each.value))
        for each in targets
    )


def is_bound(node: ast.AST, name: str) -> bool:
    """Return True if the node binds ``name``. Pure."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name


def root_of(node: ast.AST) -> str | None:
    """Return the name with which an expression begins, such as g in ``g.ndata["x"]``, or None.

    For a tuple or a list, return the name that all of its entries begin with, or None.
    """
    if isinstance(node, ast.Tuple | ast.List):
        names = {root_of(each) for each in node.elts}
        return names.pop() if len(names) == 1 else None
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def parameters_of(tree: ast.Module) -> set[str]:
    """Return the names of all function parameters. Pure."""
    return {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)}
