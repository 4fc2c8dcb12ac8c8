"""A made-up shop: customers whose orders have times, and rows (customer, time) whose labels only a time rule finds.

Each customer has one row, with a time of day 1000. Half of the customer's orders are older than the row, and half are
younger. Three secrets of the row, each 0 or 1, are hidden in different places:

- *past*: older orders say it, and younger orders say the opposite, so that the mean of all orders says nothing.
- *future*: only younger orders say it. A model that finds it has seen what comes after the row.
- *recent*: older orders are days old for 1, and hundreds of days for 0. Only the ages of orders say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.dataset import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

DAY = 86_400
NUM_CUSTOMERS, NUM_OLDER = 400, 3
BY, OF = ("order", "f2p_customer", "customer"), ("customer", "p2f_customer", "order")
PARTS = {"train": slice(0, 240), "valid": slice(240, 320), "test": slice(320, 400)}


def secrets(seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Return the secrets of each customer's row, (NUM_CUSTOMERS,) by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 2, NUM_CUSTOMERS) for name in ("past", "future", "recent")}


def labels() -> dict[str, tuple[str, NDArray[Any]]]:
    """Return the kind and the labels of each task."""
    known = secrets()
    past, recent = known["past"], known["recent"]
    both = np.stack([past, recent], axis=1).astype(np.float32)
    both[::7, 1] = np.nan
    noise = np.random.default_rng(5).normal(0, 0.1, NUM_CUSTOMERS)
    return {
        "past": ("classes", past),
        "future": ("binary", known["future"][:, None].astype(np.float32)),
        "recent": ("binary", recent[:, None].astype(np.float32)),
        "three": ("classes", past + recent),
        "both": ("multilabel", both),
        "amount": ("values", (2 * past - 1 + noise)[:, None].astype(np.float32)),
    }


def orders(seed: int = 1) -> dict[str, NDArray[Any]]:
    """Return the orders: the ``customer`` (M,), ``time`` (M,) and ``features`` (M, 2) of each."""
    rng, known = np.random.default_rng(seed), secrets()
    customer = np.repeat(np.arange(NUM_CUSTOMERS), 2 * NUM_OLDER)
    is_older = np.tile(np.arange(2 * NUM_OLDER) < NUM_OLDER, NUM_CUSTOMERS)
    sign = {name: 2.0 * known[name][customer] - 1 for name in ("past", "future")}
    features = rng.normal(0, 0.3, (len(customer), 2))
    features[:, 0] += np.where(is_older, sign["past"], -sign["past"])
    features[:, 1] += np.where(is_older, 0, sign["future"])
    days = np.where(
        is_older,
        np.where(
            known["recent"][customer] == 1,
            -rng.integers(1, 20, len(customer)),
            -rng.integers(200, 400, len(customer)),
        ),
        rng.integers(1, 300, len(customer)),
    )
    return {"customer": customer, "time": (1000 + days) * DAY, "features": features.astype(np.float32)}


def write_shop(
    path: Path, *, weights: NDArray[np.float32] | None = None, typed: bool = True, **changes: Any
) -> Dataset:
    """Write the shop with two types, or with ``typed=False`` as one type of nodes, the customers first."""
    held = orders()
    num_orders = len(held["customer"])
    rows = np.arange(NUM_CUSTOMERS)
    tables = {
        f"{name}.{part}": {
            "nodes": rows[chosen],
            "times": np.full(len(rows[chosen]), 1000 * DAY),
            "labels": values[chosen],
            "kind": kind,
            **({"type": "customer"} if typed else {}),
            **({} if weights is None else {"weights": weights[chosen]}),
        }
        for name, (kind, values) in labels().items()
        for part, chosen in PARTS.items()
    }
    tables |= changes.pop("tables", {})
    backward = np.stack([held["customer"], np.arange(num_orders)])
    never = np.full(num_orders, np.iinfo(np.int64).min)
    customers = np.random.default_rng(2).normal(0, 1, (NUM_CUSTOMERS, 2)).astype(np.float32)
    if typed:
        return Dataset.from_numpy_hetero(
            path,
            num_nodes={"customer": NUM_CUSTOMERS, "order": num_orders},
            edges={BY: backward[::-1], OF: backward},
            features={"customer": customers, "order": held["features"]},
            edge_time={BY: held["time"], OF: never},
            row_time=changes.pop("row_time", {"order": held["time"]}),
            tables=tables,
            **changes,
        )
    shifted = backward + np.array([[0], [NUM_CUSTOMERS]])
    return Dataset.from_numpy(
        path,
        edge_index=np.concatenate([shifted[::-1], shifted], axis=1),
        features=np.concatenate([customers, held["features"]]),
        edge_time=np.concatenate([held["time"], never]),
        row_time=np.concatenate([np.full(NUM_CUSTOMERS, np.iinfo(np.int64).min), held["time"]]),
        tables=tables,
        **changes,
    )
