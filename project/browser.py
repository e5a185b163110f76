"""A minimal HTTP client for the running site: keeps cookies and submits forms with their CSRF token."""

from __future__ import annotations

import re
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

_SECONDS = 30
_TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


class Browser:
    """Reads pages of one site and keeps its cookies."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def get(self, path: str) -> str:
        """Return the text of a page. Raises HTTPError if it does not exist."""
        with self._opener.open(self._site + path, timeout=_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))

    def post(self, path: str, **fields: str) -> str:
        """Submit a form and return the resulting page."""
        token = _TOKEN.search(self.get(path))
        fields["csrfmiddlewaretoken"] = token[1] if token else ""
        with self._opener.open(self._site + path, urlencode(fields).encode(), timeout=_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))
