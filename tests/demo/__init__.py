"""The demo site: its settings, its shop on real databases, its pages, and the program that runs everything."""

from __future__ import annotations
