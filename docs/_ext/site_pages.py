"""Turns the Markdown of the repository into the pages of the site, as Sphinx reads it.

What is made from code or files stands between two comments, with words for those who read the file itself:

    <!-- made by docs/_ext: errors -->
    See gloader/errors.py.
    <!-- end -->

Links to files outside of docs/ become links to the source of the repository.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import error_texts
import fit_tables

from gloader.cli.main import build_app

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
_MADE = re.compile(r"<!-- made by docs/_ext: ([\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)
_PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)$")
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")

# Files above docs/ that have a page of the site.
_PAGES = {
    ROOT / "ARCHITECTURE.md": DOCS / "architecture.md",
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing.md",
    DOCS / "adr": DOCS / "adr" / "README.md",
    DOCS: DOCS / "index.md",
}


def with_site_links(text: str, *, written_in: Path, page: Path, source: str) -> str:
    """Return Markdown whose relative links hold on the site.

    Parameters
    ----------
    text
        Markdown.
    written_in
        The file that the links are relative to.
    page
        The page of the site that shows it.
    source
        Address of the repository's files, up to the name of a branch or tag, with ``{kind}`` for "blob" or "tree".
    """

    def relink(match: re.Match[str]) -> str:
        target = (written_in.parent / match[2]).resolve()
        target = _PAGES.get(target, target)
        if not target.exists():
            return match[0]  # MyST says so
        if target.is_relative_to(DOCS):
            address = os.path.relpath(target, page.parent)
        else:
            kind = "tree" if target.is_dir() else "blob"
            address = f"{source.format(kind=kind)}/{target.relative_to(ROOT).as_posix()}"
        return f"{match[1]}{address}{match[3] or ''}{match[4]}"

    return _LINK.sub(relink, text)


def _file_of_the_repository(name: str, page: Path, source: str) -> str:
    """Return a Markdown file that lies above docs/."""
    path = ROOT / name
    return with_site_links(path.read_text(), written_in=path, page=page, source=source)


def _decisions(page: Path, source: str) -> str:  # noqa: ARG001 - all makers are given the same
    """Return the menu of the decisions."""
    return "```{toctree}\n:glob:\n:titlesonly:\n\n[0-9]*\n```\n"


def _errors(page: Path, source: str) -> str:  # noqa: ARG001
    """Return every error and its texts."""
    return error_texts.page(source.format(kind="blob"))


def _error_search(page: Path, source: str) -> str:  # noqa: ARG001
    """Return the box of docs/_static/errors.js."""
    return (
        '<textarea id="error-text" rows="3" aria-label="the text of an error" '
        'placeholder="the text of an error"></textarea>\n<ul id="error-found"></ul>\n'
    )


def _commands(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what --help says of every command, below the list of them."""
    text = build_app().generate_docs(heading_level=1).partition("**Commands**:\n\n")[2]
    # Cyclopts names the program that makes the page, too: "gloader prepare -m sphinx".
    return re.sub(r"(?m)^(gloader(?: [a-z]+)+) -m \w+", r"\1", text)


def _fit_sizes(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what well-known graphs take."""
    return fit_tables.sizes()


def _fit_budgets(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what each budget makes of them."""
    return fit_tables.budgets()


def _fit_propagations(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what a propagation of them takes."""
    return fit_tables.propagations()


def _recipe_sizes(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what the recipes take."""
    return fit_tables.recipe_sizes()


def _recipe_epochs(page: Path, source: str) -> str:  # noqa: ARG001
    """Return what each budget makes of their epochs."""
    return fit_tables.recipe_epochs()


MAKERS: Mapping[str, Callable[[Path, str], str]] = {
    "architecture": partial(_file_of_the_repository, "ARCHITECTURE.md"),
    "commands": _commands,
    "changelog": partial(_file_of_the_repository, "CHANGELOG.md"),
    "contributing": partial(_file_of_the_repository, "CONTRIBUTING.md"),
    "decisions": _decisions,
    "errors": _errors,
    "fit-sizes": _fit_sizes,
    "fit-budgets": _fit_budgets,
    "fit-propagations": _fit_propagations,
    "recipe-sizes": _recipe_sizes,
    "recipe-epochs": _recipe_epochs,
    "error-search": _error_search,
}


def _read(app: Any, docname: str, content: list[str]) -> None:
    """Replace what is made, and mend links. Sphinx takes what is left in ``content``."""
    page = Path(app.env.doc2path(docname))
    source = f"{app.config.source_url}/{{kind}}/{app.config.source_ref}"
    text = with_site_links(content[0], written_in=page, page=page, source=source)
    content[0] = _MADE.sub(lambda match: MAKERS[match[1]](page, source), text)


def _describe_parameters(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001 - Sphinx gives these
    """Put what stands behind the colon of a parameter below its name: here it is a description, no type."""
    lines[:] = [part for line in lines for part in _PARAMETER.sub(r"\1\n    \2", line).split("\n")]


def setup(app: Any) -> dict[str, Any]:
    """Connect this module with Sphinx."""
    app.add_config_value("source_url", "", "env")
    app.add_config_value("source_ref", "main", "env")
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _describe_parameters, priority=100)  # before napoleon reads it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
