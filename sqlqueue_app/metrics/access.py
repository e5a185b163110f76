"""Who may ask for the metrics: who has the token, or comes from one of the networks; where both are set, who does both."""

from __future__ import annotations

import ipaddress

from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from sqlqueue_app.conf import MetricsSettings

_SCHEME = "bearer"


def is_from_network(request: HttpRequest, settings: MetricsSettings) -> bool:
    """Whether the other end of the connection is in one of the networks. What a proxy says in headers is not looked at."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False  # such as a proxy on a local socket
    plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((plain or address) in ipaddress.ip_network(each) for each in settings.networks)


def has_token(request: HttpRequest, token: str) -> bool:
    """Whether `Authorization: Bearer …` holds the token; takes as long for a wrong one, however wrong."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == _SCHEME and constant_time_compare(given.strip(), token)
