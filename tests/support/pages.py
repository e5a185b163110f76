"""A page as a browser sees it: the status, the text, the markup that a strict policy would refuse."""

from __future__ import annotations

from html.parser import HTMLParser

from django.contrib.auth.models import Permission, User
from django.test import Client

from sqlqueue_app.installation import GROUPS

OVERVIEW = "/admin/sqlqueue_app/queue/"


def client_of(kind: str) -> Client:
    """A client of: anonymous, staff (no permission), viewer (only view_queue), reader, writer, admin (the groups), superuser."""
    client = Client()
    if kind == "anonymous":
        return client
    user, _ = User.objects.get_or_create(username=kind, defaults={"is_staff": True, "is_superuser": kind == "superuser"})
    codenames = ("view_queue",) if kind == "viewer" else GROUPS.get(f"sqlqueue {kind}", ())
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="sqlqueue_app", codename__in=codenames))
    client.force_login(user)
    return client


class Markup(HTMLParser):
    """The parsed parts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        # A place where a word may break does not split its text.
        self.feed(html.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        self._open.append(tag)
        refused = [name for name in known if name == "style" or name.startswith("on")]
        self.inline += [f"<{tag} {name}=…>" for name in refused]
        if tag == "style" or (tag == "script" and not known.get("src")):
            self.inline.append(f"<{tag}>")
        if tag == "a" and known.get("href"):
            self.links.append(str(known["href"]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def text(self) -> str:
        """The whole text with collapsed white space."""
        return " ".join(" ".join(self.texts).split())

    def find(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """The attributes of all elements with this tag and these attributes."""
        return [known for name, known in self.tags if name == tag and attributes.items() <= known.items()]


def numbers_of(html: str, queue: str) -> list[int]:
    """The numbers in the row of a queue: messages, those with an expiry, expired ones, and threads of live instances."""
    reader = _RowReader(queue)
    reader.feed(html)
    return reader.numbers


class _RowReader(HTMLParser):
    def __init__(self, queue: str) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self._queue = queue
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "tr":
            self._inside = known.get("data-key") == f"queue {self._queue}"
        if self._inside and tag == "data":
            self.numbers.append(int(str(known["value"])))


def page_at(address: str, kind: str = "viewer", status: int = 200) -> Markup:
    """The page for this kind of client. Asserts the status, and that a strict policy would refuse nothing on the page."""
    answer = client_of(kind).get(address)
    assert answer.status_code == status
    found = Markup(answer.content.decode())
    assert found.inline == []
    return found
