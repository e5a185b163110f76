"""How Sphinx builds the documentation site: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docs.site_settings")
django.setup()

from sqlqueue_app import __version__  # noqa: E402

project = "sqlqueue"
author = "The sqlqueue authors"
project_copyright = author
release = version = __version__
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["_build"]
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False

# Anchors of headings are those that code hosts make, so that a link works in the repository and on the site.
myst_heading_anchors = 4
# Directives in colons leave fences to examples, which the tests run.
myst_enable_extensions = ["colon_fence"]

# Docstrings write code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

copybutton_prompt_text = "$ "
