"""One import name per package, from a checkout, an editable install, a wheel and an sdist."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("samplers", "cache", "ssd_store")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
IMPORT = (
    "import gloader.samplers, gloader.cache, gloader.ssd_store, gloader; print(gloader.samplers.__file__)"
)


def run_python(*words: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
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


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that a build leaves nothing in the checkout."""
    tree = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("gloader", *PACKAGES):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def build(kind: str, tree: Path, out: Path) -> Path:
    done = run_python("-W", "ignore", "-c", BUILD, f"build_{kind}", str(out), cwd=tree)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def test_wheel_holds_each_package_under_one_name(source_tree: Path, tmp_path: Path) -> None:
    wheel = build("wheel", source_tree, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")  # noqa: S202 - built a moment ago
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gloader"}
    assert {f"gloader/{name}/__init__.py" for name in PACKAGES} <= set(names)
    assert "gloader/py.typed" in names
    done = run_python("-c", IMPORT, cwd=tmp_path, path=tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "site" / "gloader" / "samplers" / "__init__.py")


def test_sdist_holds_the_links_targets_and_builds_again(source_tree: Path, tmp_path: Path) -> None:
    sdist = build("sdist", source_tree, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    wheel = build("wheel", tree, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert {f"gloader/{name}/__init__.py" for name in PACKAGES} <= set(archive.namelist())


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
    assert done.stderr == (
        "error: No module named 'cyclopts': the command line needs cyclopts, rich and PyYAML: pip install "
        "'cyclopts>=5,<6' rich pyyaml; loading and training from Python need none of them\n"
    )
