"""Three groups of permissions that are ready to use: reader, writer, admin (operations reference 3.8)."""

from __future__ import annotations

from typing import Final

from django.apps import AppConfig, apps
from django.db import router, transaction

# Each group has what the one before has, and more. Bodies may hold personal data: readers do without.
_READER: Final = ("view_queue", "view_instance")
_WRITER: Final = (*_READER, "view_body", "export", "retry", "edit_message", "archive", "delete_message", "control_endpoint")
_ADMIN: Final = (*_WRITER, "move_message", "purge_queue", "manage_redirect", "manage_settings")
GROUPS: Final = {"sqlqueue reader": _READER, "sqlqueue writer": _WRITER, "sqlqueue admin": _ADMIN}


def make_groups(app_config: AppConfig, using: str) -> list[str]:
    """Make the groups that are missing in the database of the users; returns their names. One that is there stays as it is.

    Nothing where Django's users are not installed, or are in another database.
    """
    if not apps.is_installed("django.contrib.auth"):
        return []
    from django.contrib.auth.management import create_permissions  # noqa: PLC0415 - these need the installed app
    from django.contrib.auth.models import Group, Permission  # noqa: PLC0415

    if not router.allow_migrate_model(using, Group):
        return []
    # The apps' own signal makes them too, maybe later than this.
    create_permissions(app_config, verbosity=0, using=using)
    missing = set(GROUPS) - set(Group.objects.using(using).filter(name__in=GROUPS).values_list("name", flat=True))
    for name in sorted(missing):
        with transaction.atomic(using=using):
            group, is_new = Group.objects.using(using).get_or_create(name=name)
            if is_new:
                wanted = Permission.objects.using(using).filter(content_type__app_label=app_config.label, codename__in=GROUPS[name])
                group.permissions.set(wanted)
    return sorted(missing)
