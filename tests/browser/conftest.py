"""The pages in a real Chromium under a strict policy. Without Chromium on the machine these tests are skipped."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler, get_internal_wsgi_application
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from tests.support.databases import QueueDatabase
from tests.support.live_answers import no_answer_is_kept
from tests.support.pages import client_of
from tests.support.waiting import join_all

__all__ = ["no_answer_is_kept"]

CHROMIUM = os.environ.get("SQLQUEUE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
# The policy of a careful site: nothing inline, nothing from other hosts.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
PHONE = ViewportSize(width=390, height=844)
DESKTOP = ViewportSize(width=1280, height=900)
# Returns only the violations: the full result also lists every rule that the page passes.
_RUN_AXE = "options => axe.run({exclude: [['#nav-sidebar']]}, options).then(found => found.violations)"


@dataclass
class Site:
    """The pages at an address and the browser; each user has separate windows."""

    address: str
    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def window(self, kind: str, *, scripts: bool = True, phone: bool = False, dark: bool = False) -> Page:
        """A window of a logged-in user; complaints of the browser are recorded."""
        context = self.browser.new_context(
            base_url=self.address,
            java_script_enabled=scripts,
            viewport=PHONE if phone else DESKTOP,
            color_scheme="dark" if dark else "light",
        )
        self.contexts.append(context)
        morsel = client_of(kind).cookies["sessionid"]
        context.add_cookies([{"name": "sessionid", "value": morsel.value, "url": self.address}])
        page = context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _note(self, kind: str, text: str) -> None:
        # The browser requests a favicon, which the site of the tests does not have.
        if kind in ("error", "warning") and "404 (Not Found)" not in text:
            self.complaints.append(text)

    def barriers(self, page: Page, **options: Any) -> list[str]:
        """The serious and critical findings of axe, outside of the admin's own sidebar. A document loads axe once."""
        if page.evaluate("typeof axe === 'undefined'"):
            page.evaluate(AXE_SCRIPT)
        found: list[dict[str, Any]] = page.evaluate(_RUN_AXE, {"resultTypes": ["violations"], **options})
        return [
            f"{each['id']}: {each['help']}: {node['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]


@pytest.fixture(scope="module", autouse=True)
def chromium() -> Iterator[Browser]:
    """The browser of a module. Its driver runs an event loop in this thread, where no view runs, so async-unsafe is fine."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install it, or name it in SQLQUEUE_TEST_CHROMIUM")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as driver:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


class _Quiet(WSGIRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _with_policy(application: Callable[..., Any]) -> Callable[..., Any]:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
            return start_response(status, [*headers, ("Content-Security-Policy", POLICY)], error)

        return application(environ, start)

    return answer


@pytest.fixture
def site(chromium: Browser, sqlite_database: QueueDatabase) -> Iterator[Site]:
    """The admin on SQLite, served by threads of this process."""
    server = ThreadedWSGIServer(("127.0.0.1", 0), _Quiet, allow_reuse_address=False)
    server.daemon_threads = False
    server.set_app(_with_policy(StaticFilesHandler(get_internal_wsgi_application())))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="site")
    thread.start()
    found = Site(f"http://127.0.0.1:{server.server_port}", chromium)
    try:
        yield found
    finally:
        for context in found.contexts:
            context.close()
        server.shutdown()
        join_all([thread])
        server.server_close()
