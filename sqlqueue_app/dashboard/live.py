"""The part of a page that refreshes itself: asked for by our own script, told by a tag, not sent again while nothing changes."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

# Our script says with it as of when its page is, in seconds since 1970.
HEADER: Final = "Sqlqueue-Live"
# The answer says with it as of when it is.
MADE_HEADER: Final = "Sqlqueue-Made"
# As often as samples are taken.
LIVE_SECONDS: Final = 10
# The hidden field of a form that makes its POST ours.
TOKEN: Final = re.compile(rb'<input type="hidden" name="csrfmiddlewaretoken"[^>]*>')
# What differs each time though nothing has changed: the tokens of forms, as of when the page is, and what a template marks with
# data-volatile.
_VOLATILE: Final = re.compile(
    TOKEN.pattern + rb'| data-live-made="[^"]*"|<(?P<tag>[a-z]+) data-volatile[^>]*>.*?</(?P=tag)>', re.DOTALL
)


def is_live(request: HttpRequest) -> bool:
    """Whether our script asks, which needs no more than the content of the page."""
    return HEADER in request.headers and request.method == "GET"


def made_at_of(request: HttpRequest) -> float:
    """As of when the page is that our script refreshes, in seconds since 1970; 0 where it does not say so in a number."""
    try:
        seconds = float(request.headers.get(HEADER, ""))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def say_made_at(response: HttpResponseBase, seconds: float) -> HttpResponseBase:
    """The response, with as of when it is in a header; `seconds` since 1970."""
    response[MADE_HEADER] = f"{seconds:.3f}"
    return response


def nothing_newer() -> HttpResponse:
    """The answer to a page that is newer than what is kept."""
    return HttpResponse(status=204)


def etag_of(content: bytes) -> str:
    """The tag of a page: the same for pages that differ in nothing that their reader sees."""
    return f'"{hashlib.sha256(_VOLATILE.sub(b"", content)).hexdigest()[:32]}"'


def has_already(request: HttpRequest, etag: str) -> bool:
    """Whether our script has the page with this tag."""
    return request.headers.get("If-None-Match") == etag


def not_modified(etag: str) -> HttpResponse:
    """The answer to who has the page with this tag already."""
    same = HttpResponseNotModified()
    same["ETag"] = etag
    return same


def tagged(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """The answer to our script with a tag, or 304 if it has the same already; any other answer as it is. It must be rendered."""
    if not is_live(request) or response.status_code != 200 or not isinstance(response, HttpResponse):
        return response
    etag = response.get("ETag") or etag_of(response.content)
    if has_already(request, etag):
        same = not_modified(etag)
        if MADE_HEADER in response:
            same[MADE_HEADER] = response[MADE_HEADER]
        return same
    response["ETag"] = etag
    patch_vary_headers(response, [HEADER])
    return response
