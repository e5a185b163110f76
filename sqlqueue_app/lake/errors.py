"""What can be wrong with a lake, in words for who has to mend it."""

from __future__ import annotations

from sqlqueue_app.messages.errors import ConfigurationError, SqlQueueError


class LakeError(SqlQueueError):
    """The lake, or a file of it, cannot be read."""


class LakeEngineMissing(ConfigurationError):
    """A package that reads the lake is not installed; the text says what installs it."""
