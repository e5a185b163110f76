"""Asks for every page of the dashboard as a superuser, under the settings of the environment: a line of JSON for each."""

from __future__ import annotations

import json
import sys

import django
from django.test.utils import setup_test_environment


def main() -> None:
    """Write name, status, and what of our own is on the page."""
    django.setup()
    setup_test_environment()
    # Not before: they are of the apps that this sets up.
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
