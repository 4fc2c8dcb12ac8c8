"""The script reader, which finds a script's uses of a library.

`read_uses` reads the script's syntax tree and never executes the script. It follows the values that come from the
library (DGL or PyG), such as graphs and loaders. A value is described by a `Held`, with its kind ("graph", "loader",
...). A variable holds a known value if a known call is assigned to it, or if a loop over a known value sets it. A
parameter's value comes from the script's own calls, or else from its name. The reader guesses no other values. It also
follows mappings, kind "dict", because a script may pass them as keywords.

A `_ScriptReader` reads the script once, from top to bottom, and notes the arguments and results of its functions.
`read_uses` repeats this with the notes of the previous reading, because a call may stand below its function.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gloader.bridges.migrate.uses import Held, Import, Place, Script, Use, are_written, items_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gloader.bridges.migrate.uses import Arguments, Kind, Library


# The items of a value that a script unpacks: one `Held` for all items, a tuple with one for each, or None if unknown.
Items: TypeAlias = "Held | tuple[Items, ...] | None"
# Maximum number of readings of a script. One reading may not suffice: a function may stand above the calls that give
# its arguments, and above the functions that it calls.
_MAX_READINGS: Final = 4
# These methods leave a mapping unchanged.
_ONLY_READ: Final = frozenset({"get", "items", "keys", "values", "copy"})
# These functions yield the items of their first argument.
_PASSED_ON: Final = frozenset({"tqdm", "iter", "list", "tuple", "reversed", "islice", "cycle", "track"})


class _Scope:
    """The variables in a module, a class or a function."""

    def __init__(self, parent: _Scope | None = None) -> None:
        self.parent = parent
        self.held: dict[str, Held | None] = {}

    def find(self, name: str) -> Held | None:
        """Return the value of a variable in this scope or in one around it, or None."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.held:
                return scope.held[name]
            scope = scope.parent
        return None


@dataclass
class _Functions:
    """The arguments and results of a script's functions, by function name, from one reading."""

    returned: dict[str, Items] = field(default_factory=dict)
    # The arguments by position or name; None if calls give values of different kinds.
    given: dict[str, dict[int | str, Held | None]] = field(default_factory=dict)

    def note_call(self, name: str, given: Mapping[int | str, Held | None]) -> None:
        """Note a call's known arguments. An argument with different kinds in two calls counts as unknown."""
        noted = self.given.setdefault(name, {})
        for position, held in given.items():
            if held is not None and held.kind != "dict":
                before = noted.get(position, held)
                noted[position] = held if before is not None and before.kind == held.kind else None


class _ScriptReader:
    """Reads a script once, from top to bottom. ``functions`` has the results of the previous reading."""

    def __init__(self, library: Library, tree: ast.Module, functions: _Functions) -> None:
        self._library = library
        self._functions = functions
        self.found = _Functions()
        self._function_name = ""  # the innermost function's name
        self._imports: list[Import] = []
        self._names: dict[str, str] = {}  # the script's names, and their full names
        self._uses: list[Use] = []
        self._changed: set[int] = set()  # identities of mappings that may hold more than their text
        self._module = self._scope = _Scope()
        self._place = Place(statement=ast.Pass(), body=())
        # Imports come first: a function may be defined above the import that it needs.
        for place in statements_of(tree.body):
            self._import(place)
        self._block(tree.body)

    def script(self) -> Script:
        """Return the imports and uses. A use's mapping that a later line may change does not count as written."""
        uses = [
            replace(
                use, is_written=use.is_written and not any(id(each) in self._changed for each in use.spread)
            )
            for use in self._uses
        ]
        return Script(imports=tuple(self._imports), uses=tuple(uses))

    def _import(self, place: Place) -> None:
        """Note an import statement's names."""
        node = place.statement
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return
        for alias in node.names:
            if isinstance(node, ast.Import):
                dotted = alias.name
                # `import a.b` binds a, `import a.b as c` binds c to a.b.
                self._names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
            elif node.level or node.module is None:
                continue
            else:
                dotted = f"{node.module}.{alias.name}"
                self._names[alias.asname or alias.name] = dotted
            self._imports.append(Import(statement=node, alias=alias, place=place, dotted=dotted))

    # --- statements ------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt]) -> None:
        """Read statements in order."""
        for statement in body:
            self._place = Place(statement=statement, body=body)
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        """Read one statement: note its uses, and set the variables that it binds."""
        match node:
            case ast.Import() | ast.ImportFrom():
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._expressions([*node.decorator_list, *_defaults(node.args)])
                outer, self._function_name = self._function_name, node.name
                self._function(node)
                self._function_name = outer
            case ast.ClassDef():
                self._expressions([*node.decorator_list, *node.bases, *node.keywords])
                self._inside(node.body)
            case ast.Return() if node.value is not None:
                self._visit(node.value)
                self.found.returned[self._function_name] = self._items_of_value(node.value)
            case ast.Assign():
                self._visit(node.value)
                for target in node.targets:
                    is_several = isinstance(target, ast.Tuple | ast.List)
                    self._bind(
                        target, self._items_of_value(node.value) if is_several else self._infer(node.value)
                    )
            case ast.AnnAssign() if node.value is not None:
                self._visit(node.value)
                self._bind(node.target, self._infer(node.value))
            case ast.For() | ast.AsyncFor():
                self._visit(node.iter)
                self._bind(node.target, self._items(node.iter))
                self._block(node.body)
                self._block(node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._visit(item.context_expr)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, self._infer(item.context_expr))
                self._block(node.body)
            case _:
                self._children(node)

    def _children(self, node: ast.AST) -> None:
        """Read the statements and expressions inside a node."""
        for _, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            if parts and isinstance(parts[0], ast.stmt):
                self._block(parts)
                continue
            for part in parts:
                if isinstance(part, ast.expr | ast.keyword):
                    self._visit(part)
                elif isinstance(part, ast.AST):
                    self._children(part)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read a function's body with its parameters' values."""
        arguments, known = node.args, self._library.parameters
        named = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        given = self._functions.given.get(node.name, {})
        # A method call's arguments do not include its object.
        positions = {name: number for number, name in enumerate(n for n in named if n not in {"self", "cls"})}
        held: dict[str, Held | None] = {}
        for name in (*named, *(each.arg for each in arguments.kwonlyargs)):
            by_name = Held(kind=known[name], is_sure=False) if name in known else None
            held[name] = given.get(name) or given.get(positions.get(name, -1)) or by_name
        self._inside(node.body, held)

    def _inside(self, body: Sequence[ast.stmt], held: Mapping[str, Held | None] | None = None) -> None:
        """Read the body of a function or a class, in a new scope with the variables ``held``."""
        self._scope = _Scope(self._scope)
        self._scope.held.update(held or {})
        self._block(body)
        self._scope = self._scope.parent or self._module

    # --- expressions -----------------------------------------------------------------------------

    def _expressions(self, nodes: Sequence[ast.expr | ast.keyword]) -> None:
        for node in nodes:
            self._visit(node)

    def _visit(self, node: ast.expr | ast.keyword, call: ast.Call | None = None) -> None:
        """Note the uses in an expression. If the expression is called, ``call`` is this call."""
        if isinstance(node, ast.Lambda):
            self._scope = _Scope(self._scope)
            self._scope.held.update(dict.fromkeys((each.arg for each in node.args.args), None))
            self._visit(node.body)
            self._scope = self._scope.parent or self._module
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            self._comprehension(node)
            return
        if isinstance(node, ast.NamedExpr):
            self._visit(node.value)
            self._bind(node.target, self._infer(node.value))
            return
        if self._is_read(node):
            return
        if isinstance(node, ast.Name | ast.Attribute) and (mapping := self._mapping(node)) is not None:
            self._changed.add(id(mapping))  # any other use may change the mapping
        # An imported name is one use. Attributes, items and calls of a known value are uses as well.
        dotted = self._dotted(node)
        if dotted is not None and isinstance(node, ast.expr):
            self._add(node, dotted, None, call)
            return
        if isinstance(node, ast.Attribute | ast.Subscript):
            held = self._infer(node.value)
            if held is not None and held.kind != "dict":
                self._add(node, node.attr if isinstance(node, ast.Attribute) else "[]", held, call)
        if isinstance(node, ast.Call):
            if name := _called(node):
                self.found.note_call(name, self._given(node))
            self._visit(node.func, node)
            held = self._infer(node.func)
            if held is not None and held.kind != "dict":
                self._add(node, "()", held, node)
            self._expressions([*node.args, *node.keywords])
            return
        self._children(node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        """Note the uses in a comprehension, whose variables are in a scope of their own."""
        self._scope = _Scope(self._scope)
        for part in node.generators:
            self._visit(part.iter)
            self._bind(part.target, self._items(part.iter))
            self._expressions(part.ifs)
        self._expressions([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scope = self._scope.parent or self._module

    def _add(self, node: ast.expr, name: str, held: Held | None, call: ast.Call | None) -> None:
        """Note a use, with the call's arguments."""
        spread = [each.value for each in call.keywords if each.arg is None] if call else []
        mappings = [each for each in map(self._mapping, spread) if each is not None]
        is_starred = call is not None and any(isinstance(each, ast.Starred) for each in call.args)
        self._uses.append(
            Use(
                node=node,
                name=name,
                held=held,
                place=self._place,
                call=call,
                given=self._given(call) if call else {},
                spread=tuple(mappings),
                is_written=not is_starred
                and len(mappings) == len(spread)
                and all(map(are_written, mappings)),
                is_stored=isinstance(getattr(node, "ctx", None), ast.Store | ast.Del),
            )
        )

    def _given(self, call: ast.Call) -> dict[int | str, Held | None]:
        """Return the values of a call's arguments, by position or name."""
        mappings = (self._mapping(each.value) for each in call.keywords if each.arg is None)
        items = [item for node in (call, *mappings) if node is not None for item in items_of(node)]
        given: dict[int | str, Held | None] = {
            item.name: self._infer(item.value) for item in items if isinstance(item.name, str)
        }
        for position, each in enumerate(call.args):
            if isinstance(each, ast.Starred):
                break
            given[position] = self._infer(each)
        return given

    def _mapping(self, node: ast.AST) -> Arguments | None:
        """Return the mapping that ``node`` holds, as written in the script."""
        held = self._infer(node)
        return None if held is None else held.literal

    def _is_read(self, node: ast.AST) -> bool:
        """Return True if ``node`` reads from a named mapping, without changing it."""
        match node:
            case ast.keyword(arg=None, value=ast.Name() | ast.Attribute() as owner):
                return self._mapping(owner) is not None
            case ast.Subscript(value=owner, ctx=ast.Load()):
                return self._mapping(owner) is not None
            case ast.Attribute(value=owner, attr=attr):
                return attr in _ONLY_READ and self._mapping(owner) is not None
        return False

    # --- values -------------------------------------------------------------------------

    def _dotted(self, node: ast.AST) -> str | None:
        """Return the full name for a chain of attributes, if it begins with an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names or self._scope.find(node.id):
            return None
        return ".".join([self._names[node.id], *reversed(parts)])

    def _infer(self, node: ast.AST) -> Held | None:
        """Return the value of an expression, or None if it is unknown."""
        library = self._library
        match node:
            case ast.Name():
                return self._scope.find(node.id)
            case ast.Dict() | ast.Call(func=ast.Name(id="dict"), args=[]):
                return Held(kind="dict", literal=node)
            case ast.Attribute():
                if (path := _path(node)) and (found := self._scope.find(path)) is not None:
                    return found
                return self._step(node.value, library.attributes, node.attr)
            case ast.Subscript():
                return self._step(node.value, library.items)
            case ast.Call():
                return self._infer_call(node)
            case ast.ListComp() | ast.GeneratorExp():
                held = self._infer_element(node)
                kind = None if held is None else library.several.get(held.kind)
                return replace(held, kind=kind, literal=None) if held is not None and kind else None
        return None

    def _infer_call(self, node: ast.Call) -> Held | None:
        """Return the value that a call returns, or None if it is unknown."""
        library, called = self._library, node.func
        dotted = self._dotted(called)
        if dotted is not None:
            if library.hands_on(dotted) and node.args and (given := self._infer(node.args[0])) is not None:
                return given
            return _held(library.kind_of_call(dotted), dotted)
        if isinstance(called, ast.Name) and called.id == "next" and node.args:
            items = self._items(node.args[0])
            return items if isinstance(items, Held) else None
        if isinstance(called, ast.Attribute):
            found = self._step(called.value, library.methods, called.attr)
            return found or _held(library.methods.get(("", called.attr)), called.attr)
        found = self._step(called, library.methods, "()")
        if found is not None:  # a transform returns its argument
            given = self._infer(node.args[0]) if node.args else None
            return given if given is not None and given.kind == found.kind else found
        returned = self._functions.returned.get(_called(node))
        return returned if isinstance(returned, Held) else None

    def _step(self, node: ast.AST, kinds: Mapping[Any, Kind], name: str | None = None) -> Held | None:
        """Return the attribute ``name`` of a value, or without a name its item; ``kinds`` has the result's kind."""
        held = self._infer(node)
        if held is None:
            return None
        kind = kinds.get(held.kind if name is None else (held.kind, name))
        return replace(held, kind=kind, literal=None) if kind else None

    def _items_of_value(self, node: ast.expr) -> Items:
        """Return the items of ``node`` for an assignment to several targets."""
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self._items_of_value(each) for each in node.elts)
        if isinstance(node, ast.GeneratorExp | ast.ListComp):  # a, b = (make(x) for x in ...)
            return self._infer_element(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            returned = self._functions.returned.get(node.func.id)
            if isinstance(returned, tuple):
                return returned
        return self._infer(node)

    def _infer_element(self, node: ast.GeneratorExp | ast.ListComp) -> Held | None:
        """Return the value that a comprehension yields, or None if it is unknown."""
        self._scope = _Scope(self._scope)
        for part in node.generators:
            self._bind(part.target, self._items(part.iter))
        held = self._infer(node.elt)
        self._scope = self._scope.parent or self._module
        return held

    def _items(self, node: ast.expr) -> Items:
        """Return the values in a loop over ``node``. The kind "each X" stands for the items of a value of kind X."""
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "enumerate" and node.args:
                return (None, self._items(node.args[0]))
            if name == "zip":
                return tuple(self._items(each) for each in node.args)
            if name in _PASSED_ON and node.args:
                return self._items(node.args[0])
        held = self._infer(node)
        return None if held is None else replace(held, kind=f"each {held.kind}", literal=None)

    def _bind(self, target: ast.expr, items: Items) -> None:
        """Set the variables in ``target``, as an assignment or a loop does."""
        if isinstance(target, ast.Starred):
            self._bind(target.value, None)
            return
        if isinstance(target, ast.Tuple | ast.List):
            self._bind_several(target.elts, items)
            return
        held = items if isinstance(items, Held) else None
        if held is not None and held.kind.startswith("each "):
            kinds = self._library.loops.get((held.kind.removeprefix("each "), 1), ("",))
            held = replace(held, kind=kinds[0]) if kinds[0] else None
        if isinstance(target, ast.Name):
            both = [held, self._scope.held[target.id]] if target.id in self._scope.held else []
            self._changed |= {id(each.literal) for each in both if each is not None}
            self._scope.held[target.id] = held
        elif isinstance(target, ast.Attribute):
            if path := _path(target):
                self._module.held[path] = held  # a path such as self.loader counts in any method
            self._visit(target)
        else:
            self._visit(target)

    def _bind_several(self, targets: Sequence[ast.expr], items: Items) -> None:
        """Set several targets from one value's items."""
        parts: Sequence[Items] = [None] * len(targets)
        if isinstance(items, tuple) and len(items) == len(targets):
            parts = items
        elif isinstance(items, Held):
            kinds = self._library.loops.get((items.kind.removeprefix("each "), len(targets)), ())
            same = self._library.loops.get((items.kind, 0), ())  # one kind for any number of targets
            kinds = kinds or same * len(targets)
            parts = [replace(items, kind=kind) if kind else None for kind in kinds] or parts
        for target, part in zip(targets, parts, strict=True):
            self._bind(target, part)


def _called(node: ast.Call) -> str:
    """Return the called function's or method's name. Pure."""
    called = node.func
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _held(kind: Kind | None, made_by: str) -> Held | None:
    """Return a value of ``kind``, or None without a kind."""
    return Held(kind=kind, made_by=made_by) if kind else None


def read_uses(tree: ast.Module, library: Library) -> Script:
    """Return a script's uses of ``library``. Pure.

    The script is read again with the functions' arguments and results from the previous reading, until they stay equal
    or `_MAX_READINGS` is reached.
    """
    functions = _Functions()
    for _ in range(_MAX_READINGS):
        reader = _ScriptReader(library, tree, functions)
        if reader.found == functions:
            break
        functions = reader.found
    return reader.script()


def statements_of(body: Sequence[ast.stmt]) -> Iterator[Place]:
    """Yield every statement in ``body``, and those nested in each statement."""
    for statement in body:
        yield Place(statement=statement, body=body)
        for _, value in ast.iter_fields(statement):
            for part in value if isinstance(value, list) else []:
                if isinstance(part, ast.stmt):
                    yield from statements_of(value)
                    break
                if isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield from statements_of(part.body)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    """Return the expressions of a function's default arguments."""
    return [*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)]


def _path(node: ast.AST) -> str:
    """Return a chain of names joined by dots; "" if it begins with another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
