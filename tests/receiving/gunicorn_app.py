"""A site with one view that sends a request, for gunicorn: `gunicorn 'tests.receiving.gunicorn_app:site()'`, and its handler.

The view answers with the reply, the process id and the callback queue; with 503 if there was no reply or no queue.
"""

from __future__ import annotations

import os
from typing import Any

import django
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path

from sqlqueue_app import handles, request
from sqlqueue_app.messages.errors import SqlQueueError

MODULE = __name__
SECONDS = 60.0


def send_request(http_request: HttpRequest, code: int) -> JsonResponse:
    """Request a return code."""
    try:
        pending = request("Test.Ask", {"code": code})
        return JsonResponse({"pid": os.getpid(), "queue": pending.queue, "code": pending.result(SECONDS)})
    except (SqlQueueError, TimeoutError) as error:
        return JsonResponse({"pid": os.getpid(), "error": f"{type(error).__name__}: {error}"}, status=503)


urlpatterns = [path("ask/<int:code>", send_request)]


def site() -> WSGIHandler:
    """Return the application for gunicorn, which calls this before it forks."""
    django.setup()
    # For the lifetime of this process and its forks.
    override_settings(ROOT_URLCONF=MODULE, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]).enable()
    return WSGIHandler()


@handles("Test.Ask")
def answer(message: Any, context: Any) -> None:
    """Reply as the worker does."""
    context.reply(message["code"])
