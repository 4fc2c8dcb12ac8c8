"""Messages and sums by the names of ``dgl.function``, for ``update_all`` and ``apply_edges`` of a block."""

from typing import Any

from gloader.bridges.dgl_api.edge_list import copy_e as copy_e
from gloader.bridges.dgl_api.edge_list import copy_u as copy_u
from gloader.bridges.dgl_api.edge_list import of_two, reduction
from gloader.bridges.dgl_api.names import missing_from
from gloader.bridges.migrate.advice import SURFACE

sum, mean, max, min = map(reduction, ("sum", "mean", "max", "min"))  # noqa: A001 - as DGL calls them

_missing = missing_from("dgl.function")


def __getattr__(name: str) -> Any:
    """Return the message of two operands of that name, such as ``u_mul_e``."""
    if name.count("_") == 2 and name in SURFACE["dgl.function"]:
        return of_two(name)
    return _missing(name)
