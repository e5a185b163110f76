"""Messages without a database: addresses, headers, times, types, bodies. Needs no Django and reads no clock.

Scripts and Spark executors import these names directly; everything else is in the modules.
"""

from __future__ import annotations

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.messages.times import format_time, parse_time

__all__ = ["QueueAddress", "read_headers", "write_headers", "parse_time", "format_time"]
