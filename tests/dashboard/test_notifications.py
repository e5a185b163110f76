"""The pages of notifications: rules with clear form errors, secrets shown once, tests, the log."""

# ruff: noqa: E501 (one row for each case, with its whole message)

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.page import path_of
from sqlqueue_app.models import NotificationDelivery, NotificationRule, OperatorAction, QueueSample
from sqlqueue_app.monitoring.notifying import Links
from sqlqueue_app.monitoring.rules import RuleValues, create_rule, new_delivery
from sqlqueue_app.monitoring.webhooks import key_of
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install, instance
from tests.support.pages import Markup, client_of

RULES = "/admin/sqlqueue_app/notificationrule/"
LOG = f"{RULES}deliveries/"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "T0KEN"
HOOK = f"https://hooks.example.com/services/{TOKEN}?key={TOKEN}"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FORM = {
    "confirmed": "1", "name": "long queues", "kind": "queue_longer", "subject": "", "threshold": "1000", "channel": "mail",
    "target": "ops@example.com", "throttle_seconds": "300", "secret": "",
}  # fmt: skip


@pytest.fixture
def admin(sqlite_database: QueueDatabase) -> Client:
    install(sqlite_database)
    return client_of("admin")


def webhook_rule(name: str = "hook", **values: Any) -> NotificationRule:
    known = {"kind": "queue_longer", "threshold": 5.0, "channel": "webhook", "target": HOOK}
    return create_rule(RuleValues(name, **{**known, **values}), SECRET, by="anna")


def delivery(rule: NotificationRule, state: str = "sent", *, at: datetime = NOW, **values: Any) -> NotificationDelivery:
    change = {"change": "raised", "subject": "Sales", "value": 11, "threshold": 5.0, "at": NOW.isoformat()}
    made = new_delivery(rule, {"changes": [change]}, at)
    for name, value in {"state": state, **values}.items():
        setattr(made, name, value)
    made.save(force_insert=True)
    return made


def problems(answer: Any) -> list[str]:
    """The errors of the page, followed by those of the fields."""
    found = re.findall(
        r'<(div|span) class="[^"]*"(?: id="[^"]*")? role="alert">(.*?)</\1>\s*</?(?:p|div|dl)', answer.content.decode(), re.DOTALL
    )
    return [Markup(each).text() for _tag, each in found]


def test_rule_is_created(admin: Client) -> None:
    answer = admin.post(f"{RULES}make/", {**FORM, "target": "ops@example.com, dev@example.com\nops@example.com"}, follow=True)
    assert "The rule is created." in answer.content.decode()
    made = NotificationRule.objects.get()
    assert (made.name, made.kind, made.subject, made.threshold, made.channel) == ("long queues", "queue_longer", "", 1000.0, "mail")
    assert (made.target, made.throttle_seconds, made.secret, made.changed_by) == (
        "ops@example.com\ndev@example.com",
        300,
        "",
        "admin",
    )
    assert made.watched_from == made.changed_at
    action = OperatorAction.objects.get()
    assert (action.action, action.target, action.result) == ("make notification rule", "long queues", "done")
    page = Markup(admin.get(RULES).content.decode())
    assert "More messages waiting than 1,000" in page.text() or "more messages waiting than 1,000" in page.text()
    assert "Notifications have no links to these pages" in page.text()


def test_secret_of_a_webhook_is_shown_only_at_creation(admin: Client, caplog: pytest.LogCaptureFixture) -> None:
    page = admin.get(f"{RULES}make/")
    (field,) = Markup(page.content.decode()).find("input", name="secret")
    secret = str(field["value"])
    assert len(key_of(secret)) == 32
    assert "no-store" in page.headers["Cache-Control"]
    assert admin.get(f"{RULES}make/?secret=mine").content != page.content
    answer = admin.post(f"{RULES}make/", {**FORM, "channel": "webhook", "target": HOOK, "secret": secret}, follow=True)
    made = NotificationRule.objects.get()
    assert made.secret == secret
    delivery(made, "failed", error="HTTP 500")
    (failed,) = NotificationDelivery.objects.all()
    seen = [answer, *(admin.get(each) for each in (
        RULES, f"{RULES}{made.pk}/", f"{RULES}{made.pk}/edit/", f"{RULES}{made.pk}/secret/", f"{RULES}{made.pk}/test/", LOG,
        f"{LOG}{failed.pk}/again/", f"{RULES}?format=json", f"{RULES}?format=csv", f"{LOG}?format=json", f"{LOG}?format=csv",
        "/admin/sqlqueue_app/operatoraction/",
    ))]  # fmt: skip
    for each in seen:
        content = each.getvalue() if each.streaming else each.content
        assert each.status_code == 200
        assert secret.encode() not in content
        assert TOKEN.encode() in content or b"operatoraction" in content or each.request["PATH_INFO"].endswith("secret/")
    assert secret not in caplog.text
    assert TOKEN not in caplog.text
    assert not OperatorAction.objects.filter(target__contains=TOKEN).exists()


def test_secret_stays_until_it_is_replaced(admin: Client) -> None:
    made = webhook_rule()
    form = {**FORM, "channel": "webhook", "target": HOOK}
    assert admin.post(f"{RULES}{made.pk}/edit/", form).status_code == 302
    made.refresh_from_db()
    assert (made.secret, made.name) == (SECRET, "long queues")
    other = str(Markup(admin.get(f"{RULES}{made.pk}/secret/").content.decode()).find("input", name="secret")[0]["value"])
    assert admin.post(f"{RULES}{made.pk}/secret/", {"confirmed": "1", "secret": other}).status_code == 302
    made.refresh_from_db()
    assert made.secret == other != SECRET
    refused = admin.post(f"{RULES}{made.pk}/secret/", {"confirmed": "1", "secret": "whsec_short"})
    assert refused.status_code == 400
    assert problems(refused) == [SECRET_EXPECTED]


def test_mail_has_no_secret_to_replace(admin: Client) -> None:
    made = webhook_rule(channel="mail", target="ops@example.com")
    assert "The rule sends mail, which is not signed." in admin.get(f"{RULES}{made.pk}/secret/").content.decode()
    assert admin.post(f"{RULES}{made.pk}/secret/", {"confirmed": "1", "secret": SECRET}).status_code == 409


HOSTS = "A webhook URL begins with https:// or http:// and a host."
WHOLE = "Expected a whole number of 0 or more."
SECRET_EXPECTED = "Expected “whsec_” and the base64 of 24 to 64 bytes."
WRONG = [
    ({"name": ""}, "This field is required."),
    ({"name": "x" * 101}, "Ensure this value has at most 100 characters (it has 101)."),
    ({"name": "a\nb"}, "Expected one line of printable characters."),
    ({"kind": "odd"}, "Select a valid choice. odd is not one of the available choices."),
    ({"channel": "pigeon"}, "Select a valid choice. pigeon is not one of the available choices."),
    ({"threshold": ""}, WHOLE),
    ({"threshold": "nan"}, "Enter a number."),
    ({"threshold": "1e999"}, "Enter a number."),
    ({"threshold": "-1"}, WHOLE),
    ({"threshold": "1.5"}, WHOLE),
    ({"kind": "failures_above", "threshold": "2000000"}, "Expected a whole number from 0 to 1,000,000."),
    ({"kind": "queue_older", "threshold": "0"}, "Expected a number of seconds from 1 to 31,622,400."),
    ({"kind": "instances_below", "threshold": "0"}, "Expected a whole number from 1 to 10,000, or empty for the minimum of each endpoint."),
    ({"throttle_seconds": "often"}, "Enter a whole number."),
    ({"target": ""}, "This field is required."),
    ({"target": "ops@example.com nobody"}, "“nobody” is not an email address such as ops@example.com."),
    ({"target": "Ops_<ops@example.com>"}, "“Ops_<ops@example.com>” is not an email address such as ops@example.com."),
    ({"channel": "webhook", "target": "ftp://example.com/", "secret": SECRET}, HOSTS),
    ({"channel": "webhook", "target": "file:///etc/passwd", "secret": SECRET}, HOSTS),
    ({"channel": "webhook", "target": "https://", "secret": SECRET}, HOSTS),
    ({"channel": "webhook", "target": "https://a:b@example.com/", "secret": SECRET}, "A webhook URL must not contain a user name and password."),
    ({"channel": "webhook", "target": "https://example.com:99999/", "secret": SECRET}, "This is not a URL such as https://hooks.example.com/sqlqueue."),
    ({"channel": "webhook", "target": "https://example.com/a b", "secret": SECRET}, "Percent-encode spaces and characters that are not ASCII."),
    ({"channel": "webhook", "target": HOOK, "secret": ""}, "A webhook needs a secret, which signs what is sent."),
    ({"channel": "webhook", "target": HOOK, "secret": "s3cret"}, SECRET_EXPECTED),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), WRONG, ids=range(len(WRONG)))
def test_invalid_input_is_refused_with_the_expected_values(admin: Client, values: dict[str, str], expected: str) -> None:
    answer = admin.post(f"{RULES}make/", {**FORM, **values})
    assert answer.status_code == 400
    assert problems(answer) == [expected]
    assert not NotificationRule.objects.exists()


def test_invalid_form_keeps_the_input(admin: Client) -> None:
    page = Markup(admin.post(f"{RULES}make/", {**FORM, "kind": "queue_older", "threshold": "soon"}).content.decode())
    assert page.find("input", name="threshold")[0]["value"] == "soon"
    assert page.find("option", value="queue_older")[0].keys() >= {"selected"}


def test_rule_names_are_unique(admin: Client) -> None:
    first, second = webhook_rule("long queues"), webhook_rule("other")
    for address in (f"{RULES}make/", f"{RULES}{second.pk}/edit/"):
        answer = admin.post(address, FORM)
        assert answer.status_code == 409
        assert problems(answer) == ["There is a rule named “long queues” already: choose another name."]
    assert admin.post(f"{RULES}{first.pk}/edit/", FORM).status_code == 302


def test_disallowed_host_is_refused(sqlite_database: QueueDatabase, admin: Client) -> None:
    sqlite_database.configure(WEBHOOK_HOSTS=["*.internal.example.com"])
    answer = admin.post(f"{RULES}make/", {**FORM, "channel": "webhook", "target": HOOK, "secret": SECRET})
    assert problems(answer) == ["The setting WEBHOOK_HOSTS does not allow this host, only: *.internal.example.com."]


def test_rule_that_another_operator_has_changed_is_not_overwritten(admin: Client) -> None:
    made = webhook_rule()
    edit, form = f"{RULES}{made.pk}/edit/", {**FORM, "channel": "webhook", "target": HOOK}
    (opened,) = Markup(admin.get(edit).content.decode()).find("input", name="version")
    assert admin.post(edit, {**form, "threshold": "6", "version": str(opened["value"])}).status_code == 302

    answer = admin.post(edit, {**form, "threshold": "7", "version": str(opened["value"])})

    assert (answer.status_code, "It was changed after you opened" in answer.content.decode()) == (409, True)
    made.refresh_from_db()
    assert made.threshold == 6


def test_rule_with_a_new_condition_is_reset(admin: Client) -> None:
    made = webhook_rule()
    NotificationRule.objects.update(raised={"Sales": {}}, pending={"changes": [{}]})
    admin.post(f"{RULES}{made.pk}/edit/", {**FORM, "threshold": "5"})
    made.refresh_from_db()
    assert list(made.raised) == ["Sales"]
    admin.post(f"{RULES}{made.pk}/edit/", {**FORM, "threshold": "6"})
    made.refresh_from_db()
    assert (made.raised, made.pending) == ({}, {})


@pytest.mark.parametrize("alive", [True, False])
def test_test_notification_waits_for_a_worker(admin: Client, alive: bool) -> None:
    made = webhook_rule()
    if alive:
        instance()
    answer = admin.post(f"{RULES}{made.pk}/test/", {"confirmed": "1"}, follow=True).content.decode()
    assert ("A worker sends the test" in answer) == alive
    assert ("no worker is alive, and the first one that starts sends it" in answer) == (not alive)
    assert ("No worker is alive: rules are not evaluated" in answer) == (not alive)
    (sent,) = NotificationDelivery.objects.all()
    assert (sent.is_test, sent.state, sent.rule) == (True, "waiting", made)


def test_rule_is_disabled_enabled_and_deleted(admin: Client) -> None:
    made = webhook_rule()
    for name, enabled in (("disable", False), ("enable", True)):
        assert admin.post(f"{RULES}{made.pk}/{name}/", {"confirmed": "1"}).status_code == 302
        made.refresh_from_db()
        assert made.enabled is enabled
    delivery(made, "waiting")
    assert admin.post(f"{RULES}{made.pk}/delete/", {"confirmed": "1"}).status_code == 302
    assert not NotificationRule.objects.exists()
    assert "The rule was deleted." in admin.get(LOG).content.decode()
    for page in ("", "edit/", "secret/", "test/", "enable/", "disable/", "delete/"):
        assert admin.get(f"{RULES}{made.pk}/{page}").status_code == 404
    assert admin.get(f"{RULES}{'9' * 40}/").status_code == 404
    assert [each.action for each in OperatorAction.objects.order_by("id")] == [
        "disable notification rule", "enable notification rule", "delete notification rule",
    ]  # fmt: skip


def test_failed_delivery_is_sent_again(admin: Client) -> None:
    made = webhook_rule()
    failed, sent = delivery(made, "failed", attempts=5, error="HTTP 500", target="https://old.example.com/"), delivery(made)
    page = admin.get(f"{LOG}{failed.pk}/again/").content.decode()
    assert "HTTP 500" in page
    assert admin.post(f"{LOG}{failed.pk}/again/", {"confirmed": "1"}).status_code == 302
    failed.refresh_from_db()
    assert (failed.state, failed.attempts, failed.error, failed.target) == ("waiting", 0, "", HOOK)
    assert admin.post(f"{LOG}{failed.pk}/again/", {"confirmed": "1"}).status_code == 409
    assert "It has not failed" in admin.get(f"{LOG}{sent.pk}/again/").content.decode()
    assert admin.get(f"{LOG}3c3c90ba-3dda-41bb-b5ab-460449a8f80e/again/").status_code == 404


def test_log_is_paginated_and_filtered(admin: Client) -> None:
    made, other = webhook_rule(), webhook_rule("other")
    for number in range(60):
        delivery(made, "failed" if number % 2 else "sent", at=NOW + timedelta(seconds=number // 3))
    delivery(other, at=NOW + timedelta(hours=1))
    seen: list[str] = []
    page = Markup(admin.get(f"{LOG}?rule={made.pk}").content.decode())
    while True:
        seen += [str(each["data-key"]) for each in page.find("tr", role="row") if each.get("data-key")]
        following = page.find("a", rel="next")
        if not following:
            break
        page = Markup(admin.get(f"{LOG}{following[0]['href']}").content.decode())
    ordered = NotificationDelivery.objects.filter(rule=made).order_by("-created_at", "-pk")
    assert seen == [f"notificationdelivery {each.pk}" for each in ordered]
    assert len(json.loads(admin.get(f"{LOG}?state=failed&format=json").getvalue())) == 30
    assert len(json.loads(admin.get(f"{LOG}?rule={other.pk}&format=json").getvalue())) == 1
    for query in (
        "rule=x&state=odd&before=y",
        f"rule={'9' * 30}",
        "rule=%00&before=%FF",
        "rule=-1",
        "before=3c3c90ba-3dda-41bb-b5ab-460449a8f80e",
    ):
        assert admin.get(f"{LOG}?{query}").status_code == 200


def test_reader_does_not_see_the_path_of_a_webhook(admin: Client) -> None:
    made = webhook_rule()
    delivery(made, "failed", error="HTTP 500")
    for kind in ("reader", "viewer"):
        client = client_of(kind)
        for page in (RULES, f"{RULES}{made.pk}/", LOG):
            # without the places where names may break
            content = client.get(page).content.decode().replace("<wbr>", "")
            assert "https://hooks.example.com/…" in content
            assert TOKEN not in content
            disabled = Markup(content).find("button", type="button")
            assert disabled
            assert all("disabled" in each for each in disabled)
            assert "You need the permission" in content
        assert client.get(f"{RULES}{made.pk}/edit/").status_code == 403
        assert client.post(f"{RULES}make/", FORM).status_code == 403
    assert NotificationRule.objects.count() == 1
    exported = client_of("writer").get(f"{RULES}?format=json").getvalue().decode()
    assert TOKEN not in exported


def test_hostile_names_are_shown_as_text(admin: Client) -> None:
    made = webhook_rule(HOSTILE[:100], subject=HOSTILE)
    NotificationRule.objects.update(raised={HOSTILE: {}, "\u202egnp": {}})
    row = delivery(made, "failed", error=HOSTILE)
    row.payload = {
        **row.payload,
        "changes": [{"change": "raised", "subject": HOSTILE}, {"change": HOSTILE, "subject": "x"}],
        "more": 3,
    }
    row.save()
    for page in (RULES, f"{RULES}{made.pk}/", f"{RULES}{made.pk}/edit/", LOG, f"{LOG}{row.pk}/again/"):
        content = admin.get(page).content.decode()
        assert HOSTILE not in content
        assert Markup(content).inline == []


def test_page_takes_few_statements(sqlite_database: QueueDatabase, admin: Client) -> None:
    rules = [webhook_rule(f"rule {number}") for number in range(30)]
    for each in rules:
        for number in range(3):
            delivery(each, at=NOW + timedelta(seconds=number))
    for page in (RULES, f"{RULES}{rules[0].pk}/", LOG, f"{RULES}make/", f"{RULES}{rules[0].pk}/edit/"):
        with CaptureQueriesContext(sqlite_database.connection) as queries:
            assert admin.get(page).status_code == 200
        assert len(queries) <= 15, (page, len(queries))


def test_query_string_sets_the_initial_form_values(admin: Client) -> None:
    page = Markup(admin.get(f"{RULES}make/?kind=queue_older&subject=Sales&threshold=60&name=old").content.decode())
    assert page.find("input", name="subject")[0]["value"] == "Sales"
    assert "selected" in page.find("option", value="queue_older")[0]
    assert page.find("input", name="throttle_seconds")[0]["value"] == "300"


@pytest.mark.parametrize("name", ["Sales", "a/b", "a.b@[dbo]", "..", "Sales_2F", "ü 漢", "a&b=c;d", "50%", "q?x#y", "\u202egnp"])
def test_links_match_the_pages_of_the_site(sqlite_database: QueueDatabase, name: str) -> None:
    install(sqlite_database, ADMIN_URL="https://ops.example.com/admin")
    links = Links(get_settings())
    site = "https://ops.example.com"
    change = {"subject": name}
    assert links.of_change("queue_older", change) == site + reverse("admin:sqlqueue_app_queue_messages", args=[path_of(name)])
    assert links.of_change("instances_below", change) == site + reverse(
        "admin:sqlqueue_app_endpoint_endpoint", args=[path_of(name)]
    )


def test_links_to_groups_rules_and_lists_match_the_site(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ADMIN_URL="https://ops.example.com/admin/")
    links = Links(get_settings())
    site = "https://ops.example.com"
    group = "3c3c90ba-3dda-41bb-b5ab-460449a8f80e"
    assert links.of_change("new_group", {"group": group}) == site + reverse("admin:sqlqueue_app_failedmessage_group", args=[group])
    assert links.of_change("failures_above", {"subject": ""}) == site + reverse("admin:sqlqueue_app_failedmessage_messages")
    delayed = links.of_change("queue_longer", {"subject": "Sales.Delayed"})
    assert delayed == site + reverse("admin:sqlqueue_app_delayedmessage_table", args=["Sales"])
    assert client_of("viewer").get(delayed.removeprefix(site)).status_code == 200
    assert links.of_rule(5) == site + reverse("admin:sqlqueue_app_notificationrule_rule", args=[5])
    assert links.of_change("odd", {}) == ""


def test_log_is_filtered_by_the_states_that_it_shows(admin: Client) -> None:
    rule = webhook_rule()
    for state, attempts, subject in (("waiting", 0, "Alpha"), ("waiting", 2, "Beta"), ("sent", 1, "Gamma"), ("failed", 9, "Delta")):
        change = {"change": "raised", "subject": subject, "value": 11, "threshold": 5.0, "at": NOW.isoformat()}
        delivery(rule, state, attempts=attempts, payload={"changes": [change]})
    states = {"waiting": "Alpha", "retrying": "Beta", "sent": "Gamma", "failed": "Delta"}
    (select,) = re.findall(r'<select name="state".*?</select>', admin.get(LOG).content.decode(), re.DOTALL)
    words = dict(re.findall(r'<option value="(\w+)"[^>]*>([^<]+)<', select))
    assert words.keys() == states.keys()
    for value, subject in states.items():
        text = Markup(admin.get(f"{LOG}?state={value}").content.decode()).text()
        assert [each for each in states.values() if each in text] == [subject]
        assert words[value] in text.partition("newest first")[2]


@pytest.mark.parametrize(
    ("kind", "subject", "threshold", "state"),
    [
        ("queue_longer", "Sales", 5.0, "enabled"),
        ("queue_older", "Sales", 5.0, "enabled"),
        ("queue_longer", "Salse", 5.0, "no data"),
        ("queue_older", "Salse", 5.0, "no data"),
        ("check_failed", "sqlqueue.growing", None, "enabled"),
        ("check_failed", "growing", None, "no data"),
        ("failures_above", "Sales", 5.0, "enabled"),
        ("failures_above", "Salse", 5.0, "no data"),
        ("new_group", "Salse", None, "no data"),
        ("new_group", "", None, "enabled"),
        ("instances_below", "Sales", 1.0, "enabled"),
        ("instances_below", "Sales", None, "no data"),
    ],
)
def test_rule_that_nothing_can_trigger_is_not_shown_as_fine(
    admin: Client, kind: str, subject: str, threshold: float | None, state: str
) -> None:
    now = datetime.now(UTC)
    QueueSample.objects.create(
        queue="Sales", seconds=10, taken_at=now - timedelta(seconds=20), waiting=1, most_waiting=1, head_age_seconds=1.0
    )
    made = webhook_rule(kind=kind, subject=subject, threshold=threshold)
    shown = [Markup(admin.get(page).content.decode()).text() for page in (RULES, f"{RULES}{made.pk}/")]
    assert [[word for word in ("enabled", "no data") if word in text] for text in shown] == [[state], [state]]
