"""Every kind of wrong value gives one problem that names its place and what was expected."""

# ruff: noqa: E501 (one row for each case, with its whole message)

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app.conf import settings_problems

S = 'SQLQUEUE["ENDPOINTS"]["Sales"]'
SECONDS = "seconds (int, float or timedelta)"
PATH = "a dotted path such as 'shop.sales.handlers'"
PATTERN = "the full name of a message type, or 'Namespace.*'"
CRON = 'SQLQUEUE["SCHEDULES"]["nightly"]["CRON"]'


def sales(**keys: Any) -> dict[str, Any]:
    return {"ENDPOINTS": {"Sales": keys}}


def nightly(**keys: Any) -> dict[str, Any]:
    return {"SCHEDULES": {"nightly": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay", **keys}}}


WRONG: list[tuple[object, str, str]] = [
    # not a dictionary
    (None, "E001", "SQLQUEUE is None, expected a dictionary"),
    ([1], "E001", "SQLQUEUE is [1], expected a dictionary"),
    # unknown keys, at each level
    ({"DATABSE": "default"}, "E002", 'SQLQUEUE["DATABSE"] is not a setting: did you mean \'DATABASE\'?'),
    ({"database": "default"}, "E002", 'SQLQUEUE["database"] is not a setting: did you mean \'DATABASE\'?'),
    ({"COLOUR": "red"}, "E002", 'SQLQUEUE["COLOUR"] is not a setting'),
    ({7: "red"}, "E002", "SQLQUEUE[7] is not a setting"),
    (sales(MAX_CONCURENCY=3), "E002", f"{S}[\"MAX_CONCURENCY\"] is not a setting: did you mean 'MAX_CONCURRENCY'?"),
    (
        {"MAX_CONCURRENCY": 3},
        "E002",
        'SQLQUEUE["MAX_CONCURRENCY"] is not a setting here, it belongs to SQLQUEUE["ENDPOINTS"][endpoint]',
    ),
    (sales(ROUTES={}), "E002", f'{S}["ROUTES"] is not a setting here, it belongs to SQLQUEUE'),
    (
        sales(SATELLITES={"Fast": {"MAX_CONCURENCY": 3}}),
        "E002",
        f"{S}[\"SATELLITES\"][\"Fast\"][\"MAX_CONCURENCY\"] is not a setting: did you mean 'MAX_CONCURRENCY'?",
    ),
    (
        nightly(BODDY={}),
        "E002",
        "SQLQUEUE[\"SCHEDULES\"][\"nightly\"][\"BODDY\"] is not a setting: did you mean 'BODY'?",
    ),
    # types
    ({"DATABASE": 5}, "E003", 'SQLQUEUE["DATABASE"] is 5, expected the name of an alias in DATABASES'),
    ({"ENDPOINTS": []}, "E003", 'SQLQUEUE["ENDPOINTS"] is [], expected a dictionary, each key a name without \'@\', each value a dictionary'),
    ({"ENDPOINTS": {"Sales": None}}, "E003", f"{S} is None, expected a dictionary"),
    ({"INSTALL_AFTER_MIGRATE": 1}, "E003", 'SQLQUEUE["INSTALL_AFTER_MIGRATE"] is 1, expected True or False'),
    ({"SCHEMA_FOR_QUEUE": {"error": 1}}, "E003", 'SQLQUEUE["SCHEMA_FOR_QUEUE"]["error"] is 1, expected the name of a schema'),
    ({"CATALOG_FOR_QUEUE": {"error": 1}}, "E003", 'SQLQUEUE["CATALOG_FOR_QUEUE"]["error"] is 1, expected the name of a database'),
    ({"ROUTES": {5: "Sales"}}, "E003", f'SQLQUEUE["ROUTES"][5] is 5, expected {PATTERN}'),
    ({"ROUTES": {"Sales.*": 5}}, "E003", 'SQLQUEUE["ROUTES"]["Sales.*"] is 5, expected a name without \'@\''),
    ({"SEND_AS": 5}, "E003", "SQLQUEUE[\"SEND_AS\"] is 5, expected a name without '@', or None"),
    ({"ALLOWED_DESTINATIONS": "Sales"}, "E003", 'SQLQUEUE["ALLOWED_DESTINATIONS"] is \'Sales\', expected a list, each entry a queue name or address, in which \'*\' stands for any characters; or None'),
    ({"ALLOWED_DESTINATIONS": [5]}, "E003", 'SQLQUEUE["ALLOWED_DESTINATIONS"][0] is 5, expected a queue name or address, in which \'*\' stands for any characters'),
    (sales(MAX_CONCURRENCY="ten"), "E003", f'{S}["MAX_CONCURRENCY"] is \'ten\', expected an integer of at least 1 and at most 10000, or None'),
    (sales(MAX_CONCURRENCY=True), "E003", f'{S}["MAX_CONCURRENCY"] is True, expected an integer of at least 1 and at most 10000, or None'),
    (sales(MAX_CONCURRENCY=2.0), "E003", f'{S}["MAX_CONCURRENCY"] is 2.0, expected an integer of at least 1 and at most 10000, or None'),
    (sales(BATCH_SIZE="all"), "E003", f'{S}["BATCH_SIZE"] is \'all\', expected an integer of at least 1 and at most 2147483647, or \'auto\''),
    (sales(PEEK_DELAY="1s"), "E003", f'{S}["PEEK_DELAY"] is \'1s\', expected {SECONDS} of at least 0.1'),
    (sales(PEEK_DELAY=True), "E003", f'{S}["PEEK_DELAY"] is True, expected {SECONDS} of at least 0.1'),
    (sales(PEEK_DELAY=None), "E003", f'{S}["PEEK_DELAY"] is None, expected {SECONDS} of at least 0.1'),
    (sales(CALLBACKS=None), "E003", f'{S}["CALLBACKS"] is None, expected True or False, or \'on_request\''),
    (sales(TRANSACTION_MODE=None), "E003", f"{S}[\"TRANSACTION_MODE\"] is None, expected 'transaction_scope', 'sends_atomic_with_receive', 'receive_only' or 'none'"),
    (sales(HANDLERS="shop.handlers"), "E003", f'{S}["HANDLERS"] is \'shop.handlers\', expected a list, each entry {PATH}; or None'),
    (sales(HANDLERS=[len]), "E003", f'{S}["HANDLERS"][0] is <built-in function len>, expected {PATH}'),
    (sales(MIDDLEWARE=["a.b", 5]), "E003", f'{S}["MIDDLEWARE"][1] is 5, expected {PATH}, or a callable'),
    (sales(RECOVERABILITY=len), "E003", f'{S}["RECOVERABILITY"] is <built-in function len>, expected {PATH}, or None'),
    (sales(ERROR_QUEUE=None), "E003", f'{S}["ERROR_QUEUE"] is None, expected the address of a queue'),
    (nightly(CRON=5), "E003", f"{CRON} is 5, expected a crontab line of five fields"),
    (nightly(BODY={1: 2}), "E003", 'SQLQUEUE["SCHEDULES"]["nightly"]["BODY"] is {1: 2}, expected a dictionary with string keys'),
    (nightly(BODY={"a": [math.nan]}), "E003", 'SQLQUEUE["SCHEDULES"]["nightly"]["BODY"] is {\'a\': [nan]}, expected a body that can be sent'),
    (nightly(BODY={"a": LookupError}), "E003", 'SQLQUEUE["SCHEDULES"]["nightly"]["BODY"] is {\'a\': <class \'LookupError\'>}, expected a body that can be sent'),
    (nightly(BODY={"a": "\ud800"}), "E003", 'SQLQUEUE["SCHEDULES"]["nightly"]["BODY"] is {\'a\': \'\\ud800\'}, expected a body that can be sent'),
    ({"SEND_AS": list(range(99))}, "E003", f"SQLQUEUE[\"SEND_AS\"] is {str(list(range(99)))[:119]}…, expected a name without '@', or None"),
    # ranges
    (sales(MAX_CONCURRENCY=0), "E004", f'{S}["MAX_CONCURRENCY"] is 0, expected an integer of at least 1 and at most 10000, or None'),
    (sales(SATELLITES={"Fast": {"MAX_CONCURRENCY": 0}}), "E004", f'{S}["SATELLITES"]["Fast"]["MAX_CONCURRENCY"] is 0, expected an integer of at least 1 and at most 10000, or None'),
    (sales(CALLBACK_CONCURRENCY=0), "E004", f'{S}["CALLBACK_CONCURRENCY"] is 0, expected an integer of at least 1 and at most 10000'),
    (sales(CALLBACK_QUEUES=0), "E004", f'{S}["CALLBACK_QUEUES"] is 0, expected an integer of at least 1 and at most 10000'),
    (sales(BATCH_SIZE=0), "E004", f'{S}["BATCH_SIZE"] is 0, expected an integer of at least 1 and at most 2147483647, or \'auto\''),
    (sales(RATE_LIMIT_AFTER=0), "E004", f'{S}["RATE_LIMIT_AFTER"] is 0, expected an integer of at least 1 and at most 2147483647, or None'),
    (sales(IMMEDIATE_RETRIES=-1), "E004", f'{S}["IMMEDIATE_RETRIES"] is -1, expected an integer of at least 0 and at most 2147483647'),
    (sales(DELAYED_RETRIES=-1), "E004", f'{S}["DELAYED_RETRIES"] is -1, expected an integer of at least 0 and at most 2147483647'),
    (sales(PURGE_EXPIRED_BATCH=0), "E004", f'{S}["PURGE_EXPIRED_BATCH"] is 0, expected an integer of at least 1 and at most 2147483647'),
    (sales(MAX_CONCURRENCY=10_001), "E004", f'{S}["MAX_CONCURRENCY"] is 10001, expected an integer of at least 1 and at most 10000, or None'),
    (sales(SATELLITES={"Fast": {"MAX_CONCURRENCY": 2**31}}), "E004", f'{S}["SATELLITES"]["Fast"]["MAX_CONCURRENCY"] is 2147483648, expected an integer of at least 1 and at most 10000, or None'),
    (sales(CALLBACK_QUEUES=10**30), "E004", f'{S}["CALLBACK_QUEUES"] is 1{"0" * 30}, expected an integer of at least 1 and at most 10000'),
    (sales(BATCH_SIZE=10**30), "E004", f'{S}["BATCH_SIZE"] is 1{"0" * 30}, expected an integer of at least 1 and at most 2147483647, or \'auto\''),
    (sales(DELAYED_RETRIES=2**31), "E004", f'{S}["DELAYED_RETRIES"] is 2147483648, expected an integer of at least 0 and at most 2147483647'),
    ({"MAX_BODY_SIZE": 2**31}, "E004", 'SQLQUEUE["MAX_BODY_SIZE"] is 2147483648, expected an integer of at least 1 and at most 2147483647, or None'),
    ({"MAX_MEMORY_PER_PROCESS": 2**63}, "E004", 'SQLQUEUE["MAX_MEMORY_PER_PROCESS"] is 9223372036854775808, expected an integer of at least 1 and at most 9223372036854775807, or None'),
    (sales(PEEK_DELAY=0.05), "E004", f'{S}["PEEK_DELAY"] is 0.05, expected {SECONDS} of at least 0.1'),
    (sales(PEEK_DELAY=float("nan")), "E004", f'{S}["PEEK_DELAY"] is nan, expected {SECONDS} of at least 0.1'),
    (sales(CIRCUIT_BREAKER=float("inf")), "E004", f'{S}["CIRCUIT_BREAKER"] is inf, expected at most 316224000 seconds'),
    (sales(CIRCUIT_BREAKER=10**400), "E004", f'{S}["CIRCUIT_BREAKER"] is 1{"0" * 118}…, expected at most 316224000 seconds'),
    (sales(CIRCUIT_BREAKER=timedelta.max), "E004", f'{S}["CIRCUIT_BREAKER"] is {timedelta.max!r}, expected at most 316224000 seconds'),
    (sales(DEDUPLICATE_FOR=timedelta(seconds=-1)), "E004", f'{S}["DEDUPLICATE_FOR"] is datetime.timedelta(days=-1, seconds=86399), expected {SECONDS} of at least 0, or None'),
    (sales(PURGE_EXPIRED_EVERY=-1), "E004", f'{S}["PURGE_EXPIRED_EVERY"] is -1, expected {SECONDS} of at least 0'),
    (sales(SLOW_HANDLER=-1), "E004", f'{S}["SLOW_HANDLER"] is -1, expected {SECONDS} of at least 0'),
    (sales(DELAYED_RETRY_INCREASE=-1), "E004", f'{S}["DELAYED_RETRY_INCREASE"] is -1, expected {SECONDS} of at least 0'),
    # access to the metrics; a token is never shown
    ({"PIPELINE": "/srv/lake"}, "E003", "SQLQUEUE[\"PIPELINE\"] is '/srv/lake', expected a dictionary"),
    ({"PIPELINE": {"LAKE": 5}}, "E003", 'SQLQUEUE["PIPELINE"]["LAKE"] is 5, expected a folder, or a URL that Spark can write, or None'),
    ({"PIPELINE": {"BATCH_SIZE": 0}}, "E004", 'SQLQUEUE["PIPELINE"]["BATCH_SIZE"] is 0, expected an integer of at least 1 and at most 2147483647'),
    ({"PIPELINE": {"LAKES": "/srv"}}, "E002", "SQLQUEUE[\"PIPELINE\"][\"LAKES\"] is not a setting: did you mean 'LAKE'?"),
    ({"PIPELINE": {"CRON": "0 25 * * *"}}, "E011", "SQLQUEUE[\"PIPELINE\"][\"CRON\"] is '0 25 * * *', expected 0 to 23 for the hour, not '25'"),
    ({"PIPELINE": {"SPARK": {"spark.ui.enabled": True}}}, "E003", 'SQLQUEUE["PIPELINE"]["SPARK"]["spark.ui.enabled"] is True, expected a string that is not blank'),
    ({"METRICS": True}, "E003", 'SQLQUEUE["METRICS"] is True, expected a dictionary'),
    ({"METRICS": "s3cret"}, "E003", 'SQLQUEUE["METRICS"] is a value of str, expected a dictionary'),
    ({"METRICS": {"TOKEN": b"s3cret"}}, "E003", 'SQLQUEUE["METRICS"]["TOKEN"] is a value of bytes, expected an ASCII string without blanks, or None'),
    ({"METRICS": {"TOKEN": "s3 cret"}}, "E007", 'SQLQUEUE["METRICS"]["TOKEN"] is blank, or has blanks or characters other than ASCII in it, expected an ASCII string without blanks, or None'),
    ({"METRICS": {"TOKEN": "s\u00e9cret"}}, "E007", 'SQLQUEUE["METRICS"]["TOKEN"] is blank, or has blanks or characters other than ASCII in it, expected an ASCII string without blanks, or None'),
    ({"METRICS": {"NETWORKS": [5]}}, "E003", "SQLQUEUE[\"METRICS\"][\"NETWORKS\"][0] is 5, expected an IP network such as '10.0.0.0/8'"),
    ({"METRICS": {"NETWORKS": ["10.0.0.1/8"]}}, "E024", "SQLQUEUE[\"METRICS\"][\"NETWORKS\"][0] is '10.0.0.1/8', expected an IP network such as '10.0.0.0/8'"),
    ({"ADMIN_URL": "ops.example.com/admin/"}, "E025", "SQLQUEUE[\"ADMIN_URL\"] is 'ops.example.com/admin/', expected an address such as 'https://ops.example.com/admin/', or None"),
    ({"ADMIN_URL": "https://me:pw@ops.example.com/"}, "E025", "SQLQUEUE[\"ADMIN_URL\"] is 'https://me:pw@ops.example.com/', expected an address such as 'https://ops.example.com/admin/', or None"),
    ({"ADMIN_URL": "https://ops.example.com/admin/?next=1"}, "E025", "SQLQUEUE[\"ADMIN_URL\"] is 'https://ops.example.com/admin/?next=1', expected an address such as 'https://ops.example.com/admin/', or None"),
    ({"ADMIN_URL": 5}, "E003", "SQLQUEUE[\"ADMIN_URL\"] is 5, expected an address such as 'https://ops.example.com/admin/', or None"),
    ({"WEBHOOK_HOSTS": "hooks.example.com"}, "E003", "SQLQUEUE[\"WEBHOOK_HOSTS\"] is 'hooks.example.com', expected a list, each entry the name of a host such as 'hooks.example.com' or '*.example.com'; or None"),
    ({"WEBHOOK_HOSTS": ["https://hooks.example.com"]}, "E009", "SQLQUEUE[\"WEBHOOK_HOSTS\"][0] is 'https://hooks.example.com', expected the name of a host such as 'hooks.example.com' or '*.example.com'"),
    ({"WEBHOOK_HOSTS": ["hooks.*.com"]}, "E009", "SQLQUEUE[\"WEBHOOK_HOSTS\"][0] is 'hooks.*.com', expected the name of a host such as 'hooks.example.com' or '*.example.com'"),
    # words
    (sales(CONCURRENCY_MODEL="adaptve"), "E005", f"{S}[\"CONCURRENCY_MODEL\"] is 'adaptve', expected 'fixed', 'adaptive' or 'monitor': did you mean 'adaptive'?"),
    (sales(TRANSACTION_MODE="TransactionScope"), "E005", f"{S}[\"TRANSACTION_MODE\"] is 'TransactionScope', expected 'transaction_scope', 'sends_atomic_with_receive', 'receive_only' or 'none': did you mean 'transaction_scope'?"),
    (sales(ON_FAILURE_WITHOUT_TRANSACTION="x"), "E005", f"{S}[\"ON_FAILURE_WITHOUT_TRANSACTION\"] is 'x', expected 'error_queue' or 'discard'"),
    ({"TABLE_LAYOUT": "x"}, "E005", "SQLQUEUE[\"TABLE_LAYOUT\"] is 'x', expected 'classic' or 'modern'"),
    ({"BODY_NAMES": "Pascal"}, "E005", "SQLQUEUE[\"BODY_NAMES\"] is 'Pascal', expected 'as_is', 'pascal_case' or 'pascal': did you mean 'pascal'?"),
    # missing
    ({"SCHEDULES": {"nightly": {"SEND": "a"}}}, "E006", f"{CRON} is missing, expected a crontab line of five fields"),
    ({"SCHEDULES": {"nightly": {"CRON": "0 2 * * *"}}}, "E006", 'SQLQUEUE["SCHEDULES"]["nightly"]["SEND"] is missing, expected the full name of a message type, of at most 255 characters'),
    # blank texts
    ({"DATABASE": " "}, "E007", "SQLQUEUE[\"DATABASE\"] is ' ', expected the name of an alias in DATABASES"),
    ({"DEFAULT_SCHEMA": ""}, "E007", "SQLQUEUE[\"DEFAULT_SCHEMA\"] is '', expected the name of a schema, or None"),
    (sales(ERROR_QUEUE=""), "E007", f"{S}[\"ERROR_QUEUE\"] is '', expected the address of a queue"),
    (sales(AUDIT_QUEUE=" "), "E007", f"{S}[\"AUDIT_QUEUE\"] is ' ', expected the address of a queue, or None"),
    ({"ENDPOINTS": {" Sales": {}}}, "E007", "SQLQUEUE[\"ENDPOINTS\"][\" Sales\"] is ' Sales', expected a name without blanks around it"),
    ({"SEND_AS": "Web\t"}, "E007", "SQLQUEUE[\"SEND_AS\"] is 'Web\\t', expected a name without blanks around it"),
    ({"ENDPOINTS": {"Sales": {"ERROR_QUEUE": "error "}}}, "E007", "SQLQUEUE[\"ENDPOINTS\"][\"Sales\"][\"ERROR_QUEUE\"] is 'error ', expected a name without blanks around it"),
    ({"ROUTES": {"Shop.Order": " Sales"}}, "E007", "SQLQUEUE[\"ROUTES\"][\"Shop.Order\"] is ' Sales', expected a name without blanks around it"),
    # texts that no database stores
    ({"DEFAULT_SCHEMA": "a\0", **sales()}, "E007", "SQLQUEUE[\"DEFAULT_SCHEMA\"] is 'a\\x00', expected the name of a schema, or None"),
    ({"SCHEMA_FOR_QUEUE": {"error": "\ud83d"}}, "E007", "SQLQUEUE[\"SCHEMA_FOR_QUEUE\"][\"error\"] is '\\ud83d', expected the name of a schema"),
    ({"SCHEDULES": {"x" * 256: {"CRON": "0 2 * * *", "SEND": "A"}}}, "E007", f'SQLQUEUE["SCHEDULES"]["{"x" * 256}"] is \'{"x" * 118}…, expected a string that is not blank, of at most 255 characters'),
    (nightly(SEND="x" * 256), "E007", f'SQLQUEUE["SCHEDULES"]["nightly"]["SEND"] is \'{"x" * 118}…, expected the full name of a message type, of at most 255 characters'),
    # patterns
    ({"ROUTES": {"*": "Sales"}}, "E009", f"SQLQUEUE[\"ROUTES\"][\"*\"] is '*', expected {PATTERN}"),
    ({"ROUTES": {"Sales*": "Sales"}}, "E009", f"SQLQUEUE[\"ROUTES\"][\"Sales*\"] is 'Sales*', expected {PATTERN}"),
    ({"ROUTES": {".*": "Sales"}}, "E009", f"SQLQUEUE[\"ROUTES\"][\".*\"] is '.*', expected {PATTERN}"),
    ({"ROUTES": {"Sales.A, Shop": "Sales"}}, "E009", f"SQLQUEUE[\"ROUTES\"][\"Sales.A, Shop\"] is 'Sales.A, Shop', expected {PATTERN}"),
    ({"ALLOWED_DESTINATIONS": ["Sales", ""]}, "E009", "SQLQUEUE[\"ALLOWED_DESTINATIONS\"][1] is '', expected a queue name or address, in which '*' stands for any characters"),
    # dotted paths
    (sales(HANDLERS=["shop/handlers.py"]), "E010", f"{S}[\"HANDLERS\"][0] is 'shop/handlers.py', expected {PATH}"),
    (sales(RECOVERABILITY="shop..policy"), "E010", f"{S}[\"RECOVERABILITY\"] is 'shop..policy', expected {PATH}, or None"),
    # crontab lines
    (nightly(CRON="* * * *"), "E011", f"{CRON} is '* * * *', expected the five fields minute, hour, day of month, month and day of week, found 4"),
    (nightly(CRON="60 * * * *"), "E011", f"{CRON} is '60 * * * *', expected 0 to 59 for the minute, not '60'"),
    (nightly(CRON="0 0 * * 8"), "E011", f"{CRON} is '0 0 * * 8', expected 0 to 7 or sun to sat for the day of week, not '8'"),
    (nightly(CRON="0 0 31 2 *"), "E011", f"{CRON} is '0 0 31 2 *', expected a day that the month has; this one never comes"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "code", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_wrong_value_gives_one_problem_with_the_expectation(raw: object, code: str, message: str) -> None:
    (problem,) = [each for each in settings_problems(raw) if each.is_error]

    assert (str(problem.code), problem.message) == (f"sqlqueue.{code}", message)
    assert problem.hint
    assert message.startswith(str(problem.key_path))


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"ENDPOINTS": {"Sales@dbo": {}}}, 'SQLQUEUE["ENDPOINTS"]["Sales@dbo"]'),
        ({"ENDPOINTS": {"": {}}}, 'SQLQUEUE["ENDPOINTS"][""]'),
        ({"ENDPOINTS": {"a\0b": {}}}, 'SQLQUEUE["ENDPOINTS"]["a\\u0000b"]'),
        (sales(SATELLITES={"Fast@x": {}}), f'{S}["SATELLITES"]["Fast@x"]'),
        (sales(INSTANCE="a@b"), f'{S}["INSTANCE"]'),
        ({"SEND_AS": "a@b"}, 'SQLQUEUE["SEND_AS"]'),
        ({"ROUTES": {"A.*": "Sales@[dbo]"}}, 'SQLQUEUE["ROUTES"]["A.*"]'),
        ({"SCHEMA_FOR_QUEUE": {"a@b": "x"}}, 'SQLQUEUE["SCHEMA_FOR_QUEUE"]["a@b"]'),
        ({"SCHEMA_FOR_ENDPOINT": {" ": "x"}}, 'SQLQUEUE["SCHEMA_FOR_ENDPOINT"][" "]'),
        ({"CATALOG_FOR_ENDPOINT": {"a@b": "x"}}, 'SQLQUEUE["CATALOG_FOR_ENDPOINT"]["a@b"]'),
    ],
)
def test_literal_names_are_no_addresses(raw: object, place: str) -> None:
    (problem,) = settings_problems(raw)

    assert problem.code == "sqlqueue.E007"
    assert str(problem.key_path) == place
    assert place in problem.message


def test_name_with_at_is_explained() -> None:
    (problem,) = settings_problems({"ENDPOINTS": {"Sales@dbo": {}}})

    assert problem.message == (
        "SQLQUEUE[\"ENDPOINTS\"][\"Sales@dbo\"]: the queue name 'Sales@dbo' contains '@', which separates table and schema "
        "in an address; write only the name here, and the schema in DEFAULT_SCHEMA, SCHEMA_FOR_QUEUE or SCHEMA_FOR_ENDPOINT"
    )


def test_all_problems_are_reported_at_once() -> None:
    raw = {"DATABSE": "x", "ENDPOINTS": {"Sales": {"MAX_CONCURRENCY": 0, "HANDLERS": ["a b", "c d"]}, "A@": {}}}

    found = [str(problem.key_path) for problem in settings_problems(raw)]

    assert sorted(found) == sorted(
        [
            'SQLQUEUE["DATABSE"]',
            f'{S}["MAX_CONCURRENCY"]',
            f'{S}["HANDLERS"][0]',
            f'{S}["HANDLERS"][1]',
            'SQLQUEUE["ENDPOINTS"]["A@"]',
        ]
    )


def test_unknown_key_hint_lists_the_keys() -> None:
    (problem,) = settings_problems(sales(SATELLITES={"Fast": {"X": 1}}))

    assert problem.hint == f'the keys of {S}["SATELLITES"]["Fast"] are \'MAX_CONCURRENCY\''


@pytest.mark.parametrize(
    "raw",
    [
        {},
        sales(MAX_CONCURRENCY=None, PEEK_DELAY=timedelta(seconds=2), HANDLERS=(), IMMEDIATE_RETRIES=0),
        sales(PEEK_DELAY=10, PURGE_EXPIRED_EVERY=0, ERROR_QUEUE="error@[ops]", INSTANCE="web.1"),
        sales(MAX_CONCURRENCY=10_000, BATCH_SIZE=2**31 - 1, CALLBACK_QUEUES=10_000),
        {"SCHEDULES": {"x" * 255: {"CRON": "0 2 * * *", "SEND": "A" * 255}}, "ROUTES": {"A" * 255: "Sales"}},
        {"MAX_BODY_SIZE": 2**31 - 1, "MAX_MEMORY_PER_PROCESS": 2**63 - 1},
        {"ROUTES": {"Sales.PlaceOrder": "Sales", "Billing.*": "Acme.Billing", "List`1[[A, B]]": "Sales"}},
        {"ALLOWED_DESTINATIONS": ["Sales*", "error@[ops]"], "SEND_AS": "Web"},
    ],
)
def test_sound_settings_have_no_problem(raw: object) -> None:
    assert settings_problems(raw) == []
