"""What can become of an attempt to send a notification."""

from __future__ import annotations

from sqlqueue_app.messages.errors import SqlQueueError


class SendFailed(SqlQueueError):
    """An attempt has failed; the message says why, without secrets. `is_final`: another one would fail too."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
