"""Lists as files: CSV for spreadsheets, JSON for programs, streamed row by row."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from sqlqueue_app.dashboard.access import Permission, require

FORMATS: Final = ("csv", "json")
# What a spreadsheet would take for a formula (OWASP, CSV injection).
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z")
_NAME: Final = re.compile(r"[^0-9A-Za-z._-]+")


def wanted_format(request: HttpRequest) -> str:
    """``csv`` or ``json`` from the parameter ``format``; empty for a page."""
    wanted = request.GET.get("format", "")
    return wanted if wanted in FORMATS else ""


def export(request: HttpRequest, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponseBase:
    """Stream the rows as a file of the requested format: a JSON array of objects, or CSV in UTF-8 with a header line.

    Instants are ISO 8601 in UTC. In CSV, a text that a spreadsheet would take for a formula is prefixed by an apostrophe. Raises
    PermissionDenied without the permission to export.
    """
    require(request, Permission.EXPORT)
    if wanted_format(request) == "json":
        response = StreamingHttpResponse(_json(columns, rows), content_type="application/json")
    else:
        response = StreamingHttpResponse(_csv(columns, rows), content_type="text/csv; charset=utf-8")
    file_name = f"{_NAME.sub('_', name).strip('_') or 'list'}.{wanted_format(request) or 'csv'}"
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


class _Echo:
    """A file for csv that returns each line."""

    def write(self, text: str) -> str:
        """Return the line, which `writerow` passes on."""
        return text


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    # The byte order mark tells spreadsheets that this is UTF-8.
    writer = csv.writer(_Echo())
    yield "\ufeff" + str(writer.writerow(columns))
    for row in rows:
        yield str(writer.writerow([_cell(value) for value in row]))


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(plain, str):
        # NUL ends the file for some readers.
        text = plain.replace("\0", "\N{SYMBOL FOR NULL}")
        return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text
    return plain


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    begin = "[\n"
    for row in rows:
        # Escaped beyond ASCII: also halves of surrogate pairs, which UTF-8 cannot hold.
        yield begin + json.dumps(dict(zip(columns, map(_plain, row), strict=True)))
        begin = ",\n"
    yield "[]\n" if begin == "[\n" else "\n]\n"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, UUID):
        return str(value)
    return value
