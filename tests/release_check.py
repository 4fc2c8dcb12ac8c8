"""Checks of a release: `make release-check` and the workflow of a tag run this file.

The sdist and, from it, the wheel are built; their content is held against the tree and their metadata checked. Then
each is installed in an environment of its own, outside the checkout, where it trains the demo graph from the SSD.

    python tests/release_check.py [--tag v0.1.0] [--out dist]

It needs the packages of tests/release-requirements.txt.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from distributions import ROOT, clean_environment, content_faults, copy_tree, packaged_files

CONSTRAINTS = ROOT / "constraints.txt"
# As `make train` trains it, in fewer and smaller steps.
TRAINING = (
    *(
        "train",
        "--dataset",
        "synthetic:demo",
        "--features",
        "ssd",
        "--cache",
        "10%",
        "--memory-budget",
        "350MB",
    ),
    *(
        "--model",
        "graphsage",
        "--fanout",
        "5,5",
        "--batch-size",
        "4096",
        "--hidden",
        "32",
        "--epochs",
        "1",
        "--json",
    ),
)
MIN_ACCURACY = 0.25  # after one short epoch; a guess among 16 classes is right in 6% of cases
_WHERE = (
    "import json, gloader, gloader.samplers, gloader.cache, gloader.ssd_store as s; print(json.dumps([m.__file__ \
for m in (gloader, gloader.samplers, gloader.cache, s)]))"
)


class ReleaseError(Exception):
    """The release must not be published; the message says why."""


def main() -> int:
    """Check a release; return 1 where it must not be published."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", help="of the release, such as v0.1.0: must name the version that is built")
    parser.add_argument(
        "--out", type=Path, help="new folder for the checked files and the list of what they need"
    )
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="gloader-release-") as scratch:
            check_release(Path(scratch), tag=asked.tag, out=asked.out)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def check_release(scratch: Path, *, tag: str | None, out: Path | None) -> None:
    """Build and try both files in ``scratch``; copy them to ``out`` once everything holds."""
    if out is not None and out.exists():
        raise ReleaseError(f"{out} exists: what is to be published stands in a folder of its own")
    tree = copy_tree(scratch / "tree")
    wanted = packaged_files(tree)
    dist = scratch / "dist"
    run([sys.executable, "-m", "build", "--outdir", str(dist), str(tree)], cwd=scratch)
    files = sorted(dist.iterdir())
    if [file.suffix for file in files] != [".whl", ".gz"]:
        raise ReleaseError(
            f"a wheel and an sdist were to be built, and there are {[file.name for file in files]}"
        )
    version = version_of(files)
    if tag is not None and tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag} and the version {version}: gloader/core/version.py says which it is"
        )
    if faults := [fault for file in files for fault in content_faults(wanted, file)]:
        raise ReleaseError("\n".join(faults))
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], cwd=scratch)
    run([str(Path(sys.executable).with_name("check-wheel-contents")), str(files[0])], cwd=scratch)
    for file in files:
        say(
            f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {len(wanted)} files of gloader as they are in the tree"
        )
    needs = dist / f"gloader-{version}.cdx.json"
    for file in files:
        folder = scratch / f"try-{file.suffix[1:]}"
        folder.mkdir()
        try_installed(file, folder, version=version, needs=needs if file.suffix == ".whl" else None)
        shutil.rmtree(folder)  # two environments at once may be more than a small disk holds
    if out is not None:
        shutil.copytree(dist, out)
        say(f"in {out}: {', '.join(sorted(file.name for file in out.iterdir()))}")


def version_of(files: list[Path]) -> str:
    """Return the version that all of ``files`` have in their names. Pure."""
    versions = {file.name.removesuffix(".tar.gz").split("-")[1] for file in files}
    if len(versions) != 1:
        raise ReleaseError(f"the files are of the versions {sorted(versions)}")
    return versions.pop()


def try_installed(file: Path, folder: Path, *, version: str, needs: Path | None) -> None:
    """Install ``file`` in a new environment in ``folder`` and use it there; write what it needs, if asked."""
    began = time.monotonic()
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    run([*pip, str(file)], cwd=folder)
    installed = time.monotonic()
    size = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if not path.is_symlink())
    say(f"{file.name}: installed in {installed - began:.0f} s, {size / 1e9:.2f} GB with what it needs")

    for place in json.loads(run([python, "-c", _WHERE], cwd=folder)):
        if not Path(place).resolve().is_relative_to((folder / "venv").resolve()):
            raise ReleaseError(
                f"{file.name}: gloader is imported from {place}, not from where it was installed"
            )
    gloader = str(folder / "venv" / "bin" / "gloader")
    home = {"GLOADER_HOME": str(folder / "home")}
    told = run([gloader, "--version"], cwd=folder, **home).strip()
    if told != version:
        raise ReleaseError(f"{file.name}: gloader --version says {told!r}, the file is of {version}")
    json.loads(run([gloader, "doctor", "--json"], cwd=folder, **home))
    result = json.loads(run([gloader, *TRAINING, "--out", "run"], cwd=folder, **home))
    check_training(result, file.name)
    if not (folder / "run" / "checkpoint.pt").is_file():
        raise ReleaseError(f"{file.name}: the run left no checkpoint")
    say(
        f"{file.name}: doctor and the demo graph, trained from the SSD to a test accuracy of {result['test_acc']:.2f}, "
        f"in {time.monotonic() - installed:.0f} s"
    )
    if needs is not None:
        listed = run([sys.executable, "-m", "cyclonedx_py", "environment", python], cwd=folder)
        needs.write_text(json.dumps(without_local_files(json.loads(listed)), indent=2) + "\n")


def check_training(result: dict[str, Any], name: str) -> None:
    """Refuse a run that learnt nothing, or whose features did not come from the SSD. Pure."""
    accuracy = result["test_acc"]
    if result["features"] != "ssd" or not accuracy > MIN_ACCURACY:
        raise ReleaseError(
            f"{name}: training with features {result['features']} came to a test accuracy of {accuracy}"
        )


def without_local_files(listed: dict[str, Any]) -> dict[str, Any]:
    """Return a list of components without the places on this machine that they were installed from. Pure."""
    components = []
    for component in listed["components"]:
        links = [
            link for link in component.get("externalReferences", []) if not link["url"].startswith("file:")
        ]
        components.append({**component, "externalReferences": links})
    return {**listed, "components": components}


def run(words: list[str], *, cwd: Path, **environment: str) -> str:
    """Run a program outside the checkout; return what it printed, or raise ReleaseError with all that it said."""
    done = subprocess.run(
        words, cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
