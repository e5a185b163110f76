"""A module whose import fails."""

from __future__ import annotations

undefined  # type: ignore[name-defined]  # noqa: B018, F821
