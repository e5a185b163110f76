"""What operators do, for the dashboard and the commands alike."""

from __future__ import annotations
