"""Lists: tables of columns and rows, filters in query strings, keyset pagination, and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.dashboard.access import Button, Permission, require
from sqlqueue_app.dashboard.formats import Number, State, breakable, duration, number, stamp_html
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin, query_of
from sqlqueue_app.models import managed_alias
from sqlqueue_app.models.fields import UtcInstantField
from sqlqueue_app.status.texts import csv_lines, json_lines, values_of
from sqlqueue_app.tables.rows import without_nul

_Row = TypeVar("_Row")
_Model = TypeVar("_Model", bound=Model)
FileColumns = Sequence[str] | Mapping[str, str | Callable[[Any], object]]

NUMBER: Final = "sq-number"
WIDE: Final = "sq-wide"


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[_Row]):
    """A column: its heading, its value for a row (see `cell_html`), and CSS classes. The first column is the row's heading."""

    label: str
    value: Callable[[_Row], object]
    css: str = ""


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table as the template ``includes/table.html`` shows it; each row is its key and its cells."""

    caption: str
    heads: list[TableColumn[Any]]
    rows: list[tuple[str, list[tuple[TableColumn[Any], SafeString]]]]

    def __bool__(self) -> bool:
        """Whether it has rows: a template replaces an empty table."""
        return bool(self.rows)


def table(
    caption: object, columns: Sequence[TableColumn[_Row]], rows: Iterable[_Row], key: Callable[[_Row], object] = lambda _row: ""
) -> HtmlTable:
    """The table of these rows. `key` identifies a row permanently, so that a refreshed page keeps its place."""
    cells = [(str(key(row)), [(column, cell_html(column.value(row))) for column in columns]) for row in rows]
    return HtmlTable(str(caption), list(columns), cells)


def facts(columns: Sequence[TableColumn[_Row]], row: _Row) -> list[tuple[TableColumn[_Row], SafeString]]:
    """The columns of one row, as the template ``includes/facts.html`` shows them."""
    return [(column, cell_html(column.value(row))) for column in columns]


def cell_html(value: object) -> SafeString:
    """A value in a cell: formatted by its type, a dash for None and empty text; safe HTML is unchanged."""
    if isinstance(value, SafeString):
        return value
    if isinstance(value, State):
        return _state_html(value.level, str(value.word))
    if isinstance(value, Number):
        return titled_html(format_html('<data value="{}">{}</data>', str(value.value), value.text), value.note)
    if isinstance(value, datetime):
        return stamp_html(value)
    if isinstance(value, timedelta):
        value = duration(value)
    elif isinstance(value, int):
        return format_html('<data value="{}">{}</data>', str(value), number(value))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Button):
        return template_html("buttons", buttons=value, in_table=True)
    if not value:
        return format_html('<span aria-hidden="true">–</span><span class="sq-hidden">{}</span>', _("none"))
    return text_html(str(value))


@lru_cache(maxsize=256)
def _state_html(level: str, word: str) -> SafeString:
    """A state, cached because a page has hundreds, most of them equal."""
    return template_html("state", state={"level": level, "word": word})


def titled_html(text: str, note: str) -> SafeString:
    """A text with a note as its title, which screen readers get too; only the text if the note is empty."""
    if not note:
        return format_html("{}", text)
    return format_html('<span title="{}">{}</span><span class="sq-hidden"> ({})</span>', note, text, note)


def text_html(text: str) -> SafeString:
    """A text of any length and direction; its names may break, see `breakable`."""
    return format_html('<bdi class="sq-long">{}</bdi>', breakable(text))


def link_html(url: str, text: str | None) -> SafeString:
    """A link; only the text without a URL, or a dash without a text."""
    return format_html('<a href="{}">{}</a>', url, text_html(text)) if url and text else cell_html(text)


def message_html(url: str, message_type: str, message_id: str) -> SafeString:
    """A message by its type and its id, with the link to its page."""
    return with_notes(link_html(url, message_type or _("no type in the headers")), message_id)


def template_html(name: str, **context: object) -> SafeString:
    """The rendered template of this name in ``includes``."""
    return SafeString(render_to_string(f"admin/sqlqueue_app/includes/{name}.html", context).strip())


def with_notes(first: object, *notes: object) -> SafeString:
    """A cell with notes, which are cells in smaller type below it; empty notes are left out."""
    shown = [(cell_html(note),) for note in notes if note]
    return format_html("{}{}", cell_html(first), format_html_join("", ' <span class="sq-quiet sq-note">{}</span>', shown))


class ListFilter(forms.Form):
    """The filter of a list. Each field is a parameter of the query string, and filters the column that `lookups` names.

    An invalid value gets an error at its field and filters nothing.
    """

    lookups: ClassVar[Mapping[str, str]] = {}

    def __init__(self, request: HttpRequest) -> None:
        submitted = {name: request.GET[name] for name in self.base_fields if name in request.GET}
        super().__init__(submitted, auto_id="sq-%s", label_suffix="", use_required_attribute=False)
        for field in self.fields.values():
            field.required = False

    def apply(self, found: QuerySet[_Model]) -> QuerySet[_Model]:
        """The rows that match."""
        self.is_valid()
        chosen = {self.lookups.get(name, name): value for name, value in self.cleaned_data.items() if value}
        return found.filter(**chosen)


def choices(pairs: Iterable[tuple[str, object]], everything: object = gettext_lazy("any")) -> list[tuple[str, object]]:
    """The choices of a filter, the first of which filters nothing."""
    return [("", everything), *pairs]


class DaysFilter(ListFilter):
    """A filter that also takes the first and the last day, both inclusive, in the current time zone."""

    instant: ClassVar[str] = "at"

    since = forms.DateField(label=gettext_lazy("From"), widget=forms.DateInput({"type": "date"}))
    until = forms.DateField(label=gettext_lazy("To"), widget=forms.DateInput({"type": "date"}))

    def clean(self) -> dict[str, Any]:
        """The values; an error at `until` if it is before `since`."""
        since, until = self.cleaned_data.get("since"), self.cleaned_data.get("until")
        if since and until and until < since:
            self.add_error("until", ValidationError(_("The last day is before the first day: swap them.")))
        return self.cleaned_data

    def apply(self, found: QuerySet[_Model]) -> QuerySet[_Model]:
        """The rows that match, on these days."""
        self.is_valid()
        since, until = (self.cleaned_data.pop(name, None) for name in ("since", "until"))
        found = super().apply(found)
        # Without USE_TZ, columns of Django's own type take only naive instants.
        is_naive = not (settings.USE_TZ or isinstance(found.model._meta.get_field(self.instant), UtcInstantField))
        begin_of = partial(datetime.combine, time=time()) if is_naive else start_of
        if since is not None:
            found = found.filter(**{f"{self.instant}__gte": begin_of(since)})
        if until is not None and until < date.max:
            found = found.filter(**{f"{self.instant}__lt": begin_of(until + timedelta(days=1))})
        return found


def start_of(day: date) -> datetime:
    """The first moment of a day in the current time zone, in UTC."""
    begin = datetime.combine(day, time())
    try:
        return timezone.make_aware(begin).astimezone(UTC)
    except OverflowError:  # at the limits of datetime
        return begin.replace(tzinfo=UTC)


def keyset_page(
    request: HttpRequest, found: QuerySet[_Model], instant: str, *, size: int
) -> tuple[list[_Model], dict[str, str | None]]:
    """At most `size` rows behind the row whose key is in `before`, newest first; the first page without a valid key.

    Ordered by `instant` and key. Two statements, one for the first page. Also returns template variables: the query strings of the
    first and the next page, None if there is none.
    """
    found = found.order_by(f"-{instant}", "-pk")
    last = _row(found, without_nul(request.GET.get("before", "")))
    if last is not None:
        at = getattr(last, instant)
        found = found.filter(Q(**{f"{instant}__lt": at}) | Q(**{instant: at}, pk__lt=last.pk))
    rows = list(found[: size + 1])
    first = None if last is None else query_of(request, before=None)
    following = query_of(request, before=rows[size - 1].pk) if len(rows) > size else None
    return rows[:size], {"first_query": first, "next_query": following}


def _row(found: QuerySet[_Model], text: str) -> _Model | None:
    """The row with this key, whatever the filter."""
    try:
        key = found.model._meta.pk.to_python(text) if text else None
    except ValidationError:
        return None
    if key is None or (isinstance(key, int) and not 0 <= key < 2**63):
        return None
    return found.model._default_manager.using(found.db).filter(pk=key).first()


class ListAdmin(PageAdmin, Generic[_Model]):
    """The list of a managed model, newest first. A subclass defines its columns, and the contents of a file."""

    caption: str | Promise
    # The text that replaces an empty table.
    nothing: str | Promise
    # The column that orders the list.
    instant: str = "at"
    list_per_page = 50
    filter_form: type[ListFilter] = ListFilter
    # For a file: its name and its columns, see `export`.
    file_name: str
    file_columns: ClassVar[FileColumns]
    list_template = "list"
    live_seconds: int | None = LIVE_SECONDS

    def columns(self, request: HttpRequest) -> list[TableColumn[_Model]]:
        """The columns that this user may see."""
        raise NotImplementedError

    def rows(self) -> QuerySet[_Model]:
        """All rows, in any order."""
        found: Any = self.model._default_manager.using(managed_alias())
        return found  # type: ignore[no-any-return]

    def exported(self, request: HttpRequest, found: QuerySet[_Model]) -> Iterable[Any]:
        """The rows of a file; see `export`."""
        if isinstance(self.file_columns, Mapping):
            return found.iterator(chunk_size=1_000)
        return found.values_list(*self.file_columns).iterator(chunk_size=1_000)

    def table(self, request: HttpRequest, rows: Iterable[_Model], caption: object = "") -> HtmlTable:
        """A table of these rows."""
        return table(caption or self.caption, self.columns(request), rows, lambda row: f"{row._meta.model_name} {row.pk}")

    def more(self, request: HttpRequest, rows: Sequence[_Model]) -> dict[str, Any]:
        """Further variables of the template, such as `note` below the table."""
        return {}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """A page of the list, or all matching rows as a file."""
        chosen = self.filter_form(request)
        found = chosen.apply(self.rows())
        if wanted_format(request):
            rows = self.exported(request, found.order_by(f"-{self.instant}", "-pk"))
            return export(request, self.file_name, self.file_columns, rows)
        shown, queries = keyset_page(request, found, self.instant, size=self.list_per_page)
        return self.page(
            request,
            self.list_template,
            # Later pages do not refresh.
            live_seconds=self.live_seconds if queries["first_query"] is None else None,
            table=self.table(request, shown),
            nothing=self.nothing,
            filter=chosen if chosen.fields else None,
            **{**queries, **self.more(request, shown), **(extra_context or {})},
        )


FORMATS: Final = ("csv", "json")
_NAME: Final = re.compile(r"[^0-9A-Za-z._-]+")


def wanted_format(request: HttpRequest) -> str:
    """``csv`` or ``json`` from the parameter ``format``; empty for a page."""
    wanted = request.GET.get("format", "")
    return wanted if wanted in FORMATS else ""


def export(request: HttpRequest, name: str, columns: FileColumns, rows: Iterable[Any]) -> HttpResponseBase:
    """Stream the rows as a file of the requested format: a JSON array of objects, or CSV in UTF-8 with a header line.

    The rows are sequences of values; or objects, if `columns` maps each column to a function or to the name of an attribute, with
    dots for attributes of one that may be None.
    Instants are ISO 8601 in UTC, durations are seconds. In CSV, a text that a spreadsheet would read as a formula is prefixed by
    an apostrophe. Raises PermissionDenied without the permission to export.
    """
    require(request, Permission.EXPORT)
    if isinstance(columns, Mapping):
        rows, columns = values_of(columns, rows), tuple(columns)
    if wanted_format(request) == "json":
        response = StreamingHttpResponse(json_lines(columns, rows), content_type="application/json")
    else:
        response = StreamingHttpResponse(csv_lines(columns, rows), content_type="text/csv; charset=utf-8")
    file_name = f"{_NAME.sub('_', name).strip('_') or 'list'}.{wanted_format(request) or 'csv'}"
    response["Content-Disposition"] = f'attachment; filename="{file_name}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
