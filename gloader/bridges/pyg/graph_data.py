"""What a dataset is to a loop that was written for PyG's ``Data``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gloader.core.near_names import missing_attribute, near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from typing import Any, Never

    from gloader.dataset import Dataset
    from gloader.types import IdArray


_OF_BATCHES = ("x", "edge_index", "edge_attr", "edge_weight", "y")
ON_DEVICE = (
    "it stays where it is: the loader's device= brings the batches there, and a mask has .to() of its own"
)
_ELSEWHERE = {
    "to": ON_DEVICE,
    "cuda": ON_DEVICE,
    "cpu": ON_DEVICE,
    "x": "the rows of a batch are batch.x, and dataset.open_features() reads any others",
    "edge_index": "the edges of a batch are batch.edge_index, and dataset.load_graph() has all of them",
}


def require_own(owner: object, name: str) -> None:
    """Raise ConfigError where ``name`` is set that batches have of the dataset."""
    if name in _OF_BATCHES:
        raise ConfigError(
            f"a {type(owner).__name__}'s {name!r} is that of the prepared dataset, which batches are made of: change "
            "it before `gloader prepare` or Dataset.from_pyg"
        )


@near_keywords
class GraphData:
    """The numbers, labels and masks of a dataset, by the names that ``torch_geometric.data.Data`` gives them.

    What is small enough for memory: nine bytes a node for ``y`` and a mask, when first asked for. Neither features nor
    edges: ``x`` and ``edge_index`` are those of batches.

    Raises
    ------
    ConfigError
        The dataset has several types of nodes.
    """

    def __init__(self, dataset: Dataset) -> None:
        if dataset.kind != "homogeneous":
            raise ConfigError(
                "this dataset has several types of nodes; use gloader.adapters.pyg.HeteroGraphData"
            )
        self.dataset = dataset

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.dataset.num_nodes

    @property
    def num_edges(self) -> int:
        """E."""
        return self.dataset.num_edges

    @property
    def num_features(self) -> int:
        """F."""
        return self.dataset.feature_dim

    @property
    def num_node_features(self) -> int:
        """F."""
        return self.dataset.feature_dim

    @property
    def num_classes(self) -> int:
        """Number of classes, which PyG asks its dataset for."""
        return self.dataset.num_classes

    @cached_property
    def y(self) -> torch.Tensor:
        """(N,) int64 class of each node, -1 where unlabelled."""
        return torch.tensor(self.dataset.labels)

    @cached_property
    def train_mask(self) -> torch.Tensor:
        """(N,) bool: the training nodes."""
        return self._mask(self.dataset.train)

    @cached_property
    def val_mask(self) -> torch.Tensor:
        """(N,) bool: the validation nodes."""
        return self._mask(self.dataset.valid)

    @cached_property
    def test_mask(self) -> torch.Tensor:
        """(N,) bool: the test nodes."""
        return self._mask(self.dataset.test)

    def _mask(self, nodes: IdArray) -> torch.Tensor:
        mask = torch.zeros(self.num_nodes, dtype=torch.bool)
        mask[torch.tensor(nodes)] = True
        return mask

    def __repr__(self) -> str:
        """Return the numbers, as PyG prints what its ``Data`` holds."""
        sizes = ("num_nodes", "num_edges", "num_features", "num_classes")
        held = ", ".join(f"{name}={getattr(self, name)}" for name in sizes)
        return f"GraphData({held}, y, train_mask, val_mask, test_mask, dataset={self.dataset.location!r})"

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the attribute of that name, as of PyG's ``Data``."""
        setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep ``value`` in memory, such as a mask of one's own; refuse what batches have of the dataset.

        Raises
        ------
        ConfigError
            No batch would have it.
        """
        require_own(self, name)
        super().__setattr__(name, value)

    def __getitem__(self, name: str) -> Any:
        """Return the attribute of that name."""
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __getattr__(self, name: str) -> Never:
        # Not a gloader error: hasattr() and copy.copy() ask by way of it.
        raise missing_attribute("a GraphData", name, dir(type(self)), _ELSEWHERE)
