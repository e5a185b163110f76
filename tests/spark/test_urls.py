"""The URL of a database: built from parts, parsed, shown without its password."""

from __future__ import annotations

import pytest

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.database_url import parse_url, source_url
from sqlqueue_app.spark.source.on_sqlserver import connection_string

SECRET = "p@ss/w:ö#%&?"


def test_postgresql_url_is_built_and_parsed() -> None:
    options = {"sslmode": "require", "pool": True}
    url = source_url("postgresql", "shop/x", host="db", port=5433, user="me@corp", password=SECRET, options=options)

    database = parse_url(url)

    assert (database.dialect, database.name, database.host, database.port) == ("postgresql", "shop/x", "db", 5433)
    assert (database.user, database.password, database.options) == ("me@corp", SECRET, (("sslmode", "require"),))
    assert SECRET not in repr(database)
    assert database.shown == "postgresql://me@corp@db:5433/shop/x"


def test_sockets_and_ipv6_addresses_are_supported() -> None:
    assert source_url("postgresql", "shop", host="/tmp/pg", port="5433", user="me") == (
        "postgresql://me@/shop?host=%2Ftmp%2Fpg&port=5433"
    )
    assert parse_url(source_url("postgresql", "shop", host="::1", port=5433)).host == "::1"


def test_several_hosts_are_supported() -> None:
    database = parse_url(source_url("postgresql", "shop", host="a,b", port="5432,5433", user="me"))

    assert (database.host, database.port, dict(database.options)) == ("", None, {"host": "a,b", "port": "5432,5433"})


def test_options_of_a_session_and_services_are_supported() -> None:
    given = {"options": "-c search_path=shop", "assume_role": "o p\\s"}

    url = source_url("postgresql", "", options={**given, "service": "shop"})

    assert url == "postgresql:///?options=-c%20search_path%3Dshop%20-c%20role%3Do%5C%20p%5C%5Cs&service=shop"
    assert parse_url(url).shown == "postgresql:///"


def test_sqlite_url_is_built_and_parsed() -> None:
    url = source_url("sqlite", "/srv/my data/100%.sqlite3")

    assert parse_url(url).name == "/srv/my data/100%.sqlite3"
    assert parse_url("sqlite:///relative.db").name == "relative.db"


def test_sql_server_url_becomes_a_connection_string() -> None:
    options = {"driver": "ODBC Driver 18", "extra_params": "Encrypt=no; TrustServerCertificate=yes"}
    url = source_url("microsoft", "shop", host="db", user="sa", password="a}b;c", options=options)

    assert url.startswith("mssql://sa:")
    connection = connection_string(parse_url(url))
    assert connection == "Server={db,1433};Database={shop};UID={sa};PWD={a}}b;c};Encrypt={no};TrustServerCertificate={yes};"


@pytest.mark.parametrize("name", [":memory:", "", "file:memorydb_default?mode=memory&cache=shared"])
def test_database_in_memory_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="in memory"):
        source_url("sqlite", name)


def test_vendor_without_queues_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'oracle' cannot hold queue tables: expected one of sqlserver, postgresql"):
        source_url("oracle", "x")


def test_password_is_removed_from_texts() -> None:
    database = parse_url(source_url("postgresql", "shop", host="db", user="me", password=SECRET))

    shown = database.without_password(f"cannot reach {database.url}: {SECRET} is wrong, p%40ss%2Fw%3A%C3%B6%23%25%26%3F too")

    assert shown == "cannot reach postgresql://me@db/shop: *** is wrong, *** too"
    parsed = parse_url("postgresql://db/shop?user=me&password=hidden&sslpassword=key")
    assert parsed.without_password("hidden key") == "*** ***"
