"""Records: frozen dataclasses that are sent or stored as JSON.

`dataclasses.asdict` turns a record into its JSON form. `Records.read` checks a JSON form and returns the record. A
reader is a function that checks and converts the JSON form of one field. It raises ValueError with the end of a
sentence, such as "is 'x', not an integer". `Records.read` adds the field's name.
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

# Nouns for messages, by type.
_NOUNS: Final = {bool: "true or false", int: "an integer", str: "a text", dict: "an object", list: "a list"}


class Records:
    """A reader of records. It keeps the readers of each class's fields.

    A field's type may be a plain type, a `Literal`, a record, or a class with the method ``from_json``. It may also be
    a tuple or a mapping of these, or one of them or None. A field with a default may be missing.

    Parameters
    ----------
    names : types by name, for annotations whose types are imported only for type checkers
    """

    def __init__(self, **names: Any) -> None:
        self._names = names
        # By class: each field's name, whether it is required, and its reader.
        self._fields: dict[type[Any], tuple[tuple[str, bool, Reader], ...]] = {}

    def read(self, kind: type[T], document: object) -> T:
        """Return the record of type ``kind`` with the JSON form ``document``.

        Raises
        ------
        ValueError
            A field is missing, unknown or of another type. The error names the field.
        """
        unread = dict(_of_type(dict, document))
        values = {}
        for name, is_required, reader in self._fields_of(kind):
            if name in unread:
                try:
                    values[name] = reader(unread.pop(name))
                except ValueError as error:
                    raise ValueError(f"field {name!r} {error}") from None
            elif is_required:
                raise ValueError(f"field {name!r} is missing")
        if unread:
            raise ValueError(f"field {next(iter(unread))!r} is unknown")
        return kind(**values)

    def _fields_of(self, kind: type[Any]) -> tuple[tuple[str, bool, Reader], ...]:
        """Return each field's name, whether it is required, and its reader."""
        readers = self._fields.get(kind)
        # The result is kept for later calls, because a message is read for every batch.
        if readers is None:
            hints = get_type_hints(kind, localns=self._names)
            readers = self._fields[kind] = tuple(
                (
                    part.name,
                    part.default is MISSING and part.default_factory is MISSING,
                    self._reader_of(hints[part.name]),
                )
                for part in fields(kind)
            )
        return readers

    def _reader_of(self, hint: Any) -> Reader:
        """Return the reader for values of the annotated type ``hint``."""
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
        """Return the reader for a generic type, such as a tuple, from its origin and its type arguments."""
        if origin is Literal:
            return partial(_choice, arguments)
        if origin in {Union, UnionType}:  # only a union of one type and None is allowed
            (inner,) = (self._reader_of(each) for each in arguments if each is not NoneType)
            return lambda value: None if value is None else inner(value)
        if origin is tuple and arguments[-1] is not Ellipsis:  # tuple[X, Y]: a reader for each item
            return partial(_items, tuple(map(self._reader_of, arguments)))
        if origin is tuple:  # tuple[X, ...]
            item = self._reader_of(arguments[0])
            return lambda value: tuple(map(item, _of_type(list, value)))
        item = self._reader_of(arguments[1])  # the reader of a mapping's values
        return lambda value: {str(name): item(each) for name, each in _of_type(dict, value).items()}


def _of_type(kind: type[Any], value: Any) -> Any:
    """Return ``value``, or raise ValueError if its type is not exactly ``kind``."""
    if kind is list and type(value) is tuple:  # `dataclasses.asdict` keeps tuples
        return value
    if type(value) is not kind:  # a bool is an int to isinstance
        raise ValueError(f"is {value!r:.80}, not {_NOUNS[kind]}")
    return value


def _number(value: Any) -> float:
    """Return a JSON number as a float. Raises ValueError for another type."""
    if type(value) not in {int, float}:
        raise ValueError(f"is {value!r:.80}, not a number")
    return float(value)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    """Return ``value``. Raises ValueError if it is not among the values of a `Literal`."""
    if value not in choices:
        raise ValueError(f"is {value!r:.80}, not one of {', '.join(map(str, choices))}")
    return value


def _items(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...]:
    """Return a JSON list as a tuple, each item read by its own reader."""
    if len(_of_type(list, value)) != len(readers):
        raise ValueError(f"is {value!r:.80}, not a list of {len(readers)}")
    return tuple(reader(each) for reader, each in zip(readers, value, strict=True))
