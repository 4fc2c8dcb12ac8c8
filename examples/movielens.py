"""MovieLens-100K as three tables in RelBench's format: users, movies and ratings, with a time for each rating.

    pip install --no-deps recbole
    python examples/movielens.py FOLDER

takes the files that the package recbole brings along, and writes the folder that `gloader prepare relbench:FOLDER`
reads. There are three tasks. "rating" completes the column of that name. "returns" asks whether a user who rated within
four weeks rates again within the next four. "likes" are the movies that a user then rates with 4 or 5.
"""

from __future__ import annotations

import argparse
import importlib.util
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import yaml

WEEK = 7 * 86_400
WINDOW = 4 * WEEK
# The ratings are of September 1997 to April 1998. The last eight weeks are for validation and test.
VALID, TEST = (int(datetime(1998, month, day, tzinfo=UTC).timestamp()) for month, day in ((2, 25), (3, 25)))
ENTITY = {"entity_table": "users", "entity_col": "user_id", "time_col": "timestamp"}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder to make")
    folder = parser.parse_args().folder
    found = importlib.util.find_spec("recbole")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("recbole is not installed: pip install --no-deps recbole")
    write_movielens(folder, Path(found.submodule_search_locations[0]) / "dataset_example" / "ml-100k")


def write_movielens(folder: Path, source: Path) -> None:
    """Write the tables and tasks of the files in ``source`` into the new ``folder``."""
    users, movies, given = (_read(source / f"ml-100k.{name}") for name in ("user", "item", "inter"))
    times = given["timestamp"].to_numpy().astype(np.int64)
    order = np.argsort(times, kind="stable")  # RelBench asks for rows in the order of their times
    times, stars = times[order], given["rating"].to_numpy()[order]
    who, what = (
        _row_of(table[name])[given[name].to_numpy()[order]]
        for table, name in ((users, "user_id"), (movies, "item_id"))
    )
    _write(
        folder / "db/users.parquet",
        user_id=np.arange(len(users)),
        age=users["age"],
        gender=users["gender"],
        occupation=users["occupation"],
    )
    _write(
        folder / "db/movies.parquet",
        movie_id=np.arange(len(movies)),
        title=movies["movie_title"],
        year=movies["release_year"],
        genres=movies["class"],
    )
    _write(
        folder / "db/ratings.parquet",
        rating_id=np.arange(len(times)),
        user_id=who,
        movie_id=what,
        timestamp=_stamps(times),
        rating=stars,
    )
    ratings = {
        "pkey": "rating_id",
        "time_col": "timestamp",
        "fkeys": {"user_id": "users", "movie_id": "movies"},
    }
    tables = {"users": {"pkey": "user_id"}, "movies": {"pkey": "movie_id"}, "ratings": ratings}
    limits = {"val_timestamp": _text(VALID), "test_timestamp": _text(TEST)}
    _describe(folder, {"name": "movielens-100k", **limits, "tables": tables})
    seeds = {"train": [VALID - number * WINDOW for number in (5, 4, 3, 2, 1)], "val": [VALID], "test": [TEST]}
    for name, description in {
        "rating": {
            "kind": "autocomplete",
            "task_type": "regression",
            "entity_table": "ratings",
            "target_col": "rating",
        },
        "returns": {
            "kind": "external",
            "task_type": "binary_classification",
            **ENTITY,
            "target_col": "returns",
        },
        "likes": {
            "kind": "external",
            "task_type": "recommendation",
            "time_col": "timestamp",
            "src_entity_table": "users",
            "src_entity_col": "user_id",
            "dst_entity_table": "movies",
            "dst_entity_col": "movie_id",
            "eval_k": 10,
        },
    }.items():
        _describe(folder / "tasks" / name, {"name": name, **description})
    for part, starts in seeds.items():
        rows = [_window(start, times, who, what, stars) for start in starts]
        stamps, seen, again, liked = ([one for each in rows for one in each[number]] for number in range(4))
        when = _stamps(np.array(stamps, np.int64))
        _write(folder / f"tasks/returns/{part}.parquet", timestamp=when, user_id=seen, returns=again)
        kept = [number for number, each in enumerate(liked) if each]
        _write(
            folder / f"tasks/likes/{part}.parquet",
            timestamp=when.take(kept),
            user_id=[seen[number] for number in kept],
            movie_id=[liked[number] for number in kept],
        )
        low, high = {"train": (0, VALID), "val": (VALID, TEST), "test": (TEST, 2**62)}[part]
        rated = np.flatnonzero((times > low) & (times <= high))
        _write(
            folder / f"tasks/rating/{part}.parquet",
            timestamp=_stamps(times[rated]),
            rating_id=rated,
            rating=stars[rated],
        )


def _window(start: int, times: Any, who: Any, what: Any, stars: Any) -> tuple[list[int], ...]:
    """Return time, user, whether the user returns, and the liked movies, for all users of the weeks before."""
    before = (times > start - WINDOW) & (times <= start)
    after = (times > start) & (times <= start + WINDOW)
    seen = np.unique(who[before]).tolist()
    liked = [np.unique(what[after & (who == user) & (stars >= 4)]).tolist() for user in seen]
    again = np.isin(seen, who[after]).astype(np.int64).tolist()
    return [start] * len(seen), seen, again, liked


def _read(path: Path) -> pa.Table:
    """Return an atomic file of recbole: text with tabs, and the kind of each column after its name."""
    table = pacsv.read_csv(path, parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False))
    return table.rename_columns([name.partition(":")[0] for name in table.column_names])


def _row_of(ids: Any) -> Any:
    """Return the row of each id, as an array that ids index."""
    values = ids.to_numpy()
    rows = np.full(values.max() + 1, -1, np.int64)
    rows[values] = np.arange(len(values))
    return rows


def _stamps(seconds: Any) -> Any:
    """Return times in the form that RelBench reads."""
    return pa.array(seconds, pa.timestamp("s")).cast(pa.timestamp("ns"))


def _text(seconds: int) -> str:
    """Return a time as text."""
    return str(np.datetime64(seconds, "s"))


def _write(path: Path, **columns: Any) -> None:
    """Write a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def _describe(folder: Path, content: dict[str, Any]) -> None:
    """Write a description."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({**content, "manifest_version": 1}, sort_keys=False)
    (folder / "manifest.yaml").write_text(text)


if __name__ == "__main__":
    main()
