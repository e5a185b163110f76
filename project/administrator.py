"""The administrator of the demo: created once, with a password stored in a file."""

from __future__ import annotations

from pathlib import Path

from django.contrib.auth import get_user_model

from project.environment import secret_in


def ensure_administrator(name: str, file: Path) -> str | None:
    """Create the administrator if there is none, with the password in `file`, which is created if missing.

    Returns the password, or None if the administrator's password was changed. Needs a migrated database.
    """
    users = get_user_model()._default_manager
    user = users.filter(username=name).first()
    if user is None:
        password = secret_in(file)
        users.create_superuser(username=name, email="", password=password)
        return password
    if not file.exists():
        return None
    password = secret_in(file)
    return password if user.check_password(password) else None
