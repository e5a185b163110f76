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

from sphinx.application import Sphinx  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

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
# Longer signatures get a line for each parameter.
maximum_signature_line_length = 100

copybutton_prompt_text = "$ "

# The overloads of these modules hide the options behind `Unpack`. The page shows the implementations, which name each option.
OVERLOADED = ("sqlqueue_app.sending.sender", "sqlqueue_app.receiving.requests", "sqlqueue_app.receiving.context")


def setup(app: Sphinx) -> None:
    """Adjust the signatures of the Python reference."""
    for module in OVERLOADED:
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()
    app.connect("autodoc-process-signature", without_constructor)


def without_constructor(_app: Sphinx, what: str, name: str, *_: object) -> tuple[str, None] | None:
    """No constructor for classes that only sqlqueue creates."""
    return ("", None) if what == "class" and name == "sqlqueue_app.MessageContext" else None
