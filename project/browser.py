"""Reading pages of the running site: cookies are kept, forms are filled in with their token."""

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
        """The text of a page; HTTPError for one that is not there."""
        with self._opener.open(self._site + path, timeout=_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))

    def post(self, path: str, **fields: str) -> str:
        """The page behind a form that was filled in."""
        token = _TOKEN.search(self.get(path))
        fields["csrfmiddlewaretoken"] = token[1] if token else ""
        with self._opener.open(self._site + path, urlencode(fields).encode(), timeout=_SECONDS) as answer:
            return str(answer.read().decode("utf-8"))
