"""Request every dashboard page as a superuser under the settings of the environment; prints one line of JSON each."""

from __future__ import annotations

import json
import sys

import django
from django.test.utils import setup_test_environment


def main() -> None:
    """Write the name, the status and our parts of each page."""
    django.setup()
    setup_test_environment()
    # These need the apps that are set up above.
    from tests.support.pages import client_of
    from tests.support.site_pages import site_paths

    client = client_of("superuser")
    for name, path in site_paths().items():
        answer = client.get(path)
        html = b"".join(answer) if answer.streaming else answer.content
        templates = sorted({each.origin.name for each in getattr(answer, "templates", []) or [] if each.origin})
        found = {
            "name": name,
            "status": answer.status_code,
            "type": answer.headers.get("Content-Type", ""),
            "has_tabs": html.count(b'class="sq-tabs') == 1,
            "has_way": b'class="breadcrumbs' in html,
            "has_style": b"sqlqueue_app/dashboard" in html,
            "themed": any("/unfold/" in each for each in templates),
        }
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
