"""Every list documented in docs/reference/api.md has its keys and permissions."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from tests.support.databases import ROOT, QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, message, table
from tests.support.pages import client_of

PAGE = ROOT / "docs" / "reference" / "api.md"
LISTS = re.findall(r"^\| `(/admin/[^`]+)` \| .+? \| (`.+`) \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def filled(database: QueueDatabase) -> None:
    install(database)
    table(database, "Sales").send([message()])
    fail(database, [failed_row()])


def address_of(documented: str) -> str:
    return documented.replace("<queue>", "Sales").replace("<endpoint>", "Sales")


@pytest.mark.parametrize(("documented", "keys"), LISTS)
def test_list_has_the_documented_keys(sqlite_database: QueueDatabase, documented: str, keys: str) -> None:
    filled(sqlite_database)
    client, address = client_of("writer"), address_of(documented)

    as_csv = client.get(f"{address}?format=csv").getvalue().decode("utf-8-sig")
    as_json = json.loads(client.get(f"{address}?format=json").getvalue())

    columns = next(csv.reader(io.StringIO(as_csv)))
    assert columns == re.findall(r"`(\w+)`", keys)
    assert isinstance(as_json, list)
    assert all(list(each) == columns for each in as_json)


@pytest.mark.parametrize("documented", [documented for documented, _ in LISTS])
def test_list_needs_the_permission_to_export(sqlite_database: QueueDatabase, documented: str) -> None:
    filled(sqlite_database)
    address = f"{address_of(documented)}?format=json"

    answers = {kind: client_of(kind).get(address).status_code for kind in ("anonymous", "staff", "viewer", "reader", "writer")}

    assert answers == {"anonymous": 302, "staff": 403, "viewer": 403, "reader": 403, "writer": 200}


def test_some_lists_contain_rows(sqlite_database: QueueDatabase) -> None:
    filled(sqlite_database)
    for address in ("queue/", "queue/Sales/", "failedmessage/", "failedmessage/messages/", "endpoint/"):
        assert json.loads(client_of("writer").get(f"/admin/sqlqueue_app/{address}?format=json").getvalue()), address
