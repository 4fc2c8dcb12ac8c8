"""Records: frozen dataclasses that travel as JSON.

`dataclasses.asdict` writes them, and `Records.read` checks and reads them.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader: TypeAlias = Callable[[Any], Any]

T = TypeVar("T")

_NOUNS: Final = {bool: "true or false", int: "an integer", str: "a text", dict: "an object", list: "a list"}


class Records:
    """Reads records from their JSON form.

    A field has a plain type, a `Literal`, a record, a tuple or a mapping of these, or a class with the method
    ``from_json``. A field with a default may be left out.

    Parameters
    ----------
    names : types in annotations that only type checkers import, by name
    """

    def __init__(self, **names: Any) -> None:
        self._names = names
        self._fields: dict[type[Any], tuple[tuple[str, bool, Reader], ...]] = {}

    def read(self, kind: type[T], document: object) -> T:
        """Return the record of type ``kind`` with the JSON form ``document``.

        Raises
        ------
        ValueError
            A field is missing, unknown or of another type. The error names the field.
        """
        given = dict(_of_type(dict, document))
        values = {}
        for name, is_needed, reader in self._fields_of(kind):
            if name in given:
                try:
                    values[name] = reader(given.pop(name))
                except ValueError as error:
                    raise ValueError(f"field {name!r} {error}") from None
            elif is_needed:
                raise ValueError(f"field {name!r} is missing")
        if given:
            raise ValueError(f"field {next(iter(given))!r} is unknown")
        return kind(**values)

    def _fields_of(self, kind: type[Any]) -> tuple[tuple[str, bool, Reader], ...]:
        """Return each field's name, whether it lacks a default, and its value's reader."""
        found = self._fields.get(kind)
        # The result is kept for later calls, because a message is read for every batch.
        if found is None:
            hints = get_type_hints(kind, localns=self._names)
            found = self._fields[kind] = tuple(
                (
                    one.name,
                    one.default is MISSING and one.default_factory is MISSING,
                    self._reader_of(hints[one.name]),
                )
                for one in fields(kind)
            )
        return found

    def _reader_of(self, hint: Any) -> Reader:
        if hint is Any:
            return lambda value: value
        if hasattr(hint, "from_json"):
            return hint.from_json
        if isinstance(hint, type) and is_dataclass(hint):
            return partial(self.read, hint)
        if get_origin(hint) is not None:
            return self._reader_of_parts(get_origin(hint), get_args(hint))
        return _number if hint is float else partial(_of_type, hint)

    def _reader_of_parts(self, origin: Any, arguments: tuple[Any, ...]) -> Reader:
        if origin is Literal:
            return partial(_choice, arguments)
        if origin in {Union, UnionType}:
            (inner,) = (self._reader_of(one) for one in arguments if one is not NoneType)
            return lambda value: None if value is None else inner(value)
        if origin is tuple and arguments[-1] is not Ellipsis:
            return partial(_items, tuple(map(self._reader_of, arguments)))
        if origin is tuple:
            item = self._reader_of(arguments[0])
            return lambda value: tuple(map(item, _of_type(list, value)))
        item = self._reader_of(arguments[1])  # the reader of a mapping's values
        return lambda value: {str(name): item(one) for name, one in _of_type(dict, value).items()}


def _of_type(kind: type[Any], value: Any) -> Any:
    if kind is list and type(value) is tuple:  # `dataclasses.asdict` keeps tuples
        return value
    if type(value) is not kind:  # a bool is an int to isinstance
        raise ValueError(f"is {value!r:.80}, not {_NOUNS[kind]}")
    return value


def _number(value: Any) -> float:
    if type(value) not in {int, float}:
        raise ValueError(f"is {value!r:.80}, not a number")
    return float(value)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"is {value!r:.80}, not one of {', '.join(map(str, choices))}")
    return value


def _items(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...]:
    if len(_of_type(list, value)) != len(readers):
        raise ValueError(f"is {value!r:.80}, not a list of {len(readers)}")
    return tuple(reader(one) for reader, one in zip(readers, value, strict=True))
