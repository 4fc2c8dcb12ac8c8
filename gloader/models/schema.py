"""The schema of a model: the node types, feature widths and relations (edge types) of its graph.

`gloader.models.build` derives a network's layers from it. A relation is (source type, name, destination type).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from torch import nn

from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.models.row_ages import AGE_DIM
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.types import Relation


# Names that torch's module dicts refuse as keys, because these are their own attributes.
_TAKEN: Final = frozenset(dir(nn.ModuleDict)) | frozenset(dir(nn.ParameterDict))


def key_of(name: str | Relation) -> str:
    """Return the key of a type or relation in a torch ``ModuleDict``. Pure.

    The key is PyG's where torch allows it: a relation's parts joined by two underscores. torch refuses keys with a dot
    and keys that are attribute names of the dict, so these are changed.
    """
    key = name if isinstance(name, str) else "__".join(name)
    return f"<{key}>" if key in _TAKEN else key.replace(".", "#")


@near_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeColumn:
    """A feature column with codes, the numbers of categories, in place of which a network reads learned numbers.

    The codes are 0 to ``num_values`` - 1, and -1 for a value that no training row has.
    """

    name: str  # the column of the table, such as "city"
    column: int  # its number among the features
    num_values: int
    digest: str  # of the values in the order of their codes; see `gloader.dataset.encoders`
    dim: int  # learned numbers for each value


@near_keywords
def code_dim(num_values: int, hidden: int) -> int:
    """Return the learned numbers for each of ``num_values`` categories, at most ``hidden``. Pure.

    This is fastai's rule for tables, ``1.6 n^0.56``: 8 for 18 values, 21 for 100, 77 for 1,000.
    """
    return max(1, min(hidden, round(1.6 * num_values**0.56)))


@near_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The types and relations of a graph, in the order of its record.

    Raises
    ------
    ConfigError
        A target, or a type of a relation, is not among the types; or there is no target.
    """

    num_nodes: Mapping[str, int]  # by type; the number of learned rows if the type has no features
    # By type, the columns of its rows in a batch: features, and behind them those of an embedding. 0 for a type with
    # neither, whose rows are learned.
    feature_dims: Mapping[str, int]
    relations: tuple[Relation, ...]
    # Types of the output rows: the classified type, or the types of both ends of links.
    targets: tuple[str, ...]
    # The columns with codes of each type that has some, from left to right.
    codes: Mapping[str, tuple[CodeColumn, ...]] = field(default_factory=dict)
    # The types whose rows have times, if batches have the ages of these rows; see `gloader.models.row_ages`.
    aged: tuple[str, ...] = ()
    # The types with an embedding, and its width: these last columns of ``feature_dims`` are trained rows, which are no
    # weights of the network; see `gloader.NodeEmbedding`.
    embedded: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_one_type(
        cls, dim: int, codes: tuple[CodeColumn, ...] = (), *, is_aged: bool = False, embed_dim: int = 0
    ) -> Schema:
        """Return the schema of a graph with one type and ``dim`` columns; its node count stays 0. Pure."""
        return cls(
            num_nodes={NODE: 0},
            feature_dims={NODE: dim},
            relations=(EDGE,),
            targets=(NODE,),
            codes={NODE: codes} if codes else {},
            aged=(NODE,) if is_aged else (),
            embedded={NODE: embed_dim} if embed_dim else {},
        )

    def __post_init__(self) -> None:
        """Check that every target and every end of a relation is a known type."""
        allowed = ", ".join(map(repr, self.num_nodes))
        ends = [(":".join(relation), end) for relation in self.relations for end in relation[::2]]
        if not self.targets:
            raise ConfigError("the model has no target type: name the types of its output rows")
        for owner, name in [*(("the output", name) for name in self.targets), *ends]:
            if name not in self.num_nodes:
                raise ConfigError(f"{owner} names the type {name!r}; there are {allowed}")

    def relations_into(self, node_type: str) -> tuple[Relation, ...]:
        """Return the relations whose destinations are of ``node_type``, in order."""
        return tuple(relation for relation in self.relations if relation[2] == node_type)

    def reaching(self, num_layers: int) -> tuple[tuple[str, ...], ...]:
        """Return the types whose rows influence the output, in the input and after each layer. Pure.

        Parameters
        ----------
        num_layers : number of layers L

        Returns
        -------
        L + 1 tuples, each in the order of the types; the last tuple has only the targets
        """
        needed = set(self.targets)
        by_depth = [needed]  # from the output to the inputs
        for _ in range(num_layers):
            # A node's own row counts too: a needed type is needed in all lower layers.
            needed = needed | {source for source, _, destination in self.relations if destination in needed}
            by_depth.append(needed)
        return tuple(tuple(name for name in self.num_nodes if name in names) for names in reversed(by_depth))

    def added_dim(self, node_type: str) -> int:
        """Return by how much a type's rows widen before the first layer. Pure.

        Learned numbers replace codes, see `CodeColumn`, and ages are appended.
        """
        of_codes = sum(each.dim - 1 for each in self.codes.get(node_type, ()))
        return of_codes + (AGE_DIM if node_type in self.aged else 0)

    @property
    def learned_dim(self) -> int | None:
        """Width of learned rows: the feature width that all types with features share, as in OGB's examples.

        None if there is no such width.
        """
        widths = {dim - self.embedded.get(name, 0) for name, dim in self.feature_dims.items()} - {0}
        return widths.pop() if len(widths) == 1 else None
