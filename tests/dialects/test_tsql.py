"""Every statement for SQL Server, in each possible layout of a table, is valid T-SQL with the required hints."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from sqlqueue_app.dialects.dialect import QueueLayout, RowRange, TableShape, dialect, layout_of
from sqlqueue_app.dialects.schema import (
    Grants,
    PlannedTable,
    TableKind,
    create_statements,
    create_written_statement,
    drop_statement,
    grant_statements,
    installation_script,
    managed_grant_statements,
)
from sqlqueue_app.messages.addresses import QueueAddress
from tests.support.tsql import Hints, UnexpectedStatement, check, parse

SQLSERVER = dialect("sqlserver")
TABLE = "[shop].[dbo].[Sales]"
ADDRESS = QueueAddress("Sales", "dbo", "shop")
ODD = QueueAddress("a]b'c;d--e]", 'x"y', "z%")

ALL = ("Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body")
LAYOUTS = {
    "all columns": ALL,
    "no Recoverable": tuple(column for column in ALL if column != "Recoverable"),
    "no correlation": ("Id", "Recoverable", "Expires", "Headers", "Body"),
    "only the needed": ("Id", "Expires", "Headers", "Body"),
}
READ = ("READPAST", "READCOMMITTEDLOCK")
WRAPPER = ("512 & @@OPTIONS", "SET NOCOUNT ON ;")
RESTORED = ("IF ( @NOCOUNT = 'ON' ) SET NOCOUNT ON ;", "IF ( @NOCOUNT = 'OFF' ) SET NOCOUNT OFF")
RECEIVE_HINTS: Hints = [(TABLE, ("UPDLOCK", "READPAST", "ROWLOCK"))]
RECEIVE_ORDER = (
    *WRAPPER, "WITH MESSAGE AS ( SELECT TOP ( 1 ) * FROM", "ORDER BY ROWVERSION ASC )",
    "DELETE FROM MESSAGE OUTPUT DELETED . ID ,", "<", "= GETUTCDATE ( ) THEN 1 ELSE 0 END ,",
    "DELETED . HEADERS , DELETED . BODY , DELETED . ROWVERSION ;", *RESTORED,
)  # fmt: skip

# statement: the tables it reads with their hints, and the required order of tokens
EXPECTED: dict[str, tuple[Hints, tuple[str, ...]]] = {
    "receive": (RECEIVE_HINTS, RECEIVE_ORDER),
    "peek": ([(TABLE, READ)], ("SELECT TOP (", "FROM", "WHERE ROWVERSION >", "ORDER BY ROWVERSION ASC")),
    "row_versions": ([(TABLE, READ)], ("SELECT TOP (", "ROWVERSION FROM", "WHERE ROWVERSION >", "ORDER BY ROWVERSION ASC")),
    "find_ids": ([(TABLE, READ)], ("SELECT HEAD . ROWVERSION", "SELECT TOP (", "ORDER BY ROWVERSION ASC", "WHERE HEAD . ID IN (")),
    "count": ([(TABLE, READ)], ("SELECT COUNT", "SELECT TOP (", "ORDER BY ROWVERSION ASC")),
    "count_expiring": (
        [(TABLE, READ)] * 2,
        ("SELECT TOP (", "WHERE EXPIRES IS NOT NULL", "SELECT TOP (", "WHERE EXPIRES <", "= GETUTCDATE ( )"),
    ),
    "estimate": ([(TABLE, READ)], ("SELECT MAX ( ROWVERSION ) - MIN ( ROWVERSION ) + 1",)),
    "purge": ([], ("DELETE FROM",)),
    "purge_expired": (
        [(TABLE, READ)],
        ("DELETE FROM", "WHERE ROWVERSION IN ( SELECT TOP (", "WHERE EXPIRES <", "= GETUTCDATE ( )"),
    ),
    "free_rows": ([(TABLE, READ)], ("SELECT ROWVERSION FROM", "WHERE ROWVERSION IN ( 7 , 8 )")),
    "headers_of_rows": ([(TABLE, READ)], ("SELECT ROWVERSION , HEADERS FROM", "WHERE ROWVERSION IN ( 7 , 8 )")),
    "take": (
        RECEIVE_HINTS,
        (
            *WRAPPER,
            "WITH MESSAGE AS ( SELECT * FROM",
            "WHERE ROWVERSION IN ( 7 , 8 ) )",
            "DELETE FROM MESSAGE OUTPUT DELETED . ID ,",
            "DATEDIFF ( MS , GETUTCDATE ( ) , DELETED . EXPIRES )",
            "DELETED . HEADERS , DELETED . BODY , DELETED . ROWVERSION ;",
            *RESTORED,
        ),
    ),
    "remove": (
        RECEIVE_HINTS,
        (
            *WRAPPER,
            "WITH MESSAGE AS ( SELECT ROWVERSION FROM",
            "WHERE ROWVERSION IN ( 7 , 8 ) )",
            "DELETE FROM MESSAGE OUTPUT DELETED . ROWVERSION ;",
            *RESTORED,
        ),
    ),
    "remove_ranges": (
        # the T-SQL parser does not recognise the hint of a table with an alias
        [(TABLE, ())],
        (
            "DELETE QUEUE FROM",
            "AS QUEUE WITH ( ROWLOCK )",
            "INNER JOIN ( VALUES ( 1 , 5 ) , ( 7 , 7 ) ) AS WANTED ( LOWEST , HIGHEST )",
            "ON QUEUE . ROWVERSION BETWEEN WANTED . LOWEST AND WANTED . HIGHEST",
        ),
    ),
    "row_ids": ([(TABLE, READ)], ("SELECT TOP (", "ROWVERSION , ID FROM", "WHERE ROWVERSION >", "ORDER BY ROWVERSION ASC")),
    "next_due": (
        [(TABLE, READ)],
        ("SELECT CASE WHEN", "DATEDIFF ( MS , GETUTCDATE ( ) ,", "SELECT TOP ( 1 ) DUE FROM", "ORDER BY DUE ASC"),
    ),
    "count_delayed": ([(TABLE, READ)] * 2, ("SELECT TOP (", "SELECT TOP (", "WHERE DUE <", "= GETUTCDATE ( )")),
    "remember_handled": (
        [(TABLE, ("READCOMMITTEDLOCK",))],
        ("INSERT INTO", "SELECT CAST (", "GETUTCDATE ( )", "WHERE NOT EXISTS ( SELECT 1 FROM"),
    ),
    "claim_key": (
        [(TABLE, ("READCOMMITTEDLOCK",))],
        ("INSERT INTO", "[KEY]", "SELECT CAST (", "DATEADD ( SECOND ,", "GETUTCDATE ( )", "WHERE NOT EXISTS ( SELECT 1 FROM"),
    ),
    "forget_handled": (
        [(TABLE, READ)],
        ("DELETE FROM", "WHERE ID IN ( SELECT TOP (", "< DATEADD ( S ,", "GETUTCDATE ( )", "ORDER BY HANDLED_AT )"),
    ),
    "take_due": (
        RECEIVE_HINTS,
        ("SELECT TOP (", "WHERE DUE <", "= GETUTCDATE ( )", "ORDER BY DUE ASC )", "DELETE FROM MESSAGE OUTPUT DELETED . HEADERS ,"),
    ),
    "subscribe": (
        [],
        (
            *WRAPPER,
            "MERGE",
            "WITH ( HOLDLOCK , TABLOCK ) AS HELD USING ( SELECT",
            "ON HELD . ENDPOINT = WANTED . ENDPOINT AND",
            "WHEN MATCHED AND HELD . QUEUEADDRESS <",
            "WANTED . QUEUEADDRESS THEN UPDATE SET QUEUEADDRESS = WANTED . QUEUEADDRESS",
            "WHEN NOT MATCHED THEN INSERT ( QUEUEADDRESS , TOPIC , ENDPOINT ) VALUES (",
            ") ;",
            *RESTORED,
        ),
    ),
    "unsubscribe": ([], ("DELETE FROM", "WHERE ENDPOINT =", "AND TOPIC =")),
    "subscriptions": ([(TABLE, ())], ("SELECT ENDPOINT , TOPIC , QUEUEADDRESS FROM", "ORDER BY ENDPOINT , TOPIC")),
}
CORRELATION = {
    "receive": ["deleted.CorrelationId", "deleted.ReplyToAddress"],
    "take": ["deleted.CorrelationId", "deleted.ReplyToAddress"],
    "peek": ["CorrelationId", "ReplyToAddress"],
}


def rendered(name: str, table: str = TABLE, *, correlation: bool = True, before: str = "", after: str = "") -> str:
    texts = {"table": table}
    if name in CORRELATION:
        columns = CORRELATION[name] if correlation else ["NULL", "NULL"]
        texts |= {"correlation_id": columns[0], "reply_to_address": columns[1]}
    if name == "receive":
        texts |= {"limit": "1", "before": before, "after": after}
    if name == "peek":
        texts |= {"compared": ">", "order": "ASC"}
    if name == "find_ids":
        texts["ids"] = "'11111111-2222-3333-4444-555555555555'"
    if name in ("free_rows", "headers_of_rows", "take", "remove"):
        texts["row_versions"] = "7, 8"
    if name == "remove_ranges":
        texts["ranges"] = "(1, 5), (7, 7)"
    return SQLSERVER.statement(name, **texts).sql


@pytest.mark.parametrize("correlation", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_queue_statements_are_valid(name: str, correlation: bool) -> None:
    hints, order = EXPECTED[name]
    check(rendered(name, correlation=correlation), hints, order)


VIEWS: dict[str, tuple[Hints, tuple[str, ...]]] = {
    "snapshot": (
        [(TABLE, READ)] * 3,
        ("SELECT MAX ( ROWVERSION ) - MIN ( ROWVERSION ) + 1", "SELECT TOP ( 1 ) HEADERS", "IDENT_CURRENT", "SELECT TOP ("),
    ),
    "count_expiries": ([(TABLE, READ)] * 2, ("WHERE EXPIRES IS NOT NULL", "WHERE EXPIRES <", "= GETUTCDATE ( )")),
    "snapshot_delayed": ([(TABLE, READ)] * 3, ("SELECT TOP (", "WHERE DUE <", "= GETUTCDATE ( )", "ORDER BY DUE ASC")),
    "find_in_queue": (
        [(TABLE, READ)] * 2,
        (
            "SELECT TOP (", "SELECT TOP (", "WHERE ROWVERSION <", "ORDER BY ROWVERSION DESC", "WHERE CHARINDEX (", "UNION ALL",
            "WHERE ROWVERSION <", "ORDER BY ROWVERSION DESC OFFSET", "ROWS FETCH NEXT 1 ROWS ONLY",
        ),
    ),
    "find_in_delayed": (
        [(TABLE, READ)] * 2,
        (
            "SELECT TOP (", "SELECT TOP (", "ORDER BY DUE DESC", "WHERE CHARINDEX (", "UNION ALL", "ORDER BY DUE DESC OFFSET",
            "ROWS FETCH NEXT 1 ROWS ONLY",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bodies", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_snapshot_statements_of_many_tables_are_valid(name: str, bodies: bool) -> None:
    hints, order = VIEWS[name]
    if name.startswith("find_in"):
        one = SQLSERVER.find_statement(name, texts=["text_a", "text_b"], bodies=bodies, table=TABLE, number="7", order="DESC").sql
    else:
        one = SQLSERVER.statement(name, table=TABLE, number="7").sql
    check(one, hints, order)
    check(f"{one}\nUNION ALL\n{one}", [*hints, *hints], order)


@pytest.mark.parametrize("name", ["find_in_queue", "find_in_delayed"])
def test_search_by_row_id_with_locked_rows_is_valid(name: str) -> None:
    one = SQLSERVER.find_statement(
        name, texts=["text_a"], bodies=False, by_row_id=True, with_locked=True, table=TABLE, number="7", order="DESC"
    ).sql
    order = ("WHERE CHARINDEX (", "OR HEAD . ID = CAST (") if name == "find_in_queue" else ("WHERE CHARINDEX (",)
    check(one, [(TABLE, ())] * 2, order)


def test_search_that_matches_the_letter_case_is_valid() -> None:
    one = SQLSERVER.find_statement(
        "find_in_queue", texts=["text_a"], bodies=False, match_case=True, table=TABLE, number="7", order="DESC"
    ).sql
    hints, order = VIEWS["find_in_queue"]
    check(one, hints, order)


def test_list_of_tables_is_valid() -> None:
    parse(SQLSERVER.statement("list_tables").sql)
    parse(SQLSERVER.statement("keeps_row_versions").sql)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("columns", LAYOUTS.values(), ids=LAYOUTS)
def test_send_statements_are_valid(columns: tuple[str, ...], rows: int) -> None:
    layout = QueueLayout(columns, correlation_columns="CorrelationId" in columns, expires_index=True, unicode_headers=True)
    statement = SQLSERVER.send_statement(TABLE, layout, rows)
    # SQL Server accepts 2,100 values in a statement and 1,000 rows in a list
    assert len(statement.names) // rows * SQLSERVER.rows_per_send < 2_100
    assert SQLSERVER.rows_per_send <= 1_000
    listed = " , ".join(columns).upper()
    check(statement.sql, [], (*WRAPPER, "INSERT INTO", f"( {listed} ) VALUES (", *RESTORED))


@pytest.mark.parametrize("rows", [1, 3])
def test_delay_statements_are_valid(rows: int) -> None:
    statement = SQLSERVER.delay_statement(TABLE, rows)
    assert len(statement.names) // rows * SQLSERVER.rows_per_send < 2_100
    check(
        statement.sql,
        [],
        ("INSERT INTO", "( HEADERS , BODY , DUE ) VALUES (", "COALESCE ( CONVERT ( DATETIME ,", ", 126 ) ,", "DATEADD ( MS ,",
         "DATEADD ( DAY ,", "GETUTCDATE ( )"),
    )  # fmt: skip


@pytest.mark.parametrize("topics", [1, 3])
def test_subscriber_statements_are_valid(topics: int) -> None:
    statement = SQLSERVER.subscribers_statement(TABLE, topics)
    listed = " , ".join(["@P1"] * topics)
    assert statement.names == ("topic",) * topics
    check(statement.sql, [(TABLE, ())], ("SELECT ENDPOINT , TOPIC , QUEUEADDRESS FROM", f"WHERE TOPIC IN ( {listed} )"))


@pytest.mark.parametrize("correlation", [True, False])
def test_receive_batch_with_its_transaction_is_valid(correlation: bool) -> None:
    before, after = f"{SQLSERVER.script('begin')};\n", f"\n{SQLSERVER.script('keep_what_was_received')};"
    batch = rendered("receive", correlation=correlation, before=before, after=after)
    kept = "IF @@ROWCOUNT = 0 ROLLBACK TRANSACTION ELSE BEGIN SAVE TRANSACTION SQLQUEUE ; SET IMPLICIT_TRANSACTIONS ON ; END ;"
    order = (*WRAPPER, "BEGIN TRANSACTION ; BEGIN TRANSACTION ; WITH MESSAGE AS (", *RECEIVE_ORDER[3:-2], kept, *RESTORED)
    check(batch, RECEIVE_HINTS, order)


@pytest.mark.parametrize("name", EXPECTED)
def test_unusual_names_stay_in_their_brackets(name: str) -> None:
    table = SQLSERVER.qualified(ODD)
    assert table == "[z%].[x\"y].[a]]b'c;d--e]]]"
    hints, order = EXPECTED[name]
    check(rendered(name, table), [(table, given) for _, given in hints], order)


@pytest.mark.parametrize(
    "name",
    [
        "begin",
        "commit",
        "roll_back",
        "save_transaction",
        "rollback_to_saved",
        "transaction_count",
        "lock_installation",
        "table_exists",
    ],
)
def test_statements_without_a_table_are_valid(name: str) -> None:
    parse(SQLSERVER.statement(name).sql)


@pytest.mark.parametrize("catalog", ["", "[shop]."])
@pytest.mark.parametrize("name", ["columns", "indexes"])
def test_statements_about_tables_are_valid(name: str, catalog: str) -> None:
    parse(SQLSERVER.statement(name, catalog=catalog).sql)


@pytest.mark.parametrize("address", [ADDRESS, ODD, QueueAddress("Sales")])
@pytest.mark.parametrize("layout", ["classic", "modern"])
@pytest.mark.parametrize("kind", TableKind)
def test_ddl_and_scripts_are_valid(kind: TableKind, layout: str, address: QueueAddress) -> None:
    for statement in create_statements(SQLSERVER, kind, address, layout):
        parse(statement)
    parse(drop_statement(SQLSERVER, address))
    for statement in grant_statements(SQLSERVER, kind, address, "shop]'"):
        parse(statement)
    script = installation_script(
        SQLSERVER, [PlannedTable(kind, address)], layout=layout, grants=Grants("shop"), managed=["instance"]
    )
    batches = re.split(r"^GO$", script, flags=re.MULTILINE)
    assert len(batches) == 4
    for batch in batches:
        parse(batch)


def test_managed_tables_are_granted_if_they_exist() -> None:
    (statement,) = managed_grant_statements(SQLSERVER, "it's", "shop")
    assert statement == ("IF OBJECT_ID(N'[it''s]', N'U') IS NOT NULL GRANT SELECT, INSERT, UPDATE, DELETE ON [it's] TO [shop]")
    parse(statement)


# --- tests of the check itself: every one of these mutations must fail ----------------------------------------------------------

RECEIVE_MUTATIONS = {
    "misspelt hint": ("READPAST", "READPASST"),
    "unknown hint": ("READPAST", "SKIPLOCKED"),
    "missing READPAST": ("UPDLOCK, READPAST, ROWLOCK", "UPDLOCK, ROWLOCK"),
    "missing UPDLOCK": ("UPDLOCK, READPAST, ROWLOCK", "READPAST, ROWLOCK"),
    "missing ROWLOCK": ("UPDLOCK, READPAST, ROWLOCK", "UPDLOCK, READPAST"),
    "one more hint": ("UPDLOCK, READPAST, ROWLOCK", "UPDLOCK, READPAST, ROWLOCK, NOLOCK"),
    "missing WITH": ("WITH (UPDLOCK, READPAST, ROWLOCK)", ""),
    "hints at the wrong place": ("ORDER BY RowVersion ASC", "ORDER BY RowVersion ASC WITH (UPDLOCK)"),
    "wrong order": ("RowVersion ASC", "RowVersion DESC"),
    "no order": ("    ORDER BY RowVersion ASC\n", ""),
    "another table": (TABLE, "[shop].[dbo].[Other]"),
    "two rows": ("TOP (1)", "TOP (2)"),
    "no TOP": ("TOP (1) ", ""),
    "missing comma": ("deleted.Headers,", "deleted.Headers"),
    "extra comma": ("deleted.RowVersion;", "deleted.RowVersion,;"),
    "OUTPUT after WHERE": ("DELETE FROM message\nOUTPUT", "DELETE FROM message\nWHERE 1 = 1\nOUTPUT"),
    "OUTPUT at the end": ("OUTPUT\n    deleted.Id,", "WHERE RowVersion = 1 OUTPUT deleted.Id,"),
    "no OUTPUT": ("OUTPUT\n", ""),
    "misspelt OUTPUT": ("OUTPUT", "OUTPT"),
    "inserted for deleted": ("deleted.Id", "inserted.Id"),
    "open bracket": ("ORDER BY RowVersion ASC\n)", "ORDER BY RowVersion ASC\n"),
    "NOCOUNT not put back": ("IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF", ""),
    "NOCOUNT not set": ("SET NOCOUNT ON;\nWITH", "WITH"),
    "body before headers": ("deleted.Headers,\n    deleted.Body", "deleted.Body,\n    deleted.Headers"),
}  # fmt: skip
MUTATIONS = {
    "peek without READPAST": ("peek", "READPAST, ", ""),
    "peek with NOLOCK": ("peek", "READPAST, READCOMMITTEDLOCK", "NOLOCK"),
    "count of all rows": ("count", "TOP (CAST(%s AS int)) ", ""),
    "one count with other hints": ("count_expiring", "LOCK)\n            WHERE Expires IS", "LOCK, NOLOCK) WHERE Expires IS"),
    "purge that waits": ("purge_expired", "READPAST, ", ""),
    "purge of the wrong rows": ("purge_expired", "Expires <= ", "Expires > "),
    "purge by nothing": ("purge_expired", "WHERE RowVersion IN", "AND RowVersion IN"),
    "taking what is not due": ("take_due", "Due <= ", "Due > "),
    "taking with waits": ("take_due", "READPAST, ", ""),
    "a look that waits": ("next_due", "READPAST, ", ""),
    "a count that waits": ("count_delayed", "READPAST, ", ""),
    "a subscription without locks": ("subscribe", " WITH (HOLDLOCK, TABLOCK)", ""),
    "a MERGE without its end": ("subscribe", "wanted.Endpoint);", "wanted.Endpoint)"),
    "unsubscribing everybody": ("unsubscribe", "Endpoint = %s AND ", ""),
    "estimate of nothing": ("estimate", "MIN(RowVersion)", "MIN(RowVersion"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), RECEIVE_MUTATIONS.values(), ids=RECEIVE_MUTATIONS)
def test_receive_with_a_mistake_fails(old: str, new: str) -> None:
    sql = rendered("receive")
    assert sql.count(old) >= 1, "the mutation no longer fits the statement"
    with pytest.raises(UnexpectedStatement):
        check(sql.replace(old, new), *EXPECTED["receive"])


@pytest.mark.parametrize(("name", "old", "new"), MUTATIONS.values(), ids=MUTATIONS)
def test_statement_with_a_mistake_fails(name: str, old: str, new: str) -> None:
    sql = rendered(name)
    assert sql.count(old) >= 1, "the mutation no longer fits the statement"
    with pytest.raises(UnexpectedStatement):
        check(sql.replace(old, new), *EXPECTED[name])


@pytest.mark.parametrize(
    ("old", "new"), [("INSERT INTO", "INSERT INTOO"), (")\nVALUES", "\nVALUES"), ("VALUES (", "VALUES ("[:-1])]
)
def test_send_with_a_mistake_fails(old: str, new: str) -> None:
    layout = layout_of("sqlserver", TABLE, TableShape((*((name, "x") for name in ALL), ("RowVersion", "bigint")), ()))
    sql = SQLSERVER.send_statement(TABLE, layout, 2).sql
    assert old in sql
    with pytest.raises(UnexpectedStatement):
        check(sql.replace(old, new), [], (*WRAPPER, "INSERT INTO", "VALUES (", *RESTORED))


def test_writer_statements_are_valid() -> None:
    parse(SQLSERVER.statement("writers").sql)
    parse(SQLSERVER.statement("drawn_row_version").sql)


READING: dict[str, tuple[Hints, tuple[str, ...]]] = {
    "row_version_bounds": ([(TABLE, READ)] * 2, ("SELECT MIN ( ROWVERSION )", "SELECT MAX ( ROWVERSION )")),
    "row_version_after": ([(TABLE, READ)], ("WHERE ROWVERSION > CAST ( 3 AS BIGINT )", "ORDER BY ROWVERSION ASC OFFSET 4 ROWS")),
    "count_range": (
        [(TABLE, READ)],
        ("SELECT COUNT", "SELECT TOP ( 100 )", "BETWEEN CAST ( 1 AS BIGINT ) AND", "ORDER BY"),
    ),
}


@pytest.mark.parametrize("name", READING)
def test_reader_statements_are_valid(name: str) -> None:
    texts = {
        "count_range": {"lowest": "1", "highest": "9", "limit": "100"},
        "row_version_after": {"after": "3", "highest": "9", "places": "4"},
    }.get(name, {})
    check(SQLSERVER.script(name, table=TABLE, **texts), *READING[name])


def test_read_statements_are_valid() -> None:
    noon = datetime(2030, 1, 1, 12)  # noqa: DTZ001 -- of the column, in UTC without zone
    columns = ["RowVersion", "Id", "CorrelationId", "ReplyToAddress", "Expires", "Headers", "Body"]
    order = ("SELECT ROWVERSION AS", "CONVERT ( NVARCHAR ( 36 ) , ID )", "WHERE ROWVERSION BETWEEN CAST ( 5 AS BIGINT ) AND")
    check(SQLSERVER.read_statement(TABLE, columns, RowRange(5, 7)), [(TABLE, READ)], order)
    rows = RowRange(5, 7, noon, noon, only_expiring=True)
    check(SQLSERVER.read_statement(TABLE, ["Body"], rows), [(TABLE, READ)], ("AND EXPIRES >", "AND EXPIRES <", "IS NOT NULL"))


def test_spark_write_statements_are_valid() -> None:
    staging = "[shop].[dbo].[sqlqueue_staging_1]"
    for columns in LAYOUTS.values():
        layout = QueueLayout(columns, correlation_columns="CorrelationId" in columns, expires_index=True, unicode_headers=True)
        listed = " , ".join(columns).upper()
        check(SQLSERVER.move_statement(TABLE, layout, staging), [(staging, ())], (f"( {listed} ) SELECT", "ORDER BY POSITION"))
    delayed = SQLSERVER.script("move_staged_delayed", table=TABLE, staging=staging)
    check(delayed, [(staging, ())], ("DATEADD ( MS ,", "ORDER BY POSITION"))
    for name in ("create_staging", "stage_row"):
        parse(SQLSERVER.statement(name, table=TABLE).sql)
    odd = create_written_statement(SQLSERVER, "[it's].[x]")
    parse(odd)
    assert "N'[it''s].[x]'" in odd
    claim = SQLSERVER.statement("claim_batch", table=TABLE).sql
    assert claim.endswith(";")
    check(claim, [], ("MERGE", "WITH ( HOLDLOCK )", "WHEN NOT MATCHED THEN INSERT", "OUTPUT INSERTED . BATCH ;"))
