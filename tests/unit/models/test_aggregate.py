from __future__ import annotations

import torch

from gloader.models.adjacency import Adjacency, mean_neighbors, sum_neighbors


def _adjacency() -> Adjacency:
    indptr = torch.tensor([0, 3, 3, 4], dtype=torch.int32)
    return Adjacency(indptr, torch.tensor([2, 2, 4, 0], dtype=torch.int32), num_src=5)


def test_sums_and_means_the_sources_and_gives_zeros_without_edges() -> None:
    x = torch.arange(10.0).reshape(5, 2)
    total = sum_neighbors(x, _adjacency())
    assert total.tolist() == [[4 + 4 + 8, 5 + 5 + 9], [0, 0], [0, 1]]
    torch.testing.assert_close(mean_neighbors(x, _adjacency())[0], total[0] / 3)


def test_weights_every_edge_by_its_own_number() -> None:
    x = torch.arange(10.0).reshape(5, 2)
    weight = torch.tensor([1.0, 10.0, 100.0, -1.0])
    assert sum_neighbors(x, _adjacency(), weight)[:, 0].tolist() == [4 + 40 + 800, 0, 0]


def test_a_graph_without_edges_gives_zeros_and_zero_gradients() -> None:
    empty = Adjacency(torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), num_src=3)
    x = torch.ones(3, 2, requires_grad=True)
    sum_neighbors(x, empty).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() == 0


def test_the_gradients_are_those_of_a_dense_product() -> None:
    edges = _adjacency()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.tensor([0.5, 2.0, -1.0, 3.0], requires_grad=True)
    upstream = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    (sum_neighbors(x, edges, weight) * upstream).sum().backward()
    found = x.grad, weight.grad
    x.grad = weight.grad = None
    dense = torch.zeros(3, 5).index_put((edges.dst.long(), edges.indices.long()), weight, accumulate=True)
    ((dense @ x) * upstream).sum().backward()
    torch.testing.assert_close(found, (x.grad, weight.grad))


def test_takes_columns_of_a_wider_matrix() -> None:
    x = torch.arange(20.0).reshape(5, 4)
    torch.testing.assert_close(sum_neighbors(x[:, 1:3], _adjacency()), sum_neighbors(x, _adjacency())[:, 1:3])


def test_transposed_lists_the_edges_of_each_source_in_order() -> None:
    offsets, destinations, edges = _adjacency().transposed
    assert offsets.tolist() == [0, 1, 1, 3, 3, 4]
    assert destinations.tolist() == [2, 0, 0, 0]
    assert edges.tolist() == [3, 0, 1, 2]
