"""One answer for all who look at the same page at the same time, and a bound on what all of them cost.

A page is made once for those who may do the same, in the same language and time zone, and kept for half of the time after which
they ask again. Where the pages that are open take longer to make than that allows, they are made less often: all of them together
take a process of the site no more than `PART_OF_TIME`, for they are made by the database that workers need. Each page says as of
when it is, and a page that somebody has loaded himself, after an action of his, is never replaced by what was before.

Who has the answer already is told so without a look at the database: see `LiveAnswers.nothing_new`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language

from sqlqueue_app.dashboard.access import Power, may
from sqlqueue_app.dashboard.live import TOKEN, etag_of, has_already, made_at_of, not_modified, nothing_newer, say_made_at
from sqlqueue_app.operations.recent_looks import RecentLooks

# Of the time of a process: what `benchmarks/dashboard.py` found to cost a worker less than 3 % of its rate.
PART_OF_TIME: Final = 0.01
# An operator waits no longer for what is new, whatever it costs.
LONGEST_SECONDS: Final = 30.0
# Pages that are made at about the same time share their looks at queues, and are as of so long before.
LOOKS_SECONDS: Final = 2.0
# A person looks at few pages; whoever asks for a thousand different ones only wants memory.
KEPT_AT_MOST: Final = 100
# Log-ins with a page, as (session cookie, path)
_READERS_AT_MOST: Final = 1_000


@dataclass(slots=True)
class _Answer:
    """What was made, as of when (seconds since 1970), what it cost, until when it holds; `lock` is held while it is made anew."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    content: bytes = b""
    etag: str = ""
    as_of: float = 0.0
    cost_seconds: float = 0.0
    until: float = float("-inf")


class LiveAnswers:
    """The answers of this process. Safe from any thread; `clock` is in seconds, `now` in seconds since 1970."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time, part: float = 0.5
    ) -> None:
        """`part` is for how much of a page's own interval an answer is kept at least; with 0 nothing is kept."""
        self.part = part
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}
        # To whom an answer was given, and as of when it was: after that he is asked again who he is.
        self._readers: dict[tuple[str, str], tuple[_Answer, float]] = {}
        self._looks = RecentLooks(clock=clock)

    def answer(self, request: HttpRequest, make: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """What `make` gives, or has given a moment ago to somebody who may see the same; who asks meanwhile waits for it.

        Where what is kept is older than the page that asks, the answer is 204: there is nothing newer. Only pages that refresh
        themselves are kept, and no page that says that something is wrong. The permission to see the page must have been asked for.
        """
        known = self._known(request)
        with known.lock:
            if self._clock() < known.until:
                self._remember(request, known)
                return self._nothing_new(request, known) or say_made_at(_with_content(request, known), known.as_of)
            began, looks_seconds = self._clock(), LOOKS_SECONDS if self.part else 0.0
            # as the header says it
            as_of = round(self._now() - looks_seconds, 3)
            with self._looks.used(looks_seconds):
                response = make()
                if isinstance(response, TemplateResponse):
                    response.render()
            if self._keep(known, response, as_of, self._clock() - began):
                self._remember(request, known)
            return say_made_at(response, as_of)

    def nothing_new(self, request: HttpRequest) -> HttpResponse | None:
        """304 or 204 for a log-in that was given the very answer that is kept, without asking whose it is; None for all others.

        It tells nothing but that there is nothing to tell. Whoever has lost a permission, or has logged out, hears of it when the
        page is made anew: after `LONGEST_SECONDS` at most.
        """
        known, as_of = self._readers.get(_reader(request), (None, 0.0))
        if known is None or not known.lock.acquire(blocking=False):
            return None
        try:
            if known.as_of != as_of or self._clock() >= known.until:
                return None
            response = self._nothing_new(request, known)
        finally:
            known.lock.release()
        if response is not None:
            # as the admin has it for all its pages
            add_never_cache_headers(response)
        return response

    def _nothing_new(self, request: HttpRequest, known: _Answer) -> HttpResponse | None:
        if known.as_of < self._as_of_asked(request):
            return nothing_newer()
        if has_already(request, known.etag):
            same = not_modified(known.etag)
            say_made_at(same, known.as_of)
            return same
        return None

    def _remember(self, request: HttpRequest, known: _Answer) -> None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES:
            return
        with self._lock:
            if len(self._readers) >= _READERS_AT_MOST:
                self._readers.clear()
            self._readers[_reader(request)] = (known, known.as_of)

    def _as_of_asked(self, request: HttpRequest) -> float:
        """As of when the page is that asks; 0 where its clock was ahead of ours by more than anybody waits for."""
        as_of = made_at_of(request)
        return as_of if as_of <= self._now() + LONGEST_SECONDS else 0.0

    def _keep(self, known: _Answer, response: HttpResponseBase, as_of: float, cost_seconds: float) -> bool:
        """Keep a page that refreshes itself; whether it was one."""
        if not isinstance(response, TemplateResponse) or response.status_code != 200:
            return False
        seconds = ((response.context_data or {}).get("live_seconds") or 0) * self.part
        if seconds:
            known.content = response.content
            known.etag = response["ETag"] = etag_of(response.content)
            known.as_of, known.cost_seconds = as_of, cost_seconds
            seconds = min(max(seconds, self._cost_of_open_pages(known) / PART_OF_TIME), LONGEST_SECONDS)
            # All pages grow old at the same instants, so that those that are made anew share what they look at.
            known.until = (self._clock() // seconds + 1) * seconds
        return bool(seconds)

    def _cost_of_open_pages(self, made: _Answer) -> float:
        """The seconds that it takes to make this one, and each of the others that somebody has asked for lately, once."""
        since = self._clock() - LONGEST_SECONDS
        with self._lock:
            others = [each.cost_seconds for each in self._answers.values() if each is not made and each.until > since]
        return made.cost_seconds + sum(others)

    def _known(self, request: HttpRequest) -> _Answer:
        powers = tuple(may(request, power) for power in Power)
        key = (request.get_full_path(), get_language(), get_current_timezone_name(), powers)
        with self._lock:
            known = self._answers.get(key)
            if known is None:
                if len(self._answers) >= KEPT_AT_MOST:
                    self._answers.clear()
                known = self._answers[key] = _Answer()
            return known


def _reader(request: HttpRequest) -> tuple[str, str]:
    return request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""), request.get_full_path()


def _with_content(request: HttpRequest, known: _Answer) -> HttpResponse:
    """What was made a moment ago."""
    response = HttpResponse(_with_token(request, known.content))
    response["ETag"] = known.etag
    return response


def _with_token(request: HttpRequest, content: bytes) -> bytes:
    """The content with the token of this user in its forms."""
    if not TOKEN.search(content):
        return content
    field_of_user = f'<input type="hidden" name="csrfmiddlewaretoken" value="{get_token(request)}">'.encode()
    return TOKEN.sub(lambda _found: field_of_user, content)


live_answers = LiveAnswers()
