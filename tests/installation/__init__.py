"""Creating the tables: command, migrations, after migrate, checks, models."""

from __future__ import annotations
