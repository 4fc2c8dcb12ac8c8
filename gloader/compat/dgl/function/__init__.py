"""Message and reduce functions with the names in ``dgl.function``, for a block's ``update_all`` and ``apply_edges``.

A message of two operands, such as ``u_mul_e`` (source feature times edge feature), is made when its name is used.
"""

from typing import Any

from gloader.bridges.dgl_api.edge_list import copy_e as copy_e
from gloader.bridges.dgl_api.edge_list import copy_u as copy_u
from gloader.bridges.dgl_api.edge_list import of_two, reduction
from gloader.bridges.dgl_api.names import missing_from
from gloader.bridges.migrate.advice import SURFACE

sum, mean, max, min = map(reduction, ("sum", "mean", "max", "min"))  # noqa: A001 - DGL's names

_missing = missing_from("dgl.function")


def __getattr__(name: str) -> Any:
    """Return the function for a message from two operands, such as ``u_mul_e``. Other names raise DglFeatureError."""
    if name.count("_") == 2 and name in SURFACE["dgl.function"]:
        return of_two(name)
    return _missing(name)
