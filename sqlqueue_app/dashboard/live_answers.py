"""One answer for all who look at the same page at the same time: ten open pages cost the database little more than one.

A page is made once for those who may do the same, in the same language and time zone, and kept for half of the time after which
they ask again, at most. So whoever has just loaded the whole page, after an action of his, is never answered with what was before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.template.response import TemplateResponse
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language

from sqlqueue_app.dashboard.access import Power, may
from sqlqueue_app.dashboard.live import TOKEN
from sqlqueue_app.operations.recent_looks import RecentLooks

LONGEST_SECONDS: Final = 5.0
# Pages that are made at about the same time share their looks at queues. Together with the time for which an answer is kept this is
# less than the interval of any page that looks at queues.
LOOKS_SECONDS: Final = 2.0
# A person looks at few pages; whoever asks for a thousand different ones only wants memory.
KEPT_AT_MOST: Final = 100


@dataclass(slots=True)
class _Answer:
    """What was made, until when it holds; `lock` is held while it is made anew."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    content: bytes = b""
    until: float = float("-inf")


class LiveAnswers:
    """The answers of this process. Safe from any thread; `clock` is in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, part: float = 0.5) -> None:
        """`part` is for how much of a page's own interval an answer is kept."""
        self.part = part
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}
        self._looks = RecentLooks(clock=clock)

    def answer(self, request: HttpRequest, make: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """What `make` gives, or has given a moment ago to somebody who may see the same; who asks meanwhile waits for it.

        Only pages that refresh themselves are kept, and no page that says that something is wrong. The permission to see the page
        must have been asked for.
        """
        known = self._known(request)
        with known.lock:
            if self._clock() < known.until:
                return HttpResponse(_with_token(request, known.content))
            with self._looks.used(LOOKS_SECONDS if self.part else 0.0):
                response = make()
                if isinstance(response, TemplateResponse):
                    response.render()
            self._keep(known, response)
            return response

    def _keep(self, known: _Answer, response: HttpResponseBase) -> None:
        if not isinstance(response, TemplateResponse) or response.status_code != 200:
            return
        seconds = min(((response.context_data or {}).get("live_seconds") or 0) * self.part, LONGEST_SECONDS)
        if seconds:
            known.content = response.content
            # All pages grow old at the same instants, so that those that are made anew share what they look at.
            known.until = (self._clock() // seconds + 1) * seconds

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


def _with_token(request: HttpRequest, content: bytes) -> bytes:
    """The content with the token of this user in its forms."""
    if not TOKEN.search(content):
        return content
    field_of_user = f'<input type="hidden" name="csrfmiddlewaretoken" value="{get_token(request)}">'.encode()
    return TOKEN.sub(lambda _found: field_of_user, content)


live_answers = LiveAnswers()
