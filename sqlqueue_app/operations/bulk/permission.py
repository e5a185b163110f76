"""Whether the user who has asked for an operation may still do it: asked again before each batch."""

from __future__ import annotations

from django.apps import apps

VIEW = "view_queue"


def still_may(user_key: str, permission: str) -> bool:
    """Whether the user of this key is there, active, and has the permission and that to view; True for no key: a command.

    Raises the errors of the users' database.
    """
    if not user_key or not apps.is_installed("django.contrib.auth"):
        return True
    from django.contrib.auth import get_user_model  # noqa: PLC0415 - needs the installed app

    try:
        user = get_user_model()._default_manager.filter(pk=user_key).first()
    except (ValueError, TypeError):  # the key of another model of users
        return False
    return user is not None and user.is_active and user.has_perms([f"sqlqueue_app.{VIEW}", f"sqlqueue_app.{permission}"])
