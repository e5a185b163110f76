"""URLs that a project includes in addition to the admin: the metrics for Prometheus.

path("sqlqueue/", include("sqlqueue_app.urls"))
"""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe

from sqlqueue_app.conf import MetricsSettings, get_settings
from sqlqueue_app.messages.errors import DatabaseError


@login_not_required  # a scraper has no session; the token and the network guard it
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics in the Prometheus text format.

    404 if METRICS is off, 401 without the token, 403 from another network, 503 without a database, 500 without the extra `metrics`.
    """
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
    if find_spec("prometheus_client") is None:
        return _plain("prometheus-client is not installed: run pip install 'django-sqlqueue[metrics]'", 500)
    from sqlqueue_app.monitoring.metrics import exposition  # noqa: PLC0415 - optional dependency

    try:
        content, content_type = exposition(settings, request.headers.get("Accept", ""))
    except DatabaseError:
        return _plain("the database cannot be reached", 503)
    return _plain(content, 200, content_type)


def _plain(text: str | bytes, status: int, content_type: str = "text/plain; charset=utf-8") -> HttpResponse:
    answer = HttpResponse(text, status=status, content_type=content_type)
    answer["Cache-Control"] = "no-store"
    return answer


_SCHEME = "bearer"


def is_from_network(request: HttpRequest, settings: MetricsSettings) -> bool:
    """Whether the remote address is in one of the networks. Proxy headers are ignored."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False  # for example a proxy on a local socket
    plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((plain or address) in ipaddress.ip_network(each) for each in settings.networks)


def has_token(request: HttpRequest, token: str) -> bool:
    """Whether `Authorization: Bearer …` contains the token; compared in constant time."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == _SCHEME and constant_time_compare(given.strip(), token)


app_name = "sqlqueue"
urlpatterns = [path("metrics", metrics, name="metrics")]
