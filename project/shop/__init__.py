"""A shop of three services. Each has handlers of its own; they share a database here and talk by messages only."""

from __future__ import annotations
