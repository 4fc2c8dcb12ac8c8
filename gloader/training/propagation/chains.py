"""The hop columns that a propagation makes, as trees of states. Pure.

A *step* is one hop along a relation in one direction. A *metapath* is a sequence of steps that ends at the target type.
A *chain* is a metapath with one statistic. A *state* is the rows of all nodes of a type after some steps of a chain.
Chains that begin with the same steps share their first states, so the states are trees: the root of a tree is a type's
input rows. A state of the target type is an output: it makes one *column group*, a range of the result's columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from gloader.core.near_names import near_advice
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gloader.types import Relation

Norm: TypeAlias = Literal["gcn", "mean", "ppr"]
Direction: TypeAlias = Literal["in", "out"]
Statistic: TypeAlias = Literal["mean", "min", "max", "std"]
NORMS: Final[tuple[Norm, ...]] = get_args(Norm)
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
STATISTICS: Final[tuple[Statistic, ...]] = get_args(Statistic)
INPUT_NAME: Final = "x"  # name of the group of input columns
# A float32 row of so many columns has 128 KiB. More columns are a mistake, mostly of too many metapaths.
MAX_COLUMNS: Final = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagateSpec:
    """The requested propagation.

    Parameters
    ----------
    hops : number of hops, 1 or more
    norm : "gcn" is ``D^-1/2 (A + I) D^-1/2`` with in-degrees D, as in `GcnConv`; "mean" is ``D^-1 A``; "ppr" is gcn
        with ``alpha`` of the input rows added at every hop (Gasteiger et al., 2019, equation 5)
    alpha : the share of the input rows, between 0 and 1; only for "ppr"
    directions : "in" sends messages along the edges, "out" along the reversed edges
    stats : statistics over the in-neighbours

    Raises
    ------
    ConfigError
        A setting has another value, or is given twice.
    """

    hops: int = 3
    norm: Norm = "gcn"
    alpha: float = 0.0
    directions: tuple[Direction, ...] = ("in",)
    stats: tuple[Statistic, ...] = ("mean",)

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.hops < 1:
            raise ConfigError(f"hops is {self.hops!r}; it must be a whole number, 1 or more")
        _require_known("norm", (self.norm,), NORMS)
        _require_known("directions", self.directions, DIRECTIONS)
        _require_known("stats", self.stats, STATISTICS)
        if self.norm == "ppr" and not 0 < self.alpha < 1:
            raise ConfigError(f"the norm ppr:{self.alpha:g} needs a share between 0 and 1, such as ppr:0.15")
        if self.norm != "ppr" and self.alpha:
            raise ConfigError(
                f"alpha is {self.alpha:g}, but only the norm ppr uses it; write ppr:{self.alpha:g}"
            )


def parse_norm(text: str) -> tuple[Norm, float]:
    """Return the norm and alpha of ``text``: "gcn", "mean" or "ppr:0.15". Pure.

    Raises
    ------
    ConfigError
        The text is none of these.
    """
    name, colon, share = text.partition(":")
    if name == "ppr":
        try:
            return "ppr", float(share)
        except ValueError:
            raise ConfigError(
                f"norm {text!r} needs the share of the input rows; write ppr:0.15, for example"
            ) from None
    _require_known("norm", (name,), NORMS)
    if colon:
        raise ConfigError(f"norm {text!r} has a share, which only ppr uses; write {name}")
    return ("gcn" if name == "gcn" else "mean"), 0.0


def _require_known(setting: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise ConfigError unless ``given`` are different names among ``known``, at least one."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{setting}: {name!r} is unknown; {near_advice(name, known)}")
    if not given or len(set(given)) < len(given):
        raise ConfigError(
            f"{setting} is {','.join(given)!r}; give one or more of {', '.join(known)}, each once"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HopStep:
    """One hop along a relation, in one direction."""

    relation: Relation
    direction: Direction

    @property
    def source(self) -> str:
        """The type whose rows the hop reads."""
        return self.relation[0 if self.direction == "in" else 2]

    @property
    def target(self) -> str:
        """The type whose rows the hop makes."""
        return self.relation[2 if self.direction == "in" else 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopState:
    """The rows of all nodes of a type, after some steps of a chain."""

    path: tuple[HopStep, ...]  # the steps, in the order of computation; empty for input rows
    stat: Statistic  # statistic of the last step; of no meaning for input rows
    node_type: str  # the rows' type
    group: str | None  # the column group that the rows make; None if no chain ends here
    nexts: tuple[HopState, ...]  # the states that are computed from this one

    def walk(self) -> Iterator[HopState]:
        """Yield this state and all states that are computed from it, each before its successors."""
        yield self
        for state in self.nexts:
            yield from state.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """A range of the result's columns."""

    name: str  # "x", "in2.mean", or "cites-writes.mean" with the step nearest to the target first
    start: int
    stop: int  # exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class HopTrees:
    """All states of a propagation."""

    spec: PropagateSpec
    target: str  # the type of the result's rows
    widths: Mapping[str, int]  # input columns of each type of ``roots``
    roots: Mapping[str, HopState]  # the input rows' states of the types that the result needs
    groups: tuple[ColumnGroup, ...]  # the result's columns, in order

    @property
    def width(self) -> int:
        """The number of the result's columns."""
        return self.groups[-1].stop

    def group(self, name: str) -> ColumnGroup:
        """Return the group with this name."""
        return next(group for group in self.groups if group.name == name)


def default_norm(relations: Sequence[Relation]) -> Norm:
    """Return "gcn" if all relations lie within one type, else "mean". Pure."""
    return "gcn" if len({end for source, _, target in relations for end in (source, target)}) == 1 else "mean"


def grow_chains(
    spec: PropagateSpec, *, widths: Mapping[str, int], relations: Sequence[Relation], target: str
) -> HopTrees:
    """Return the states and the result's columns. Pure.

    In a graph with one relation within one type, a chain keeps its direction: its groups are "in1.mean", "out2.max".
    Otherwise there is a chain for every metapath of at most ``spec.hops`` steps. A reversed step is called "~writes".

    Parameters
    ----------
    spec : the request
    widths : input columns of each type that has input rows
    relations : the graph's relations
    target : the type of the result's rows

    Raises
    ------
    ConfigError
        The norm does not fit the relations, no column would be made, or there would be more than `MAX_COLUMNS`.
    """
    if not relations:
        raise ConfigError("the dataset has no edges; hop columns need a dataset with edges")
    between = next((each for each in relations if each[0] != each[2]), None)
    if spec.norm != "mean" and between is not None:
        raise ConfigError(
            f"the norm {spec.norm} needs edges within one type, and {relation_text(between)} joins two types: use "
            "--norm mean"
        )
    grower = _Grower(spec, relations, target)
    total = widths.get(target, 0) + len(spec.stats) * sum(
        width * grower.count(name, spec.hops) for name, width in widths.items()
    )
    if not total:
        raise ConfigError(
            f"no features reach the type {target!r} within {spec.hops} hops; nothing can be propagated"
        )
    if total > MAX_COLUMNS:
        paths = sum(grower.count(name, spec.hops) for name in widths)
        raise ConfigError(
            f"{paths:,} metapaths of at most {spec.hops} hops end at {target!r}, which makes {total:,} columns; at "
            f"most {MAX_COLUMNS:,} are allowed: use fewer --hops, --directions or --stats"
        )
    roots = {name: root for name in widths if (root := grower.root(name)) is not None}
    outputs = [(name, state) for name, root in roots.items() for state in root.walk() if state.group]
    outputs.sort(key=lambda output: grower.rank(output[1]))
    groups, start = [], 0
    for name, state in outputs:
        groups.append(ColumnGroup(name=str(state.group), start=start, stop=start + widths[name]))
        start += widths[name]
    needed = {name: widths[name] for name in roots}
    return HopTrees(spec=spec, target=target, widths=needed, roots=roots, groups=tuple(groups))


class _Grower:
    """Grows the trees of one request."""

    def __init__(self, spec: PropagateSpec, relations: Sequence[Relation], target: str) -> None:
        self._spec = spec
        self._target = target
        self._steps = [
            HopStep(relation=relation, direction=direction)
            for direction in spec.directions
            for relation in relations
        ]
        self._is_plain = len(relations) == 1 and relations[0][0] == relations[0][2]
        # Two relations may have the same middle name; their steps then have the names of all three parts.
        self._uses = Counter(name for _, name, _ in relations)

    def count(self, node_type: str, hops: int) -> int:
        """Return the number of metapaths with 1 to ``hops`` steps from a type to the target."""
        if self._is_plain:
            return hops * len(self._steps)
        total, reached = 0, Counter({node_type: 1})  # walks of the current length, by their last type
        for _ in range(hops):
            following: Counter[str] = Counter()
            for step in self._steps:
                following[step.target] += reached[step.source]
            reached = following
            total += reached[self._target]
        return total

    def root(self, node_type: str) -> HopState | None:
        """Return the tree of a type's input rows, or None if no chain needs them."""
        return self._state((), "mean", node_type, is_output=node_type == self._target)

    def rank(self, state: HopState) -> tuple[int, ...]:
        """Return the place of an output's group: by direction in a plain graph, hops, steps and statistic."""
        if not state.path:
            return (-1,)
        steps = [self._steps.index(step) for step in reversed(state.path)]
        direction = steps[0] if self._is_plain else 0
        return (direction, len(steps), *steps, self._spec.stats.index(state.stat))

    def _state(
        self, path: tuple[HopStep, ...], stat: Statistic, node_type: str, *, is_output: bool
    ) -> HopState | None:
        """Return the state with all states after it; None if neither it nor a later one is an output."""
        nexts = []
        if len(path) < self._spec.hops:
            for step in self._steps_after(path, node_type):
                for following in self._stats_after(path, stat):
                    state = self._state(
                        (*path, step),
                        following,
                        step.target,
                        is_output=step.target == self._target and following in self._spec.stats,
                    )
                    if state is not None:
                        nexts.append(state)
        if not is_output and not nexts:
            return None
        group = self._name(path, stat) if is_output else None
        return HopState(path=path, stat=stat, node_type=node_type, group=group, nexts=tuple(nexts))

    def _steps_after(self, path: tuple[HopStep, ...], node_type: str) -> Iterator[HopStep]:
        """Yield the steps that may follow."""
        for step in self._steps:
            keeps_direction = not self._is_plain or not path or path[-1].direction == step.direction
            if step.source == node_type and keeps_direction:
                yield step

    def _stats_after(self, path: tuple[HopStep, ...], stat: Statistic) -> tuple[Statistic, ...]:
        """Return the statistics of states after one with ``stat``: a deviation is of means, and ends its chain."""
        stats = self._spec.stats
        if stat == "std":
            return ()
        if path and stat != "mean":
            return (stat,)
        first = tuple(each for each in stats if each != "mean" and (not path or each == "std"))
        # Deviations need the means of the hop before, even if the means are no output.
        return ("mean", *first) if "mean" in stats or "std" in stats else first

    def _name(self, path: tuple[HopStep, ...], stat: Statistic) -> str:
        """Return the name of an output's group."""
        if not path:
            return INPUT_NAME
        if self._is_plain:
            return f"{path[0].direction}{len(path)}.{stat}"
        return f"{'-'.join(map(self._step_name, reversed(path)))}.{stat}"

    def _step_name(self, step: HopStep) -> str:
        """Return a step's name in the name of a group."""
        name = step.relation[1] if self._uses[step.relation[1]] == 1 else relation_text(step.relation)
        return name if step.direction == "in" else f"~{name}"
