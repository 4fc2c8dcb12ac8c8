"""Messages between the ranks of a machine: a frozen dataclass for each kind, its JSON, and the check of what came.

The host is the rank that loads; the clients are the ranks that it loads for.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from gloader.distributed.batch_layout import AnyShape, BatchShape, HeteroShape, parse_shape
from gloader.errors import RankError
from gloader.plan.memory_plan import MemoryPlan
from gloader.plan.predict import StepSeconds
from gloader.plan.sweep_plan import SweepPlan
from gloader.ssd_store.cost.superbatch_size import SuperbatchSize

RowDtype: TypeAlias = Literal["float32", "float16", "uint16", "int8"]

if TYPE_CHECKING:
    from collections.abc import Callable

    Parser: TypeAlias = Callable[[Any], Any]  # raises ValueError, saying what was expected

# --- while the loader is opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client introduces itself."""

    rank: int
    token: str  # shows that the client belongs to the host


@dataclass(frozen=True, slots=True, kw_only=True)
class TryStep:
    """The host asks how many bytes of the client's device rows may take; the batch to try comes in shared memory."""

    shape: AnyShape | None  # None: there is no batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRows:
    """The host asks the client's device to hold rows; their ids come in shared memory, unless they are all or none."""

    count: int
    hit_rate: float | None  # expected; None: unknown
    as_stored: bool = False  # the host brings the other rows as they are stored, else as float32
    table: int = 0  # of those of the dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachFeatures:
    """The host asks the client's device to reach all rows in place, in the shared memory that comes with this."""

    table: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleFeatures:
    """The host tells whether every device reaches the rows; if not, none reads them in place."""

    by_all: bool
    table: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A client did what was asked for its device."""

    room: int | None = None  # bytes, in answer to `TryStep`
    reaches: bool = False  # in answer to `ReachFeatures`
    is_asynchronous: bool = False  # the device, in answer to the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The host opened its tiers, and serves from now on."""

    plan: MemoryPlan
    text: str  # explains the tiers, for people
    # of each table's features in shared memory; uint16 for bfloat16
    row_dtypes: tuple[RowDtype, ...] = ("float32",)


# --- while a run is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A client wants run ``run``, from a batch on."""

    run: int
    epoch: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Every rank wants run ``run``: it began."""

    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The host made a buffer in shared memory, whose descriptor comes with this message."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of the client is in two segments, which it has until it releases them."""

    run: int
    segments: tuple[int, int]  # of the features, of the topology
    rows: tuple[int, ...]  # of the features of each table: 0 where the client's device brings all of them
    shape: AnyShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A client uses a segment no more."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmap:
    """The host freed a segment."""

    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A client has no batch yet: it shows how far it is, and asks for a sign of life."""

    run: int
    waits: bool  # its consumer waits; False: it looks ahead
    received: int  # batches of the run
    epoch: int  # of the batch that it waits for
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The host is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A client wants no more batches of run ``run``."""

    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The host sends no more batches of run ``run``: this is behind the last one."""

    run: int


# --- when something ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A client failed."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """The host tells of an error that ends a run, or everything."""

    text: str
    notes: tuple[str, ...]
    run: int | None = None  # None: nothing can go on
    now: bool = False  # at once; False: behind the batches of the run that came before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """A rank closed its loader."""


Message: TypeAlias = (
    Hello
    | TryStep
    | HoldRows
    | ReachFeatures
    | SettleFeatures
    | Answer
    | Welcome
    | Begin
    | Started
    | Segment
    | Batch
    | Release
    | Unmap
    | Ping
    | Pong
    | Leave
    | Left
    | Failed
    | ErrorReport
    | Bye
)

_KINDS: Final[dict[str, type[Message]]] = {
    "hello": Hello,
    "try": TryStep,
    "hold": HoldRows,
    "reach": ReachFeatures,
    "settle": SettleFeatures,
    "answer": Answer,
    "welcome": Welcome,
    "begin": Begin,
    "started": Started,
    "segment": Segment,
    "batch": Batch,
    "release": Release,
    "unmap": Unmap,
    "ping": Ping,
    "pong": Pong,
    "leave": Leave,
    "left": Left,
    "failed": Failed,
    "error": ErrorReport,
    "bye": Bye,
}
_OPS: Final = {kind: op for op, kind in _KINDS.items()}


def to_json(message: Message) -> dict[str, Any]:
    """Return ``message`` as a JSON object: its kind as "op", and the fields that are not at their default. Pure."""
    found: dict[str, Any] = {"op": _OPS[type(message)]}
    for name, default, _ in _FIELDS[type(message)]:
        value = getattr(message, name)
        if value != default:
            found[name] = _encoded(value)
    return found


def parse(document: object) -> Message:
    """Return the message that `to_json` made ``document`` from. Pure.

    Raises
    ------
    RankError
        It is no message: says which kind, field or value is wrong.
    """
    op = document.get("op") if isinstance(document, dict) else None
    kind = _KINDS.get(op) if isinstance(op, str) else None
    if kind is None or not isinstance(document, dict):
        raise _refusal(f"{str(document)[:200]!r}, which is no kind of message")
    try:
        return _parsed(kind, {name: value for name, value in document.items() if name != "op"})
    except ValueError as error:
        raise _refusal(f"a message {op!r} whose {error}") from None


def _encoded(value: object) -> object:
    if isinstance(value, BatchShape | HeteroShape):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


def _refusal(what: str) -> RankError:
    return RankError(f"another rank sent {what}; use one version of gloader on all ranks")


def _parsed(kind: type[Any], given: dict[str, Any]) -> Any:
    """Return a ``kind`` with the fields ``given``."""
    values = {}
    for name, default, parser in _FIELDS[kind]:
        if name in given:
            try:
                values[name] = parser(given.pop(name))
            except ValueError as error:
                raise ValueError(f"field {name!r} {error}") from None
        elif default is MISSING:
            raise ValueError(f"field {name!r} is missing")
    if given:
        raise ValueError(f"field {next(iter(given))!r} is unknown")
    return kind(**values)


def _of_type(kind: type, text: str) -> Parser:
    def parse_one(value: Any) -> Any:
        if type(value) is not kind:  # a bool is an int to isinstance
            raise ValueError(f"is {value!r:.80}, not {text}")
        return value

    return parse_one


def _number(value: Any) -> float:
    if type(value) not in {int, float}:
        raise ValueError(f"is {value!r:.80}, not a number")
    return float(value)


def _list_of(parser: Parser, length: int | None = None) -> Parser:
    def parse_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or length not in {None, len(value)}:
            raise ValueError(f"is {value!r:.80}, not a list{'' if length is None else f' of {length}'}")
        return tuple(parser(item) for item in value)

    return parse_all


def _row_dtype(value: Any) -> str:
    if value not in get_args(RowDtype):
        raise ValueError(f"is {value!r:.80}, not one of {', '.join(get_args(RowDtype))}")
    return str(value)


def _named_size(value: Any) -> tuple[str, int]:
    name, num_bytes = _list_of(lambda item: item, 2)(value)
    return _text(name), _integer(num_bytes)


def _record(kind: type[Any]) -> Parser:
    def parse_record(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"is {value!r:.80}, not an object")
        return _parsed(kind, dict(value))

    return parse_record


def _or_none(parser: Parser) -> Parser:
    return lambda value: None if value is None else parser(value)


_integer: Final = _of_type(int, "an integer")
_text: Final = _of_type(str, "a text")

# By the text of the annotation: annotations are not evaluated, and some name what only type checkers import.
_PARSERS: Final[dict[str, Parser]] = {
    "int": _integer,
    "bool": _of_type(bool, "true or false"),
    "str": _text,
    "float": _number,
    "Features": _text,
    "tuple[RowDtype, ...]": _list_of(_row_dtype),
    "tuple[int, ...]": _list_of(_integer),
    "tuple[int, int]": _list_of(_integer, 2),
    "tuple[str, ...]": _list_of(_text),
    "tuple[tuple[str, int], ...]": _list_of(_named_size),
    "AnyShape": parse_shape,
    "MemoryPlan": _record(MemoryPlan),
    "SuperbatchSize": _record(SuperbatchSize),
    "SweepPlan": _record(SweepPlan),
    "StepSeconds": _record(StepSeconds),
    "Strategy": _text,
    "tuple[float, ...]": _list_of(_number),
}


def _parser_of(annotation: str) -> Parser:
    inner = annotation.removesuffix(" | None")
    return _PARSERS[inner] if inner == annotation else _or_none(_PARSERS[inner])


# Worked out once: a message is parsed for every batch. The default is MISSING for a field that has none.
_FIELDS: Final[dict[type[Any], tuple[tuple[str, Any, Parser], ...]]] = {
    kind: tuple((field.name, field.default, _parser_of(str(field.type))) for field in fields(kind))
    for kind in (*_KINDS.values(), MemoryPlan, SuperbatchSize, SweepPlan, StepSeconds)
}
