"""Batches that are kept to be trained on again and again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from typed_batches import full_batch, random_edges, small_schema

from gloader.lab.analyze.analysis import keep_batches
from gloader.types import BatchId, Delivered, DeviceBlock, HeteroReadyBatch, LinkBatch, ReadyBatch


def _plain(index: int, *, rows: int = 3) -> ReadyBatch:
    block = DeviceBlock(
        indptr=torch.tensor([0, 1], dtype=torch.int32),
        indices=torch.tensor([1], dtype=torch.int32),
        edge_ids=torch.tensor([0]),
        src_degree=torch.ones(rows),
        num_src=rows,
        num_dst=1,
        edge_x=torch.full((1, 2), float(index)),
    )
    return ReadyBatch(
        id=BatchId(epoch=0, index=index),
        x=torch.full((rows, 4), float(index)),
        y=torch.zeros(1, dtype=torch.int64),
        blocks=(block,),
        nodes=np.arange(rows),
        num_seeds=1,
    )


def _typed() -> HeteroReadyBatch:
    schema = small_schema()
    x = {
        name: torch.ones(count, dim)
        for (name, count), dim in zip(schema.num_nodes.items(), (6, 4, 0), strict=True)
    }
    return full_batch(schema, random_edges(schema, seed=0), [0, 1], num_hops=1, x=x, y=[0, 1])


def test_what_is_kept_outlives_the_buffers_of_the_loader() -> None:
    batches = [_plain(index) for index in range(3)]
    kept = keep_batches(batches)
    for batch in batches:  # as a loader does that fills its ring again
        batch.x.fill_(-1.0)
        batch.blocks[0].edge_x.fill_(-1.0)
    assert [batch.id.index for batch in kept] == [0, 1, 2]
    assert [batch.x[0, 0].item() for batch in kept] == [0.0, 1.0, 2.0]
    assert [batch.blocks[0].edge_x[0, 0].item() for batch in kept] == [0.0, 1.0, 2.0]
    assert kept[1].y is batches[1].y  # small arrays are nobody else's


def test_batches_of_several_types_and_of_links_are_kept_too() -> None:
    typed = _typed()
    link = LinkBatch(
        batch=_typed(),
        pairs=torch.zeros(1, 2, dtype=torch.int64),
        labels=torch.ones(1),
        edge_ids=np.zeros(1, np.int64),
        num_positives=1,
    )
    given: list[Delivered] = [typed, link]
    kept = keep_batches(given)
    typed.x["paper"].fill_(-1.0)
    link.batch.x["author"].fill_(-1.0)
    assert kept[0].x["paper"].min() == 1.0
    assert kept[1].batch.x["author"].min() == 1.0
    assert kept[1].labels is link.labels


def test_no_more_is_kept_than_is_needed() -> None:
    taken: list[int] = []

    def batches():
        for index in range(100):
            taken.append(index)
            yield _plain(index)

    assert len(keep_batches(batches())) == 4
    assert taken == [0, 1, 2, 3]


def test_one_large_batch_is_enough(monkeypatch) -> None:
    monkeypatch.setattr("gloader.lab.analyze.analysis._KEPT_BYTES", 48)
    assert len(keep_batches([replace(_plain(0), x=torch.ones(3, 4)), _plain(1)])) == 1
