"""The content of the wheel and the sdist: the packages as in the tree, with folders in place of links."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from distributions import PACKAGES, ROOT, archived_files, build, content_faults, copy_tree, packaged_files
from release_check import ReleaseError, check_training, version_of, without_local_files

from gloader.core.version import __version__

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tree; the sdist of it; the wheel of the sdist, which is what a release publishes."""
    folder = tmp_path_factory.mktemp("built")
    tree = copy_tree(folder / "tree")
    sdist = build("sdist", tree, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return {"tree": tree, "sdist": sdist, "wheel": build("wheel", unpacked, folder)}


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_every_file_of_the_packages_arrives_and_no_other(built: dict[str, Path], kind: str) -> None:
    wanted = packaged_files(built["tree"])
    for name in PACKAGES:
        files = [path.name for path in (ROOT / name).rglob("*.py")]
        assert sum(path.startswith(f"gloader/{name}/") for path in wanted) == len(files) > 5
    assert content_faults(wanted, built[kind]) == []


def test_the_version_and_the_links_of_the_project_are_in_the_metadata(built: dict[str, Path]) -> None:
    assert version_of([built["wheel"], built["sdist"]]) == __version__
    files = archived_files(built["wheel"])
    (metadata,) = [data.decode() for name, data in files.items() if name.endswith(".dist-info/METADATA")]
    said = metadata.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in ("Homepage", "Documentation", "Changelog", "Issues", "Source"):
        assert f"Project-URL: {name}, {project['urls'][name]}" in said
    assert f"Version: {__version__}" in said
    assert "Author: gloader developers" in said


def test_a_wheel_whose_content_is_wrong_is_refused_by_what_is_wrong(
    built: dict[str, Path], tmp_path: Path
) -> None:
    wanted = packaged_files(built["tree"])
    bad = tmp_path / built["wheel"].name
    with zipfile.ZipFile(bad, "w") as out:
        for name, data in archived_files(built["wheel"]).items():
            if name == "gloader/samplers/labor.py" or name.endswith("/LICENSE"):
                continue
            out.writestr(name, data + b"#" if name == "gloader/py.typed" else data)
        out.writestr("gloader/left_over.py", "")
        out.writestr("samplers/__init__.py", "")
    assert content_faults(wanted, bad) == [
        f"{bad.name}: gloader/samplers/labor.py did not arrive",
        f"{bad.name}: gloader/py.typed arrived changed",
        f"{bad.name}: gloader/left_over.py is packaged and should not be",
        f"{bad.name}: LICENSE did not arrive",
        f"{bad.name}: samplers is installed beside gloader",
    ]


def test_an_sdist_with_a_link_is_refused(built: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / built["sdist"].name
    with tarfile.open(bad, "w:gz") as out:
        member = tarfile.TarInfo("gloader-0/gloader/samplers")
        member.type, member.linkname = tarfile.SYMTYPE, "../samplers"
        out.addfile(member, io.BytesIO())
    assert content_faults({}, bad) == [
        f"{bad.name}: gloader-0/gloader/samplers is neither a file nor a folder"
    ]


def test_a_tag_of_another_version_and_files_of_two_are_refused(
    built: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ReleaseError, match=r"the files are of the versions \['0\.1', '0\.2'\]"):
        version_of([tmp_path / "gloader-0.1-py3-none-any.whl", tmp_path / "gloader-0.2.tar.gz"])


@pytest.mark.parametrize(
    "result", [{"features": "memory", "test_acc": 0.9}, {"features": "ssd", "test_acc": 0.1}]
)
def test_a_run_that_learnt_nothing_or_not_from_the_ssd_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(ReleaseError, match=r"gloader\.whl: training with features"):
        check_training(result, "gloader.whl")
    check_training({"features": "ssd", "test_acc": 0.9}, "gloader.whl")


def test_a_list_of_components_names_no_file_of_the_machine_that_made_it() -> None:
    links = [{"url": "file:///tmp/dist/a.whl"}, {"url": "https://example.org"}]
    listed = {
        "bomFormat": "CycloneDX",
        "components": [{"name": "a", "externalReferences": links}, {"name": "b"}],
    }
    made = without_local_files(listed)
    assert made["components"][0]["externalReferences"] == [{"url": "https://example.org"}]
    assert made["bomFormat"] == "CycloneDX"


def test_the_version_is_read_without_an_import_of_anything(tmp_path: Path) -> None:
    """A build finds no numpy and no torch; the rooms above are not imported for a line of text."""
    program = (
        "import sys; from setuptools.config.pyprojecttoml import read_configuration as r; "
        f"print(r({str(ROOT / 'pyproject.toml')!r})['project']['version'], 'gloader' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [__version__, "False"]
