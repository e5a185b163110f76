"""A site of one view that asks another endpoint, for gunicorn: `gunicorn 'tests.receiving.gunicorn_app:site()'`; and who answers.

The view answers with what came back, the process that asked and its callback queue; 503 where no reply or no queue was to be had.
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


def ask(asked_by: HttpRequest, code: int) -> JsonResponse:
    """Ask for a return code."""
    try:
        asked = request("Test.Ask", {"code": code})
        return JsonResponse({"pid": os.getpid(), "queue": asked.queue, "code": asked.result(SECONDS)})
    except (SqlQueueError, TimeoutError) as error:
        return JsonResponse({"pid": os.getpid(), "error": f"{type(error).__name__}: {error}"}, status=503)


urlpatterns = [path("ask/<int:code>", ask)]


def site() -> WSGIHandler:
    """What gunicorn serves; called before it forks."""
    django.setup()
    # For the life of this process and of those that it forks.
    override_settings(ROOT_URLCONF=MODULE, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]).enable()
    return WSGIHandler()


@handles("Test.Ask")
def answer(message: Any, context: Any) -> None:
    """The worker's part."""
    context.reply(message["code"])
