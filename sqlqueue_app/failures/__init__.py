"""Failed messages: the index of the error queues, selecting, reading, editing and retrying them, and bulk operations."""

from __future__ import annotations
