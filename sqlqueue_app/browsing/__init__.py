"""Read models of the admin and the commands: messages of queues, conversations, rollups of the pipeline."""

from __future__ import annotations
