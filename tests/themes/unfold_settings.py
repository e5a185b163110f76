"""The test settings with the theme django-unfold, which replaces the admin's templates and site."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - it is those settings
from tests.settings import INSTALLED_APPS as WITHOUT_THEME

INSTALLED_APPS = ["unfold", *WITHOUT_THEME]
