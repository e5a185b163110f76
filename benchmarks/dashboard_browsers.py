"""Browsers that have a page of the admin open: `python -m benchmarks.dashboard_browsers ADDRESS COOKIE HOW_MANY`.

It refreshes itself each second. They ask as our script does, until the standard input ends; then what they have seen is printed as
JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request

PAGES = ("dashboard/", "queue/", "endpoint/", "queue/Bench/", "failedmessage/")
EVERY_SECONDS = 1.0


class Browser:
    """One page that is open. `took` are the seconds of each answer."""

    def __init__(self, address: str, cookie: str, page: str, stop: threading.Event) -> None:
        self._address = f"{address}/admin/sqlqueue_app/{page}"
        self._cookie = cookie
        self._stop = stop
        self._etag = ""
        self._made = "0"
        self.took: list[float] = []
        self.unchanged = 0

    def run(self) -> None:
        """Ask each second until the stop."""
        while not self._stop.wait(EVERY_SECONDS):
            began = time.perf_counter()
            self._ask()
            self.took.append(time.perf_counter() - began)

    def _ask(self) -> None:
        headers = {"Sqlqueue-Live": self._made, "Cookie": f"sessionid={self._cookie}"}
        if self._etag:
            headers["If-None-Match"] = self._etag
        try:
            with urllib.request.urlopen(urllib.request.Request(self._address, headers=headers)) as answer:
                answer.read()
                self._etag = answer.headers.get("ETag", self._etag)
                self._made = answer.headers.get("Sqlqueue-Made", self._made)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 304:
                    raise
                self._made = error.headers.get("Sqlqueue-Made", self._made)
                self.unchanged += 1


def main() -> None:
    """Open the pages in turn, as many as are asked for."""
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
