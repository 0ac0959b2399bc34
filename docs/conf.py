"""How the site is built: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import upscale

project = "upscale"
version = release = upscale.__version__
project_copyright = "the upscale authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
myst_heading_anchors = 3

html_theme = "furo"
html_title = "upscale"
html_static_path = ["_static"]
html_css_files = ["wide-tables.css"]
html_copy_source = False
html_show_sphinx = False

# Docstrings are plain text in which backticks mean code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = False

# Pages of measurements are written by scripts, and may not be there yet. Those that are come in
# this order, and then any that are named nowhere in the contents.
MEASURED = (
    *("reproduction", "zoo", "latency", "accuracy", "copies", "copy-costs", "selections"),
    "output-pruning",
)


def list_measured(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the pages of measurements into the contents."""
    if page == root_doc:
        pages = sorted(path.stem for path in Path(app.srcdir).glob("*.md") if path.stem != root_doc)
        named = set(re.findall(r"^[\w-]+$", source[0], re.MULTILINE))
        found = [name for name in MEASURED if name in pages]
        found += [name for name in pages if name not in {*named, *found}]
        source[0] = source[0].replace("@measured", "\n".join(found))


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_measured)
