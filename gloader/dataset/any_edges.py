"""What has one topology: a dataset of one type, or a relation of one of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gloader.dataset.dataset import Dataset
    from gloader.dataset.edge_table import EdgeTable

AnyEdges: TypeAlias = "Dataset | EdgeTable"
