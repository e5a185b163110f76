"""Conversion of the URL of a SQL Server to Django settings."""

from __future__ import annotations

import pytest

from tests.support import sqlserver


def test_url_becomes_settings() -> None:
    settings = sqlserver.parse_url("mssql://sa:p%40ss@db.example:14330/queues?TrustServerCertificate=yes&query_timeout=5")

    assert settings == {
        "ENGINE": "mssql",
        "NAME": "queues",
        "HOST": "db.example",
        "PORT": "14330",
        "USER": "sa",
        "PASSWORD": "p@ss",
        "OPTIONS": {
            "python_driver": "mssql_python",
            "query_timeout": 5,
            "extra_params": "TrustServerCertificate=yes",
        },
    }


def test_port_and_database_have_defaults() -> None:
    settings = sqlserver.parse_url("mssql://sa:x@localhost")
    assert (settings["PORT"], settings["NAME"]) == ("1433", "master")


def test_values_of_the_connection_string_are_braced() -> None:
    settings = sqlserver.parse_url("mssql://sa:x@localhost/q?HostNameInCertificate=a%3Bb%7Dc")
    assert settings["OPTIONS"]["extra_params"] == "HostNameInCertificate={a;b}}c}"


def test_another_form_is_refused_without_showing_the_password() -> None:
    with pytest.raises(RuntimeError, match="must look like mssql://") as refused:
        sqlserver.parse_url("Server=localhost;Password=hush")
    assert "hush" not in str(refused.value)
