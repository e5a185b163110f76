"""The catalogs: German, French and Spanish have every text of the pages, with its placeholders, compiled as they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polib
import pytest
from django.apps import apps
from django.utils import translation

import sqlqueue_app
from sqlqueue_app.models import NotificationKind, NotificationRule
from sqlqueue_app.models.queues import QUEUE_MODELS_LABEL
from sqlqueue_app.monitoring.notifying import describe_condition
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.failing import fail
from tests.support.filling import install, instance
from tests.support.pages import OVERVIEW, Markup, client_of

PACKAGE = Path(sqlqueue_app.__file__).parent
LANGUAGES = ("de", "es", "fr")
MARKERS = {"_", "gettext", "gettext_lazy", "ngettext"}
PLACEHOLDER = re.compile(r"%\([a-z_]+\)[sd]|%%|</?[a-z]+>")
IN_TEMPLATE = re.compile(r"""{%\s*translate\s+(?:'([^']+)'|"([^"]+)")""")


def catalog(language: str, kind: str = "po") -> polib.POFile | polib.MOFile:
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / f"django.{kind}"
    return polib.pofile(str(path)) if kind == "po" else polib.mofile(str(path))


def texts_of(entry: polib.POEntry) -> list[tuple[str, str]]:
    """Pairs of an original and its translation."""
    if not entry.msgid_plural:
        return [(entry.msgid, entry.msgstr)]
    return [(entry.msgid if number == 0 else entry.msgid_plural, text) for number, text in entry.msgstr_plural.items()]


def texts_in_code() -> Iterator[tuple[str, str]]:
    """Every text that the code and the templates mark for translation, with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKERS and node.args:
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield path.name, text.value
    for path in sorted((PACKAGE / "templates").rglob("*.html")):
        for match in IN_TEMPLATE.finditer(path.read_text("utf-8")):
            yield path.name, match[1] or match[2]


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_texts_are_translated(language: str) -> None:
    entries = catalog(language)
    assert [entry.msgid for entry in entries if entry.fuzzy or entry.obsolete] == []
    assert [original for entry in entries for original, text in texts_of(entry) if not text.strip()] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_and_spaces_are_kept(language: str) -> None:
    for entry in catalog(language):
        for original, text in texts_of(entry):
            # the singular may use "a message" where the plural has a number
            if not entry.msgid_plural:
                assert sorted(PLACEHOLDER.findall(original)) == sorted(PLACEHOLDER.findall(text)), (original, text)
            assert set(PLACEHOLDER.findall(text)) <= set(PLACEHOLDER.findall(entry.msgid + entry.msgid_plural)), (original, text)
            assert original.endswith(" ") == text.endswith(" "), (original, text)
            assert original.startswith("\n") == text.startswith("\n"), (original, text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_catalog_contains_each_text_of_the_code(language: str) -> None:
    known = {entry.msgid for entry in catalog(language)}
    assert [(file, text) for file, text in texts_in_code() if text not in known] == []


def test_german_uses_one_word_for_each_term() -> None:
    other_words = re.compile("lebende|lebt|Datensee|abgeschaltet|abschalten|aktivieren|ungelöst|Operation")
    assert [text for entry in catalog("de") for _original, text in texts_of(entry) if other_words.search(text)] == []
    german = {entry.msgid: entry.msgstr for entry in catalog("de")}
    # Two terms must not share a word: the outcome of a run is not what leaves a queue.
    assert [pair for pair in (("Out", "Outcome"), ("Overview", "Summary")) if german[pair[0]] == german[pair[1]]] == []
    with translation.override("de"):
        condition = describe_condition(NotificationRule(kind=NotificationKind.INSTANCES_BELOW))
    assert condition == "weniger aktive Instanzen als der Mindestwert des Endpunkts"


def test_severity_of_an_event_is_one_error() -> None:
    """The word is also the kind of a queue, in which there may be several."""
    assert {each: {entry.msgid: entry.msgstr for entry in catalog(each)}["error"] for each in LANGUAGES} == {
        "de": "Fehler", "es": "error", "fr": "erreur",
    }  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_compiled_catalog_matches_its_source(language: str) -> None:
    written = {entry.msgid: texts_of(entry) for entry in catalog(language)}
    compiled = {entry.msgid: texts_of(entry) for entry in catalog(language, "mo")}
    assert compiled == written


@pytest.mark.parametrize(("language", "word"), [("de", "Warteschlangen"), ("fr", "Files d’attente"), ("es", "Colas")])
def test_pages_use_the_language_of_the_user(sqlite_database: QueueDatabase, language: str, word: str) -> None:
    install(sqlite_database)
    instance(silent=timedelta(minutes=5))
    sqlite_database.settings.MIDDLEWARE = [*sqlite_database.settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    client = client_of("superuser")
    with translation.override("en"):
        text = Markup(client.get(OVERVIEW, headers={"accept-language": language}).content.decode()).text()
    assert word.lower() in text.lower()


def test_list_and_page_of_instances_have_no_english_label(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    row = instance()
    sqlite_database.settings.MIDDLEWARE = [*sqlite_database.settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    client = client_of("superuser")
    with translation.override("en"):
        pages = ("", f"{row.pk}/change/")
        urls = [f"/admin/sqlqueue_app/instance/{page}" for page in pages]
        found, one = (Markup(client.get(url, headers={"accept-language": "de"}).content.decode()) for url in urls)
    for text in (found.text(), one.text()):
        words = {"Instanz", "Rechner und Prozess", "Rückrufwarteschlange"}
        assert {each for each in words if each.lower() not in text.lower()} == set()
        assert re.search("Callback|Process|Machine|Version:", text) is None
    with translation.override("de"):
        assert str(apps.get_app_config(QUEUE_MODELS_LABEL).verbose_name) == "SQL-Warteschlangen: Tabellen"


def test_page_of_a_group_names_its_classifier_in_the_language_of_the_user(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    (found,) = fail(sqlite_database, [failed()])
    sqlite_database.settings.MIDDLEWARE = [*sqlite_database.settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    client, url = client_of("superuser"), f"/admin/sqlqueue_app/failedmessage/group/{found.exception_group}/"
    with translation.override("en"):
        answers = [client.get(url, headers={"accept-language": language}) for language in ("de", "en")]
    german, english = (Markup(answer.content.decode()).text() for answer in answers)
    assert "Gruppe nach Ausnahme und Stacktrace" in german
    assert "Group by Exception and stack trace" in english
