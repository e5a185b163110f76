#!/usr/bin/env python
"""Django's command line for the demo site: `python manage.py help`."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    """Run the command that the arguments name, under the settings of the demo site."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
