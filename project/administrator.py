"""The demo's administrator: made once, with a password that stays in a file."""

from __future__ import annotations

from pathlib import Path

from django.contrib.auth import get_user_model

from project.environment import secret_in


def ensure_administrator(name: str, file: Path) -> str | None:
    """Make the administrator if there is none, with the password in `file`, which is made if need be.

    Returns the password, or None where somebody has given the administrator another one. Needs a migrated database.
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
