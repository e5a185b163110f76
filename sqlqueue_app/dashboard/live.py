"""Pages that refresh themselves: our script requests them with an entity tag, and an unchanged page is not sent again.

All users with the same permissions, language and time zone share one answer, kept for half of the refresh interval. If the open
pages take longer to make than PART_OF_TIME of a process allows, they are made less often, because the database that makes them also
serves workers. Each answer carries the time of its data, and a page that a user has loaded after an action is never replaced
by an older answer.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language

from sqlqueue_app.dashboard.access import Permission, may
from sqlqueue_app.status.queues import SnapshotCache

# Request header: the time of the page's data, in seconds since 1970.
HEADER: Final = "Sqlqueue-Live"
# Response header: the time of the answer's data.
MADE_HEADER: Final = "Sqlqueue-Made"
# The interval of samples.
LIVE_SECONDS: Final = 10
# The CSRF token of a form.
TOKEN: Final = re.compile(rb'<input type="hidden" name="csrfmiddlewaretoken"[^>]*>')
# Parts that always differ: CSRF tokens, the time of the page, and elements marked data-volatile.
_VOLATILE: Final = re.compile(
    TOKEN.pattern + rb'| data-live-made="[^"]*"|<(?P<tag>[a-z]+) data-volatile[^>]*>.*?</(?P=tag)>', re.DOTALL
)


def is_live(request: HttpRequest) -> bool:
    """Whether our script sent the request, which needs only the content of the page."""
    return HEADER in request.headers and request.method == "GET"


def etag_of(content: bytes) -> str:
    """The entity tag of a page: equal for pages that look the same."""
    return f'"{hashlib.sha256(_VOLATILE.sub(b"", content)).hexdigest()[:32]}"'


def tagged(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """The response to our script with a tag, or 304 for an unchanged page; other responses unchanged. It must be rendered."""
    if not is_live(request) or response.status_code != 200 or not isinstance(response, HttpResponse):
        return response
    if "ETag" not in response:
        response["ETag"] = etag_of(response.content)
    if request.headers.get("If-None-Match") == response["ETag"]:
        return HttpResponseNotModified(headers={name: response[name] for name in ("ETag", MADE_HEADER) if name in response})
    patch_vary_headers(response, [HEADER])
    return response


# Share of a process: costs a worker less than 3 % of its rate (`benchmarks/dashboard.py`).
PART_OF_TIME: Final = 0.01
# The maximum time for which an answer is kept, whatever its cost.
MAX_SECONDS: Final = 30.0
# Pages made within this time share their reads of queues.
SNAPSHOT_SECONDS: Final = 2.0
# Bounds the memory for many different URLs.
MAX_KEPT: Final = 100
# Log-ins with a page, as (session cookie, path)
_MAX_READERS: Final = 1_000


@dataclass(slots=True)
class _Answer:
    """A kept answer: the time of its data (seconds since 1970), its cost, its expiry; `lock` is held while it is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    as_of: float = 0.0
    cost_seconds: float = 0.0
    until: float = float("-inf")


class LiveAnswers:
    """The kept answers of this process. Safe from any thread; `clock` is in seconds, `now` in seconds since 1970."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time, part: float = 0.5
    ) -> None:
        """`part` is the minimum fraction of a page's refresh interval for which an answer is kept; 0 keeps nothing."""
        self.part = part
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}
        # Sessions that received an answer, and the time of its data: a newer answer needs authentication again.
        self._readers: dict[tuple[str, str], tuple[_Answer, float]] = {}
        self._snapshots = SnapshotCache(clock=clock)

    def answer(self, request: HttpRequest, make: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """The kept answer, or the one that `make` creates; concurrent requests wait for it. 204 if the client has a newer page.

        Only self-refreshing pages with status 200 are kept. The caller must have checked the permission to see the page.
        """
        known = self._known(request)
        with known.lock:
            if self._clock() < known.until:
                self._remember(request, known)
                return self._nothing_new(request, known) or _with_content(request, known)
            began = self._clock()
            snapshot_age = SNAPSHOT_SECONDS if self.part else 0.0
            # Rounded like the value of the header.
            as_of = round(self._now() - snapshot_age, 3)
            with self._snapshots.used(snapshot_age):
                response = make()
                if isinstance(response, TemplateResponse):
                    response.render()
            if self._keep(known, response, as_of, self._clock() - began):
                self._remember(request, known)
            response[MADE_HEADER] = f"{as_of:.3f}"
            return response

    def nothing_new(self, request: HttpRequest) -> HttpResponse | None:
        """304 or 204 for a session that received the kept answer, without a database query; otherwise None.

        It reveals nothing. A user who has lost a permission or has logged out notices when the page is made again, after at most
        MAX_SECONDS.
        """
        known, as_of = self._readers.get(_reader(request), (None, 0.0))
        if known is None or not known.lock.acquire(blocking=False):
            return None
        try:
            is_kept = known.as_of == as_of and self._clock() < known.until
            response = self._nothing_new(request, known) if is_kept else None
        finally:
            known.lock.release()
        if response is not None:
            # Like all pages of the admin.
            add_never_cache_headers(response)
        return response

    def _nothing_new(self, request: HttpRequest, known: _Answer) -> HttpResponse | None:
        if known.as_of < self._as_of_page(request):
            return HttpResponse(status=204)
        is_same = request.headers.get("If-None-Match") == known.headers["ETag"]
        return HttpResponseNotModified(headers=known.headers) if is_same else None

    def _remember(self, request: HttpRequest, known: _Answer) -> None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return
        with self._lock:
            if len(self._readers) >= _MAX_READERS:
                self._readers.clear()
            self._readers[_reader(request)] = (known, known.as_of)

    def _as_of_page(self, request: HttpRequest) -> float:
        """The time of the client's page, in seconds since 1970; 0 if it is invalid or too far ahead of our clock."""
        try:
            as_of = float(request.headers.get(HEADER, ""))
        except ValueError:
            return 0.0
        # Nothing compares with "nan".
        return as_of if as_of <= self._now() + MAX_SECONDS else 0.0

    def _keep(self, known: _Answer, response: HttpResponseBase, as_of: float, cost_seconds: float) -> bool:
        """Keep a page that refreshes itself; returns whether it does."""
        if not isinstance(response, TemplateResponse) or response.status_code != 200:
            return False
        seconds = ((response.context_data or {}).get("live_seconds") or 0) * self.part
        if seconds:
            known.content = response.content
            response["ETag"] = etag_of(response.content)
            known.headers = {"ETag": response["ETag"], MADE_HEADER: f"{as_of:.3f}"}
            known.as_of, known.cost_seconds = as_of, cost_seconds
            since = self._clock() - MAX_SECONDS
            with self._lock:
                others = [each.cost_seconds for each in self._answers.values() if each is not known and each.until > since]
            # The cost of this page and all recently requested pages.
            cost_of_all = cost_seconds + sum(others)
            seconds = min(max(seconds, cost_of_all / PART_OF_TIME), MAX_SECONDS)
            # All pages expire at the same instants, so that they share the reads of queues.
            known.until = (self._clock() // seconds + 1) * seconds
        return bool(seconds)

    def _known(self, request: HttpRequest) -> _Answer:
        permissions = tuple(may(request, permission) for permission in Permission)
        key = (request.get_full_path(), get_language(), get_current_timezone_name(), permissions)
        with self._lock:
            known = self._answers.get(key)
            if known is None:
                if len(self._answers) >= MAX_KEPT:
                    self._answers.clear()
                known = self._answers[key] = _Answer()
            return known


def _reader(request: HttpRequest) -> tuple[str, str]:
    return request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""), request.get_full_path()


def _with_content(request: HttpRequest, known: _Answer) -> HttpResponse:
    """A response with the kept content, with this user's CSRF token in its forms."""
    content = known.content
    if TOKEN.search(content):
        field_of_user = f'<input type="hidden" name="csrfmiddlewaretoken" value="{get_token(request)}">'.encode()
        content = TOKEN.sub(lambda _found: field_of_user, content)
    return HttpResponse(content, headers=known.headers)


live_answers = LiveAnswers()
