"""The wheel and the sdist: built from a copy of what is packaged, and held against it file by file.

`gloader/samplers`, `gloader/cache` and `gloader/ssd_store` are links in the repository, and folders in what is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("samplers", "cache", "ssd_store")
_BESIDE = ("pyproject.toml", "README.md", "LICENSE")  # what a build reads beside the packages
_DATA = ("py.typed", "convert/sources/digits.npz")
_BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def clean_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without what would lead a Python to another gloader."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return kept | changes


def copy_tree(target: Path) -> Path:
    """Copy what is packaged to the new folder ``target``, links as links, so that builds leave the checkout alone."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("gloader", *PACKAGES):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
    for name in _BESIDE:
        shutil.copy(ROOT / name, target / name)
    return target


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build the ``kind`` ("wheel" or "sdist") of ``tree`` into ``out`` with this environment's setuptools."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _BUILD, f"build_{kind}", str(out)],
        cwd=tree,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the {kind} was not built:\n{done.stderr}")
    return out / done.stdout.splitlines()[-1]


def packaged_files(tree: Path) -> dict[str, bytes]:
    """Return every file of ``tree`` that must arrive, by its path from the folder above ``gloader``."""
    top = tree / "gloader"
    # Not Path.rglob, which follows no links.
    folders = [Path(folder) for folder, _, _ in os.walk(top, followlinks=True)]
    modules = [path for folder in folders for path in folder.glob("*.py")]
    files = [*modules, *(top / name for name in _DATA)]
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in files}


def archived_files(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel or sdist, the latter's without the folder that all of them are in.

    Raises
    ------
    ValueError
        A member is neither a file nor a folder.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            names = [info.filename for info in opened.infolist() if not info.is_dir()]
            return {name: opened.read(name) for name in names}
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            if not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive.name}: {member.name} is neither a file nor a folder")
            file = opened.extractfile(member)
            if file is not None:
                found[member.name.partition("/")[2]] = file.read()
    return found


def content_faults(wanted: dict[str, bytes], archive: Path) -> list[str]:
    """Return what is wrong with the content of ``archive``, in sentences; nothing where all of ``wanted`` arrived."""
    try:
        found = archived_files(archive)
    except ValueError as error:
        return [str(error)]
    beside = [name for name in found if name.startswith("gloader/") and name not in wanted]
    faults = [f"{name} did not arrive" for name in wanted if name not in found]
    faults += [f"{name} arrived changed" for name in wanted if found.get(name, wanted[name]) != wanted[name]]
    faults += [f"{name} is packaged and should not be" for name in beside]
    if not any(Path(name).name == "LICENSE" for name in found):
        faults.append("LICENSE did not arrive")
    if archive.suffix == ".whl":
        tops = {name.partition("/")[0] for name in found}
        strange = sorted(top for top in tops if top != "gloader" and not top.endswith(".dist-info"))
        faults += [f"{top} is installed beside gloader" for top in strange]
    return [f"{archive.name}: {fault}" for fault in faults]
