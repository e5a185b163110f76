"""Searches of the admin in turns, in the process of the site."""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.messages import stored_headers
from sqlqueue_app.conf import get_settings
from sqlqueue_app.lake.data_files import glob_files
from sqlqueue_app.lake.search import SearchQuery, search
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import NewRow

NEEDLE: Final = "order 42"


def main(rounds: int) -> None:
    """Put a message with a business key behind the others, then search; prints one JSON object."""
    settings = get_settings()
    queue = queue_table(settings.database, address_book_of(settings).of_queue("Shop7"))
    queue.send([NewRow(str(uuid.uuid4()), stored_headers(), json.dumps({"order": NEEDLE}).encode())])
    client = Client()
    client.force_login(User.objects.create_superuser(f"bench-{uuid.uuid4().hex[:8]}"))
    texts = {
        "an id that nothing has": str(uuid.UUID(int=42)), "a text that nothing has": "no such text",
        "a type of waiting messages": "Bench.Message", "a text in the body of a waiting message": NEEDLE, **_of_the_archive(),
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in texts}
    # The first round fills caches.
    for number in range(rounds + 1):
        for name, text in texts.items():
            begun = time.monotonic()
            with CaptureQueriesContext(connection) as queries:
                page = client.get("/admin/sqlqueue_app/search/", {"q": text})
            took = time.monotonic() - begun
            assert page.status_code == 200, page.status_code
            found[name] |= {"found": page.content.count(b"data-key="), "statements": len(queries)}
            found[name]["seconds"] += [took] if number else []
    print(json.dumps(found))


def _of_the_archive() -> dict[str, str]:
    """Searches for a message from the middle of the period, and for rare texts."""
    lake = os.environ.get("SQLQUEUE_BENCH_LAKE")
    if lake is None:
        return {}
    files = sorted(glob_files(lake), key=lambda each: each.day)
    middle = [each for each in files if each.day == files[len(files) // 2].day]
    known = search(lake, middle, SearchQuery(size=1), seconds=60).messages[0]
    return {
        "a message id of the archive": known.message_id,
        "a conversation of the archive": known.conversation_id,
        "a type of the archive": "Shop.Messages.Type03",
        "a rare text of the archive": "needle-in-the-haystack",
    }
