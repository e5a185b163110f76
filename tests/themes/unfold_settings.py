"""The settings of the tests with the theme django-unfold, which takes the place of the admin's templates and of its site."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - it is those settings
from tests.settings import INSTALLED_APPS as WITHOUT_THEME

INSTALLED_APPS = ["unfold", *WITHOUT_THEME]
