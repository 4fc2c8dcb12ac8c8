"""One import name per package, from a checkout, an editable install and a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from distributions import PACKAGES, ROOT, build, clean_environment, copy_tree

IMPORT = (
    "import gloader.samplers, gloader.cache, gloader.ssd_store, gloader; print(gloader.samplers.__file__)"
)


def run_python(*words: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = clean_environment()
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_wheel_is_imported_from_where_it_was_unpacked(tmp_path: Path) -> None:
    wheel = build("wheel", copy_tree(tmp_path / "tree"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    done = run_python("-c", IMPORT, cwd=tmp_path, path=tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "site" / "gloader" / "samplers" / "__init__.py")


def test_installed_package_is_found_from_any_folder(tmp_path: Path) -> None:
    done = run_python("-c", IMPORT, cwd=tmp_path)
    assert done.returncode == 0, (
        f"gloader is not installed in this environment: run `make setup`\n{done.stderr}"
    )
    assert Path(done.stdout.strip()).resolve() == ROOT / "samplers" / "__init__.py"


@pytest.mark.parametrize("name", PACKAGES)
def test_bare_import_from_the_checkout_is_refused(name: str) -> None:
    done = run_python("-c", f"import {name}", cwd=ROOT)
    assert done.returncode == 1
    assert f"ImportError: import this package as gloader.{name}" in done.stderr


def test_links_are_relative_and_point_at_the_packages() -> None:
    for name in PACKAGES:
        assert str((ROOT / "gloader" / name).readlink()) == f"../{name}"


def test_a_bare_machine_trains_and_says_what_its_command_line_lacks(tmp_path: Path) -> None:
    """torch, triton, numba and numpy, with what they need themselves; no program, so no compiler, on the PATH."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests" / "bare_machine.py")],
        env=os.environ | {"PATH": "", "PYTHONPATH": str(ROOT), "GLOADER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    result = json.loads(done.stdout)
    assert (result["batches"], result["features"]) == (10, "ssd")
    assert result["test_acc"] > 0.2  # of ten classes
    assert {"gpu_env", "gpu_training"} <= set(result["checks"])
    *others, last = done.stderr.splitlines()
    assert last == (
        "error: No module named 'cyclopts': the command line needs cyclopts, rich and PyYAML: pip install "
        "'cyclopts>=5,<6' rich pyyaml; loading and training from Python need none of them"
    )
    # Where no test has compiled its kernels yet.
    assert all(line.startswith("compiling gloader's kernels, once") for line in others)
