"""A process that resolves branches in doubt, with the traps of kill_app."""

from __future__ import annotations

import django

django.setup()

from sqlqueue_app.conf import get_settings  # noqa: E402 - these need Django
from sqlqueue_app.status.in_doubt import InDoubt  # noqa: E402
from tests.distributed import kill_app as kill_app  # noqa: E402

InDoubt(get_settings().database).end_branches()
