"""The pages of the demo site over HTTP, as a browser receives them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from project.browser import Browser
from project.processes import HOST, SITE_IS_UP, Line, Programs
from project.security import POLICY
from tests.demo.running import SECONDS, environment, manage
from tests.support.databases import ROOT
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def var(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("var")


@pytest.fixture(scope="module")
def site(var: Path) -> Iterator[str]:
    """The address of a running site, with DEBUG off so that the error pages are its own."""
    environ = environment(var, DEBUG="off")
    manage(environ, "migrate", "--verbosity", "0")
    port = free_port()
    programs = Programs()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
        programs.start("web", sys.executable, str(ROOT / "manage.py"), "runserver", "--noreload", "--insecure", f"{HOST}:{port}")
    try:
        while True:
            event = programs.next_event(SECONDS)
            assert isinstance(event, Line), f"the site did not start: {event}"
            if SITE_IS_UP in event.text:
                break
        yield f"http://{HOST}:{port}"
    finally:
        programs.stop()


def get(address: str) -> HTTPResponse:
    answer = urlopen(address, timeout=SECONDS)
    assert isinstance(answer, HTTPResponse)
    return answer


@pytest.mark.parametrize("path", ["/", "/login/", "/admin/login/"])
def test_pages_have_a_strict_policy_and_nothing_inline(site: str, path: str) -> None:
    with get(site + path) as answer:
        page = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]

    assert policy == POLICY
    assert "unsafe-inline" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", page)


def test_assets_of_the_home_page_exist(site: str) -> None:
    page = Browser(site).get("/")

    assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert {Path(asset).suffix for asset in assets} == {".css", ".js", ".svg"}
    for asset in assets:
        with get(site + asset) as answer:
            assert answer.status == 200


def test_favicon_exists_at_its_default_address(site: str) -> None:
    with get(f"{site}/favicon.ico") as answer:
        assert answer.headers["Content-Type"] == "image/svg+xml"


def test_order_is_placed_without_javascript(site: str) -> None:
    page = Browser(site).post("/", customer="Ada <script>", total="12.50")

    assert re.search(r"Order \d{10} is placed\.", page)
    assert "Ada &lt;script&gt;" in page
    assert "12.50" in page


@pytest.mark.parametrize(
    ("customer", "total", "complaint"),
    [
        ("", "1", "This field is required."),
        ("Ada", "-1", "greater than or equal to 0.01"),
        ("Ada", "a lot", "Enter a number."),
        ("Ada", "NaN", "Enter a number."),
        ("A" * 101, "1", "at most 100 characters"),
        ("Ada", "1.999", "no more than 2 decimal places"),
    ],
)
def test_invalid_order_is_refused_with_the_reason(site: str, customer: str, total: str, complaint: str) -> None:
    with pytest.raises(HTTPError) as refused:
        Browser(site).post("/", customer=customer, total=total)

    with refused.value as answer:
        assert answer.code == 400
        assert complaint in answer.read().decode()


def test_unknown_address_returns_404(site: str) -> None:
    with pytest.raises(HTTPError) as missing:
        get(f"{site}/nowhere/")

    with missing.value as answer:
        assert answer.code == 404
        assert "There is no page at this address." in answer.read().decode()


def test_form_without_csrf_token_is_refused(site: str) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{site}/", b"customer=Ada&total=1", timeout=SECONDS)

    with refused.value as answer:
        assert answer.code == 403


def test_user_signs_in(site: str, var: Path) -> None:
    environ = environment(var, DJANGO_SUPERUSER_PASSWORD="a password for this test")
    manage(environ, "createsuperuser", "--noinput", "--username", "boss", "--email", "")
    browser = Browser(site)

    assert "Sign out" in browser.post("/login/", username="boss", password="a password for this test")
    assert "Site administration" in browser.get("/admin/")
