"""The pages of the site that are made from code say what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gloader import errors
from gloader.core.negatives import Uniform
from gloader.samplers import CscGraph, NeighborSampler

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = "https://forge/{kind}/main"


@pytest.fixture(scope="module")
def error_texts() -> ModuleType:
    return _module("error_texts")


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    return _module("site_pages")


def _module(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "_ext")
        return __import__(name)


def test_every_error_is_on_the_page_in_the_order_of_its_file(error_texts: ModuleType) -> None:
    shown = re.findall(r"^### (\w+)$", error_texts.page("https://forge"), re.MULTILINE)
    assert shown == [
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    ]


def test_the_page_has_the_texts_of_the_code(error_texts: ModuleType) -> None:
    texts = error_texts.texts()
    assert sum(map(len, texts.values())) > 1200
    shown = {kind.__name__ for kinds in error_texts.classes().values() for kind in kinds}
    assert shown - set(texts) <= {"GloaderError", "GloaderDeprecationWarning"}


def _raised() -> list[Exception]:
    graph = CscGraph(indptr=np.array([0, 1, 2]), indices=np.array([1, 0]))
    found: list[Exception] = []
    for make in (
        lambda: CscGraph(indptr=np.array([0, 2, 1]), indices=np.array([1])),
        lambda: NeighborSampler(graph, [1.5]),
        lambda: NeighborSampler(graph, [-2]),
        lambda: Uniform(0),
    ):
        with pytest.raises(errors.GloaderError) as error:
            make()
        found.append(error.value)
    return found


def test_an_error_is_found_by_its_text(error_texts: ModuleType) -> None:
    for error in _raised():
        shown = error_texts.texts()[type(error).__name__]
        fixed = [[re.escape(part) for part in one.text.split(error_texts.ANYTHING)] for one in shown]
        assert any(re.fullmatch(".*".join(parts), str(error), re.DOTALL) for parts in fixed), str(error)


def test_texts_behind_names_calls_and_parameters_are_found(error_texts: ModuleType) -> None:
    code = """
HINT = "use 2"

def why(name):
    return f"{name} is wrong" if name else "nothing is right"

def _refuse(what):
    raise ConfigError(f"{what}; {HINT}")

class Store:
    def check(self, size, error):
        text = f"it has {size} bytes"
        raise StoreReadError(5, text, "path") from error

    def close(self):
        _refuse("too late")
        raise StateError(why(self.name))
"""
    found = {(name, text) for name, text, _ in error_texts.texts_of(code)}
    assert found == {
        ("ConfigError", "too late; use 2"),
        ("StoreReadError", "it has … bytes"),
        ("StateError", "… is wrong"),
        ("StateError", "nothing is right"),
    }


@pytest.mark.parametrize(
    ("link", "written_in", "page", "expected"),
    [
        ("[x](docs/pipeline.md#stalls)", "../ARCHITECTURE.md", "architecture.md", "[x](pipeline.md#stalls)"),
        ("[x](../ARCHITECTURE.md)", "pipeline.md", "pipeline.md", "[x](architecture.md)"),
        ("[x](../../LICENSE)", "adr/README.md", "adr/README.md", "[x](https://forge/blob/main/LICENSE)"),
        ("[x](../examples/cluster)", "cluster.md", "cluster.md", "[x](https://forge/tree/main/examples/cluster)"),
        ("![x](docs/images/inspect-demo.png)", "../README.md", "index.md", "![x](images/inspect-demo.png)"),
        ("[x](docs/adr/)", "../README.md", "index.md", "[x](adr/README.md)"),
        ("[x](https://a.b/c)", "pipeline.md", "pipeline.md", "[x](https://a.b/c)"),
        ("[x](no-such.md)", "pipeline.md", "pipeline.md", "[x](no-such.md)"),
    ],
)  # fmt: skip
def test_links_hold_on_the_site(
    site_pages: ModuleType, link: str, written_in: str, page: str, expected: str
) -> None:
    shown = site_pages.with_site_links(
        link, written_in=(DOCS / written_in).resolve(), page=DOCS / page, source=SOURCE
    )
    assert shown == expected.format(kind="blob")


def test_links_of_the_readme_hold_on_pypi_and_lead_to_files() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    raw = own.replace("https://github.com", "https://raw.githubusercontent.com")
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    for link in links:
        assert link.startswith((f"{own}/blob/main/", f"{raw}/main/")), (
            f"{link}: PyPI shows no file of this folder"
        )
        assert (ROOT / link.partition("/main/")[2].partition("#")[0]).is_file(), link


@pytest.mark.parametrize(("seconds", "said"), [(1, "1 min"), (3570, "1 h 00 min"), (33_900, "9 h 25 min")])
def test_an_epoch_is_told_in_hours_and_minutes(seconds: float, said: str) -> None:
    assert _module("fit_tables")._hours(seconds) == said


def test_every_page_is_in_the_menu() -> None:
    menu = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL))
    named = set(re.findall(r"^(?:[\w ]+ <)?([\w/-]+)>?$", menu, re.MULTILINE))
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages <= named


def test_every_marker_of_a_page_is_made(site_pages: ModuleType) -> None:
    for path in DOCS.rglob("*.md"):
        for name in re.findall(r"<!-- made by docs/_ext: ([\w-]+) -->", path.read_text()):
            assert name in site_pages.MAKERS, f"{path.name}: {name}"


def test_the_sizes_that_stand_in_the_file_are_those_that_the_code_makes(site_pages: ModuleType) -> None:
    """Where it fails, put the output of docs/_ext/fit_tables.py into the page: readers of the files see that alone."""
    tables = site_pages.fit_tables
    name = "ogbn-products"
    made = tables._sizes({name: tables._questions()[name]}).splitlines()[-1].replace(tables.NO_BREAK, " ")
    assert made in (DOCS / "fit.md").read_text()
    for made in tables.propagations().splitlines():
        assert made.replace(tables.NO_BREAK, " ") in (DOCS / "fit.md").read_text()


def test_the_page_of_commands_has_every_command(site_pages: ModuleType) -> None:
    shown = site_pages.MAKERS["commands"](DOCS / "cli.md", SOURCE)
    for command in ("prepare", "train", "infer", "fit", "bench sampler"):
        assert f"# gloader {command}\n" in shown
    assert "sphinx" not in shown
    assert "pytest" not in shown
