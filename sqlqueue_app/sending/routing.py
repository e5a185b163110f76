"""Which endpoint a message type goes to, by the setting ROUTES."""

from __future__ import annotations

from collections.abc import Mapping

from sqlqueue_app.messages.errors import MessageTypeError


class Routes:
    """Message type names and `Namespace.*` patterns to endpoint names: the exact name wins, then the longest pattern."""

    def __init__(self, routes: Mapping[str, str]) -> None:
        self._exact = {name: endpoint for name, endpoint in routes.items() if not name.endswith("*")}
        patterns = ((name.removesuffix("*"), endpoint) for name, endpoint in routes.items() if name.endswith("*"))
        self._patterns = sorted(patterns, key=lambda entry: len(entry[0]), reverse=True)

    def endpoint_for(self, message_type: str) -> str:
        """The endpoint that a type is routed to; MessageTypeError says how to route one that is not."""
        endpoint = self.find(message_type)
        if endpoint is None:
            raise MessageTypeError(
                f"message type {message_type!r} has no route: "
                f'add {message_type!r}: "<endpoint>" to SQLQUEUE["ROUTES"], or name the queue with to='
            )
        return endpoint

    def find(self, message_type: str) -> str | None:
        """The endpoint that a type is routed to, or None."""
        if message_type in self._exact:
            return self._exact[message_type]
        return next((endpoint for start, endpoint in self._patterns if message_type.startswith(start)), None)
