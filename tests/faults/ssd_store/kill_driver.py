"""Children that write stores and are killed; run as a program, prints one JSON line with what was found.

    kill_driver.py random FOLDER SEED COUNT    SIGKILL after a random time
    kill_driver.py points FOLDER               SIGKILL at each named point
    kill_driver.py race FOLDER ROUNDS          several creators on one path

It imports the package once and forks, which takes milliseconds where a new interpreter takes a second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from gloader.errors import StoreError, StoreExistsError, StoreLockedError
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import STORE_MANIFEST, load_manifest
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.os_io import KILL_AT_VARIABLE
from gloader.ssd_store.write.new_directory import KILL_POINTS

ROWS, DIM = 1000, 100  # 400 KB
POINTS_OF_OVERWRITE = ("publish.after_exchange",)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows(version: int) -> np.ndarray:
    return np.full((ROWS, DIM), version, dtype=np.float32) + np.arange(DIM, dtype=np.float32)


def write(path: Path, version: int, *, overwrite: bool = False) -> None:
    with FeatureWriter(path, num_rows=ROWS, dim=DIM, dtype="float32", overwrite=overwrite) as writer:
        for chunk in np.array_split(rows(version), 5):
            writer.append(chunk)


def inspect(path: Path) -> str:
    """Return "absent", the version found, or the error of a refusal."""
    if not path.exists():
        return "absent"
    try:
        manifest = load_manifest(path, STORE_MANIFEST)
    except StoreError as error:
        return type(error).__name__
    report = verify_directory(path, STORE_MANIFEST)
    if not report.is_ok:
        return f"damaged: {report.problems[0].message}"
    array = load_array(path, manifest.arrays["features"])
    version = int(array[0, 0])
    return str(version) if np.array_equal(array, rows(version)) else "wrong rows"


def fork(action) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    return child


def recreate(folder: Path, path: Path) -> str:
    """Create again after the kill; return what stands there and what else is left."""
    write(path, 999, overwrite=True)
    rest = [name for name in names(folder) if name != path.name]
    return f"{inspect(path)} {rest}"


def write_for_ever(path: Path) -> int:
    version = 2
    while True:
        write(path, version, overwrite=True)
        version += 1


def kill_at_random_times(folder: Path, seed: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    write(folder / "warm", 0)  # loads the kernels
    shutil.rmtree(folder / "warm")
    for number in range(count):
        path = folder / f"s{number}"
        has_old = draw.random() < 0.5
        if has_old:
            write(path, 1)
        child = fork(lambda path=path: write_for_ever(path))
        time.sleep(draw.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        found["killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"] += 1
        state = inspect(path)
        found["cut while the folder existed"] += (folder / f".{path.name}.staging").exists()
        is_fine = (state.isdigit() and int(state) >= 1) or (state == "absent" and not has_old)
        found["fine" if is_fine else f"{state} has_old={has_old}"] += 1
        again = recreate(folder, path)
        found["recreated" if again == "999 []" else again] += 1
        shutil.rmtree(path)
        found["clean" if not names(folder) else f"left {names(folder)}"] += 1
    return found


def kill_at_points(folder: Path) -> dict[str, list[str]]:
    found = {}
    cases = [(point, False) for point in KILL_POINTS]
    cases += [
        (point, True) for point in (*KILL_POINTS, *POINTS_OF_OVERWRITE) if point != "publish.after_rename"
    ]
    for point, has_old in cases:
        path = folder / "s"
        if has_old:
            write(path, 1)

        def action(point: str = point, path: Path = path) -> int:
            os.environ[KILL_AT_VARIABLE] = point
            write(path, 2, overwrite=True)
            return 0

        _, status = os.waitpid(fork(action), 0)
        end = "killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        found[f"{point} {'over' if has_old else 'new'}"] = [end, inspect(path), recreate(folder, path)]
        shutil.rmtree(path)
    return found


def race(folder: Path, rounds: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for number in range(rounds):
        path = folder / f"r{number}"
        reader, gate = os.pipe()

        def action(version: int, path: Path = path, reader: int = reader, gate: int = gate) -> int:
            os.close(gate)
            os.read(reader, 1)  # ends when the parent closes the gate
            try:
                write(path, version)
            except StoreLockedError:
                return 3
            except StoreExistsError:
                return 4
            return 0

        children = [fork(lambda version=version: action(version)) for version in (1, 2, 3)]
        os.close(reader)
        os.close(gate)
        codes = [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children]
        winners = [version for version, code in zip((1, 2, 3), codes, strict=True) if code == 0]
        found["one winner" if len(winners) == 1 else f"winners {winners}"] += 1
        found["right rows" if inspect(path) == str(winners[0]) else inspect(path)] += 1
        found.update({3: "locked", 4: "exists"}.get(code, f"exit {code}") for code in codes if code)
        residue = [name for name in names(folder) if name.startswith(".")]
        found["clean" if not residue else f"left {residue}"] += 1
    return found


if __name__ == "__main__":
    mode, folder = sys.argv[1], Path(sys.argv[2])
    numbers = [int(argument) for argument in sys.argv[3:]]
    run = {"random": kill_at_random_times, "points": kill_at_points, "race": race}[mode]
    print(json.dumps(run(folder, *numbers)))
