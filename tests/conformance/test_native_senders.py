"""The statements of the page about native senders, each run where possible; T-SQL is parsed."""

from __future__ import annotations

import re
from typing import Any

from django.db import connections

from sqlqueue_app import handles
from tests.support.bench import Bench, Calls
from tests.support.databases import ROOT
from tests.support.doc_pages import blocks
from tests.support.tsql import parse

PAGE = ROOT / "docs" / "howto" / "native-senders.md"


def text_of(kind: str, containing: str = "") -> str:
    (found,) = [block.text for block in blocks(PAGE) if block.kind == kind and containing in block.text]
    return found


def handled(bench: Bench, calls: Calls) -> list[Any]:
    @handles("Sales.PlaceOrder")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["order_id"])

    bench.configure()
    return calls.seen


def test_plain_sql(postgresql_bench: Bench, calls: Calls) -> None:
    seen = handled(postgresql_bench, calls)
    with postgresql_bench.database.connection.cursor() as cursor:
        cursor.execute(text_of("sql"))
    postgresql_bench.run()

    assert seen == ["n1"]


def test_psycopg(postgresql_bench: Bench, calls: Calls) -> None:
    seen = handled(postgresql_bench, calls)
    settings = connections[postgresql_bench.database.alias].get_connection_params()
    names = {"dbname", "user", "password", "host", "port"}
    dsn = " ".join(f"{name}='{value}'" for name, value in settings.items() if name in names)
    exec(compile(text_of("python", "psycopg"), str(PAGE), "exec"), {"dsn": dsn})
    postgresql_bench.run()

    assert seen == ["n2"]


def test_django(bench: Bench, calls: Calls) -> None:
    seen = handled(bench, calls)
    exec(compile(text_of("python", "from sqlqueue_app"), str(PAGE), "exec"), {})
    bench.run()

    assert seen == ["n6"]


def test_t_sql_statements_can_be_parsed() -> None:
    parse(text_of("tsql"))
    for kind in ("csharp", "powershell"):
        (statement,) = re.findall(r'INSERT INTO \[dbo\][^"]*?VALUES \([^"]*\)', text_of(kind).replace('Replace("\'", "\'\'")', ""))
        parse(re.sub(r"0x\$\(.*\)\)", "0x00)", re.sub(r"N'\$[^']*'", "N'{}'", statement)))
