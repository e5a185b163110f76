"""Requests with replies: the callback queue of this process, and `request()`."""

from __future__ import annotations
