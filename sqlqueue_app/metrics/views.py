"""The page of metrics: guarded by itself, and not there at all unless `METRICS` says who may see it."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.metrics.access import has_token, is_from_network
from sqlqueue_app.metrics.exposition import CONTENT_TYPE, exposition
from sqlqueue_app.operations.metrics import read_metrics


@login_not_required  # a scraper has no session; the token and the network guard it
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Everything that `read_metrics` finds. 404 if it is off, 401 without the token, 403 from elsewhere, 503 without a database."""
    settings = get_settings()
    guard = settings.metrics
    if guard is None or not (guard.token or guard.networks):
        raise Http404("METRICS is not set")
    if guard.networks and not is_from_network(request, guard):
        return _plain("not from this address", 403)
    if guard.token and not has_token(request, guard.token):
        refused = _plain("the token is missing or wrong", 401)
        refused["WWW-Authenticate"] = 'Bearer realm="sqlqueue"'
        return refused
    try:
        text = exposition(read_metrics(settings))
    except DatabaseError:
        return _plain("the database cannot be reached", 503)
    return _plain(text, 200, CONTENT_TYPE)


def _plain(text: str, status: int, content_type: str = "text/plain; charset=utf-8") -> HttpResponse:
    answer = HttpResponse(text, status=status, content_type=content_type)
    answer["Cache-Control"] = "no-store"
    return answer
