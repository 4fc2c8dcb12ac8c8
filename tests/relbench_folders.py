"""Folders in RelBench's format: a shop with a task of each type, and databases of random schemas.

The format is that of RelBench 3.0.2: plain Parquet files, and descriptions in YAML that say keys, times and tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

DAY = pd.Timedelta(days=1)
START = pd.Timestamp("2020-01-01")
VALID, TEST, END = (START + days * DAY for days in (240, 300, 360))
WINDOW = 30 * DAY
CITIES, KINDS = ("Bern", "Lima", "Oslo"), ("book", "game", "tool")


@dataclass
class Table:
    """A table with the relations that its file does not have."""

    frame: pd.DataFrame
    pkey: str | None = None
    time_col: str | None = None
    fkeys: dict[str, str] = field(default_factory=dict)


def write_database(folder: Path, tables: dict[str, Table], *, valid: Any = VALID, test: Any = TEST) -> None:
    """Write the tables and their description."""
    (folder / "db").mkdir(parents=True)
    for name, table in tables.items():
        table.frame.to_parquet(folder / "db" / f"{name}.parquet", index=False)
    content = {
        "name": folder.name,
        "manifest_version": 1,
        "val_timestamp": str(valid),
        "test_timestamp": str(test),
        "tables": {
            name: {"pkey": table.pkey, "time_col": table.time_col, "fkeys": table.fkeys}
            for name, table in tables.items()
        },
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def write_task(folder: Path, name: str, description: dict[str, Any], **parts: pd.DataFrame) -> None:
    """Write a task and its files: train, val and test."""
    place = folder / "tasks" / name
    place.mkdir(parents=True)
    given = {"name": name, "kind": "external", **description, "manifest_version": 1}
    (place / "manifest.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    for part, frame in parts.items():
        frame.to_parquet(place / f"{part}.parquet", index=False)


# The columns of the shop's tasks that predict for a customer, and each one's type.
CUSTOMER_TASKS = {
    "churn": "binary_classification",
    "spend": "regression",
    "favourite": "multiclass_classification",
    "kinds": "multilabel_classification",
}


def write_shop(
    folder: Path, *, num_customers: int = 60, num_orders: int = 1500, seed: int = 0
) -> dict[str, Table]:
    """Write a shop: customers, products and orders, with five tasks on customers and one on orders.

    Rows of tables with times are sorted by them, and keys are 0..N-1, as RelBench asks. A customer prefers one kind of
    product, and half of the customers stop to order for good at some time.
    """
    random = np.random.default_rng(seed)
    num_products, days = 24, int((END - START) / DAY)
    customers = pd.DataFrame(
        {
            "customer_id": np.arange(num_customers),
            "signup": START + pd.to_timedelta(np.sort(random.integers(0, days // 4, num_customers)), "D"),
            "city": random.choice(CITIES, num_customers),
            "age": np.where(
                random.random(num_customers) < 0.1, np.nan, random.integers(18, 80, num_customers)
            ),
            "newsletter": random.random(num_customers) < 0.5,
        }
    )
    products = pd.DataFrame(
        {
            "product_id": np.arange(num_products),
            "kind": [KINDS[number % 3] for number in range(num_products)],
            "price": random.uniform(1, 50, num_products).round(2),
            "name": [f"product {number} of a long list" for number in range(num_products)],
        }
    )
    stop = np.where(random.random(num_customers) < 0.5, days, random.integers(days // 3, days, num_customers))
    taste = random.integers(0, 3, num_customers)
    who = random.integers(0, num_customers, num_orders)
    when = random.integers(days // 4, days, num_orders)
    keep = when < stop[who]
    who, when = who[keep], when[keep]
    order = np.argsort(when, kind="stable")
    who, when = who[order], when[order]
    likes = random.random(len(who)) < 0.8
    what = np.where(likes, taste[who] + 3 * random.integers(0, num_products // 3, len(who)), -1)
    what = np.where(what < 0, random.integers(0, num_products, len(who)), what)
    orders = pd.DataFrame(
        {
            "order_id": np.arange(len(who)),
            "customer_id": who,
            "product_id": pd.array(what, dtype="Int64"),
            "date": START + pd.to_timedelta(when * 24 + random.integers(0, 24, len(who)), "h"),
            "amount": (products["price"].to_numpy()[what] * random.integers(1, 4, len(who))).round(2),
            "rating": np.where(likes, random.integers(4, 6, len(who)), random.integers(1, 4, len(who))),
        }
    ).sort_values("date", kind="stable", ignore_index=True)
    orders["order_id"] = np.arange(len(orders))
    orders.loc[random.random(len(orders)) < 0.02, "product_id"] = pd.NA
    tables = {
        "customers": Table(customers, pkey="customer_id", time_col="signup"),
        "products": Table(products, pkey="product_id"),
        "orders": Table(
            orders,
            pkey="order_id",
            time_col="date",
            fkeys={"customer_id": "customers", "product_id": "products"},
        ),
    }
    write_database(folder, tables)
    _write_tasks(folder, customers, products, orders)
    return tables


def _write_tasks(folder: Path, customers: pd.DataFrame, products: pd.DataFrame, orders: pd.DataFrame) -> None:
    """Write the shop's tasks."""
    seeds = {
        "train": [VALID - number * WINDOW for number in range(5, 0, -1)],
        "val": [VALID],
        "test": [TEST],
    }
    window = {"timedelta": "30 days", "sql": "SELECT 1"}
    entity = {"entity_table": "customers", "entity_col": "customer_id", "time_col": "timestamp"}
    made = {
        part: [_next(customers, products, orders, time) for time in times] for part, times in seeds.items()
    }
    frames = {part: pd.concat(each, ignore_index=True) for part, each in made.items()}
    for name, kind in CUSTOMER_TASKS.items():
        columns = ["timestamp", "customer_id", name]
        description = {"kind": "forecast", "task_type": kind, **entity, "target_col": name, **window}
        parts = {part: frame[columns].dropna() for part, frame in frames.items()}
        parts["train"] = (
            parts["train"].astype({"favourite": np.int64}) if name == "favourite" else parts["train"]
        )
        write_task(folder, f"customer-{name}", description, **parts)
    ends = {"src_entity_table": "customers", "src_entity_col": "customer_id"}
    ends |= {"dst_entity_table": "products", "dst_entity_col": "product_id"}
    description = {
        "kind": "forecast",
        "task_type": "recommendation",
        **ends,
        "time_col": "timestamp",
        "eval_k": 5,
    }
    lists = {part: frame[frame["products"].map(len) > 0] for part, frame in frames.items()}
    write_task(
        folder,
        "customer-buys",
        {**description, **window},
        **{
            part: frame[["timestamp", "customer_id", "products"]].rename(columns={"products": "product_id"})
            for part, frame in lists.items()
        },
    )
    rated = orders[["date", "order_id", "rating"]]
    write_task(
        folder,
        "order-rating",
        {
            "kind": "autocomplete",
            "task_type": "multiclass_classification",
            "entity_table": "orders",
            "target_col": "rating",
            "remove_columns": [["orders", "amount"]],
        },
        train=rated[rated["date"] <= VALID],
        val=rated[(rated["date"] > VALID) & (rated["date"] <= TEST)],
        test=rated[rated["date"] > TEST],
    )


def _next(
    customers: pd.DataFrame, products: pd.DataFrame, orders: pd.DataFrame, time: pd.Timestamp
) -> pd.DataFrame:
    """Return what each known customer does in the window after ``time``."""
    known = customers.loc[customers["signup"] <= time, "customer_id"]
    after = orders[(orders["date"] > time) & (orders["date"] <= time + WINDOW)].dropna()
    after = after.assign(kind=products["kind"].to_numpy()[after["product_id"].astype(int)])
    rows = []
    for customer in known:
        own = after[after["customer_id"] == customer]
        counts = [int((own["kind"] == kind).sum()) for kind in KINDS]
        rows.append(
            {
                "timestamp": time,
                "customer_id": customer,
                "churn": int(own.empty),
                "spend": float(own["amount"].sum()),
                "favourite": int(np.argmax(counts)) if len(own) else None,
                "kinds": [int(count > 0) for count in counts],
                "products": sorted({int(each) for each in own["product_id"]}),
            }
        )
    return pd.DataFrame(rows)


def write_random(folder: Path, random: np.random.Generator) -> dict[str, Table]:
    """Write a database of a random schema with dangling and missing keys, and rows of one task; return its tables.

    A table with primary keys is sorted by time, with rows without a time at its end.
    """
    names = ["a", "b", "c", "d"][: int(random.integers(1, 5))]
    counts = {name: int(random.integers(1, 30)) for name in names}
    with_key = [name for name in names if name == "a" or random.random() < 0.7]
    tables = {}
    for name in names:
        count = counts[name]
        columns: dict[str, Any] = {}
        table = Table(pd.DataFrame(), fkeys={})
        if name in with_key:
            table.pkey = "id"
            columns["id"] = np.arange(count)
        if random.random() < 0.7:
            table.time_col = "at"
            seconds = random.integers(0, 1000, count) + random.random(count).round(3)
            times = START + pd.to_timedelta(seconds, "s")
            times = pd.Series(times).mask(random.random(count) < 0.1)
            columns["at"] = times.sort_values(na_position="last") if table.pkey else times
            columns["at"] = columns["at"].to_numpy()
        for number in range(int(random.integers(0, 3))):
            parent = str(random.choice(with_key))
            keys = random.integers(0, counts[parent] + 4, count).astype(np.float64)
            keys[random.random(count) < 0.1] = np.nan
            table.fkeys[f"k{number}"] = parent
            columns[f"k{number}"] = keys
        if random.random() < 0.7:
            columns["value"] = random.normal(size=count).round(3)
        if random.random() < 0.5:
            columns["word"] = random.choice(["x", "y", None], count)
        table.frame = pd.DataFrame(columns or {"value": np.zeros(count)})
        tables[name] = table
    valid, test = START + 400 * pd.Timedelta(seconds=1), START + 700 * pd.Timedelta(seconds=1)
    write_database(folder, tables, valid=valid, test=test)
    return tables
