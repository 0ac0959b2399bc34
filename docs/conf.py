"""How the site is built: `make docs`."""

from __future__ import annotations

import upscale

project = "upscale"
version = release = upscale.__version__
project_copyright = "the upscale authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
myst_heading_anchors = 3
# Pages of measurements are written by scripts, and join the contents when they are there.
suppress_warnings = ["toc.empty_glob"]

html_theme = "furo"
html_title = "upscale"
html_copy_source = False
html_show_sphinx = False

# Docstrings are plain text in which backticks mean code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = False
