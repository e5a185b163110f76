"""XML that would exhaust memory or time or read files is refused with the reason; the complete message is in the error queue."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.browsing.bodies import NotPlainXml, indent_xml
from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.xml import parse_xml
from tests.support.bench import Bench, Calls

TEN = "&l{0};" * 10
LAUGHS = "".join(f'<!ENTITY l{n} "{TEN.format(n - 1)}">' for n in range(1, 10))
MANY = "&a;" * 50_000
LONG = "x" * 50_000
DOCUMENT_TYPE = "has a document type"
ATTRIBUTES = " ".join(f'a{n}="x"' for n in range(20_000))
NAMESPACES = ATTRIBUTES.replace("a", "xmlns:a")
BOMBS = {
    "billion laughs": (f'<!DOCTYPE lolz [<!ENTITY l0 "lol">{LAUGHS}]><Test.Bomb>&l9;</Test.Bomb>', DOCUMENT_TYPE),
    "quadratic": (f'<!DOCTYPE b [<!ENTITY a "{LONG}">]><Test.Bomb>{MANY}</Test.Bomb>', DOCUMENT_TYPE),
    "a file": ('<!DOCTYPE b [<!ENTITY f SYSTEM "file:///etc/passwd">]><Test.Bomb>&f;</Test.Bomb>', DOCUMENT_TYPE),
    "an address": ('<!DOCTYPE b SYSTEM "http://HOST/b.dtd"><Test.Bomb/>', DOCUMENT_TYPE),
    "a parameter": ('<!DOCTYPE b [<!ENTITY % p SYSTEM "http://HOST/p"> %p;]><Test.Bomb/>', DOCUMENT_TYPE),
    "an undeclared entity": ("<Test.Bomb>&f;</Test.Bomb>", "undefined entity"),
    "deep": ("<a>" * 100_000, "nested too deeply"),
    "attributes": (f"<Test.Bomb {ATTRIBUTES}/>", "more than 1000 attributes"),
    "namespaces": (f"<Test.Bomb {NAMESPACES}/>", "more than 1000 attributes"),
}


@pytest.fixture
def pending_request() -> Any:
    """A server that must get no request; returns its address and the list of requested paths."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_bombs_are_moved_unchanged_to_the_error_queue(
    sqlite_bench: Bench, calls: Calls, pending_request: tuple[str, list[str]], encoding: str
) -> None:
    bench, (host, seen) = sqlite_bench, pending_request

    @handles("Test.Bomb")
    def bomb(message: Any, context: Any) -> None:
        calls.add(message)

    bodies = {name: text.replace("HOST", host).encode(encoding) for name, (text, _) in BOMBS.items()}
    for body in bodies.values():
        bench.put('{"NServiceBus.EnclosedMessageTypes": "Test.Bomb", "NServiceBus.ContentType": "text/xml"}', body)
    bench.run()
    assert (calls.seen, seen, bench.rows("Sales")) == ([], [], [])
    assert {row.body for row in bench.rows("error")} == set(bodies.values())
    reasons = [row["NServiceBus.ExceptionInfo.Message"] for row in bench.headers("error")]
    for name, (_, reason) in BOMBS.items():
        assert any(reason in each for each in reasons), name
    assert max(map(len, reasons)) < 1_000


@pytest.mark.parametrize("name", sorted(set(BOMBS) - {"attributes", "namespaces"}))
def test_bombs_do_not_expand_in_the_admin(name: str) -> None:
    with pytest.raises(NotPlainXml):
        indent_xml(BOMBS[name][0].replace("HOST", "127.0.0.1:9"))


def test_text_in_many_pieces_is_put_together_once() -> None:
    """The text used to be copied for each piece; such a body occupied a thread for a minute."""
    element = parse_xml(b"<a>" + b"x" * 4_000_000 + b"x<b/>" * 50_000 + b"</a>")
    assert element.text == "x" * 4_050_000


def test_realistic_number_of_namespaces_is_read() -> None:
    declared = " ".join(f'xmlns:baseType{n}="Test.Base{n}"' for n in range(1_000))
    assert len(parse_xml(f"<a {declared}/>".encode()).base_types) == 1_000
    with pytest.raises(MessageBodyError, match="more than 1000"):
        parse_xml(f'<a {declared} xmlns:more="x"/>'.encode())
