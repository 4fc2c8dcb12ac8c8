"""Sphinx settings for the site, see `make docs`. The build fetches nothing, and every warning is an error."""

import os
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
with (HERE.parent / "pyproject.toml").open("rb") as file:
    _PROJECT = tomllib.load(file)["project"]

from gloader.core.version import __version__  # noqa: E402 - the folder of the extensions comes first

project = "gloader"
author = "the gloader developers"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "site_pages",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nitpicky = True
smartquotes = False  # a text that is pasted has plain ones

# Where links to files outside of docs/ lead, and to which state of them. Read the Docs names the state that it builds.
source_url = _PROJECT["urls"]["Source"]
source_ref = os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main")

# --- Markdown: plain, as it is read in the repository ---------------------------------------------

myst_heading_anchors = 4
highlight_language = "text"

# --- docstrings ------------------------------------------------------------------------------------

default_role = "py:obj"
toc_object_entries_show_parents = "hide"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's lists of parameters have them in words
autodoc_mock_imports = [
    name for name in ("dgl", "lightning", "ray", "torch_geometric") if find_spec(name) is None
]
napoleon_google_docstring = False
napoleon_use_rtype = False
# Types that are named in docstrings are words there: torch's and numpy's pages are not fetched.
nitpick_ignore_regex = [("py:.*", r".*")]

# --- the look --------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "gloader"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["errors.js"]
html_show_sourcelink = False
html_sidebars = {"**": ["menu.html"]}
html_theme_options = {
    "navbar_center": [],
    "navbar_persistent": [],
    "navbar_end": ["search-button", "theme-switcher", "navbar-icon-links"],
    "show_nav_level": 1,
    "navigation_depth": 3,
    "icon_links": [{"name": "Source", "url": source_url, "icon": "fa-brands fa-github"}],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_copyright = False
