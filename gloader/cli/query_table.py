"""Tables of queries of a knowledge graph: `gloader infer --queries FILE.csv` reads them, and writes their answers.

A query is a triple without its tail, or without its head. Its answers are the entities that complete it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.keys.values import key_chunk
from gloader.convert.readers.column_names import listed, triple_columns
from gloader.convert.readers.open_table import open_table
from gloader.core.keys import key_values
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from gloader.convert.readers.table_streams import NumberTable
    from gloader.dataset import Dataset
    from gloader.dataset.tables import NodeTable
    from gloader.training.knowledge_ranks import TripleRanker
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTable:
    """A table with a query in each row: a column of heads or of tails, and one of relations."""

    table: NumberTable
    entity: str  # the column of heads or tails
    relation: str
    asks_heads: bool

    @classmethod
    def open(cls, path: Path) -> QueryTable:
        """Open the table at ``path``.

        Raises
        ------
        SourceError
            The file is missing or malformed, or has other columns.
        """
        table = open_table(path, is_header=lambda names: "relation" in triple_columns(names))
        found = triple_columns(table.names) if table.has_names else {}
        if "relation" not in found or len(found) != 2:
            seen = f"the columns {listed(table.names)}" if table.has_names else "no header with these names"
            raise SourceError(
                f"--queries {path} has {seen}; name two columns, head and relation to ask for "
                "tails, or relation and tail to ask for heads"
            )
        asks_heads = "tail" in found
        return cls(
            table=table,
            entity=found["tail" if asks_heads else "head"],
            relation=found["relation"],
            asks_heads=asks_heads,
        )

    def answers(
        self, dataset: Dataset, ranker: TripleRanker, *, k: int, known: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the answers of the queries in order, at most ``k`` rows for each: head, relation, tail, rank, score.

        Parameters
        ----------
        dataset : the knowledge graph
        ranker : finds the answers
        k : answers for each query
        known : whether answers may be known triples

        Raises
        ------
        ConfigError
            A key is unknown. The message names the row.
        SourceError
            A key is missing or has the wrong form.
        """
        import pyarrow as pa

        from gloader.training.knowledge_answers import queries
        from gloader.types import ENTITY, RELATION

        entities, relations = dataset.node_tables[ENTITY], dataset.node_tables[RELATION]
        done = 0
        for batch in self.table.read_arrow([self.entity, self.relation], error=SourceError):
            given = self._ids(entities, batch.column(0), self.entity, done)
            asked = self._ids(relations, batch.column(1), self.relation, done)
            done += batch.num_rows
            start = 0
            for ids, scores in ranker.answers(
                queries(given, asked), asks_heads=self.asks_heads, k=k, is_filtered=not known
            ):
                part = slice(start, start + len(ids))
                start += len(ids)
                is_there = ids >= 0
                rows, ranks = np.nonzero(is_there)
                found = entities.keys_of(ids[is_there])
                ends = [entities.keys_of(given[part][rows]), found]
                heads, tails = ends[::-1] if self.asks_heads else ends
                columns = {
                    "head": heads,
                    "relation": relations.keys_of(asked[part][rows]),
                    "tail": tails,
                    "rank": ranks + 1,
                    "score": scores[is_there],
                }
                yield pa.RecordBatch.from_arrays([pa.array(each) for each in columns.values()], list(columns))

    def _ids(self, nodes: NodeTable, column: Any, name: str, first: int) -> IdArray:
        """Return the nodes (n,) of a column's keys; ``first`` is the number of the first row."""
        where, kind = f"--queries {self.table.path}, column {name!r}", nodes.key_kind
        if kind is None:
            raise ConfigError(
                f"{nodes.name!r} nodes of the dataset have no keys, by which {where} names them"
            )
        keys = key_values(key_chunk(column, kind, first_row=first, where=where), kind)
        ids = nodes.ids_of(keys, missing="-1")
        if (ids < 0).any():
            row = int((ids < 0).argmax())
            raise ConfigError(
                f"{where}: row {first + row} has the key {shown(keys.tolist()[row])}, which no {nodes.name} has"
            )
        return ids


def write_answers(
    table: QueryTable, dataset: Dataset, ranker: TripleRanker, out: Path, *, k: int, known: bool
) -> int:
    """Write the answers to the queries of ``table`` to ``out``, a .csv or .parquet file. Return their number.

    The other parameters, and the errors, are those of `QueryTable.answers`.
    """
    from gloader.dataset.table_file import write_table

    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in table.answers(dataset, ranker, k=k, known=known):
            count += batch.num_rows
            yield batch

    write_table(out, counted())
    return count
