"""Simulate browsers with an open page of the admin: `python -m benchmarks.dashboard_browsers ADDRESS COOKIE HOW_MANY`.

Each refreshes its page every second as our script does, over one persistent connection, until the standard input ends. The
results are then printed as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from http.client import HTTPConnection, RemoteDisconnected
from urllib.parse import urlsplit

PAGES = ("dashboard/", "queue/", "endpoint/", "queue/Bench/", "failedmessage/")
EVERY_SECONDS = 1.0


class Browser:
    """One open page. `took` holds the seconds of each answer."""

    def __init__(self, address: str, cookie: str, page: str, stop: threading.Event) -> None:
        self._connection = HTTPConnection(urlsplit(address).netloc)
        self._path = f"/admin/sqlqueue_app/{page}"
        self._headers = {"Cookie": f"sessionid={cookie}", "Sqlqueue-Live": "0"}
        self._stop = stop
        self.took: list[float] = []
        self.unchanged = 0

    def run(self) -> None:
        """Refresh each second until the stop."""
        while not self._stop.wait(EVERY_SECONDS):
            began = time.perf_counter()
            try:
                self._fetch()
            except (RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # the site may close a connection
                self._connection.close()
                self._fetch()
            self.took.append(time.perf_counter() - began)
        self._connection.close()

    def _fetch(self) -> None:
        self._connection.request("GET", self._path, headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status not in (200, 204, 304):
            raise RuntimeError(f"{self._path} answered {answer.status} {answer.reason}")
        self.unchanged += answer.status != 200
        for received, sent in (("ETag", "If-None-Match"), ("Sqlqueue-Made", "Sqlqueue-Live")):
            if value := answer.headers.get(received):
                self._headers[sent] = value


def main() -> None:
    """Open the requested number of pages."""
    address, cookie, count = sys.argv[1:]
    stop = threading.Event()
    browsers = [Browser(address, cookie, PAGES[number % len(PAGES)], stop) for number in range(int(count))]
    threads = [threading.Thread(target=each.run) for each in browsers]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    took = sorted(seconds for each in browsers for seconds in each.took)
    print(
        json.dumps(
            {
                "requests": len(took),
                "unchanged": sum(each.unchanged for each in browsers),
                "median_ms": statistics.median(took) * 1_000 if took else 0.0,
            }
        )
    )


if __name__ == "__main__":
    main()
