"""The part of a page that refreshes itself: asked for by our own script, told by a tag, not sent again while nothing changes."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

HEADER: Final = "Sqlqueue-Live"
# As often as samples are taken.
LIVE_SECONDS: Final = 10
# The hidden field of a form that makes its POST ours.
TOKEN: Final = re.compile(rb'<input type="hidden" name="csrfmiddlewaretoken"[^>]*>')
# What differs each time though nothing has changed: the tokens of forms, and what a template marks with data-volatile.
_VOLATILE: Final = re.compile(TOKEN.pattern + rb"|<(?P<tag>[a-z]+) data-volatile[^>]*>.*?</(?P=tag)>", re.DOTALL)


def is_live(request: HttpRequest) -> bool:
    """Whether our script asks, which needs no more than the content of the page."""
    return HEADER in request.headers and request.method == "GET"


def tagged(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """The answer to our script with a tag, or 304 if it has the same already; any other answer as it is. It must be rendered."""
    if not is_live(request) or response.status_code != 200 or not isinstance(response, HttpResponse):
        return response
    etag = f'"{hashlib.sha256(_VOLATILE.sub(b"", response.content)).hexdigest()[:32]}"'
    if request.headers.get("If-None-Match") == etag:
        same = HttpResponseNotModified()
        same["ETag"] = etag
        return same
    response["ETag"] = etag
    patch_vary_headers(response, [HEADER])
    return response
