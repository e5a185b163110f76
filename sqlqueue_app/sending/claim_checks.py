"""Claim checks: the body of a large message is a file in one of Django's storages, and a header names it."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from sqlqueue_app.conf import ClaimCheckSettings, Settings
from sqlqueue_app.conf.validation import listed
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import BodyNotFound, ConfigurationError, MessageBodyError
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.sending.priority_queues import Priorities
from sqlqueue_app.tables.rows import NewRow

logger = logging.getLogger("sqlqueue.receive")

FOLDER: Final = "sqlqueue-bodies"
# A header may come from anywhere: it must not name other files of the storage.
FILE_NAME: Final = re.compile(rf"{FOLDER}/\d{{4}}-\d\d-\d\d/[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}}")

# As in the text of headers, where it cannot be part of a value: its quotes would be escaped there.
_HEADER: Final = f'"{names.CLAIM_CHECK}":'


class ClaimChecks:
    """Writes, reads and removes the files. Only queues whose workers are known to read them get claim checks.

    Immutable; shared by all threads. A file has the name of a day and a new id, so no file is written twice.
    """

    def __init__(self, config: ClaimCheckSettings, settings: Settings, book: AddressBook) -> None:
        if config.storage not in storages.backends:
            raise ConfigurationError(unknown_storage(config.storage))
        self._alias = config.storage
        self._limit = settings.max_body_size
        self._above = min(config.above, self._limit or config.above)
        own = {book.of_queue(name) for name in settings.queue_names()}
        beside = Priorities(settings, book)
        self._queues = own.union(*(beside.all_of(book.of_endpoint(name)) for name in config.endpoints))

    @property
    def storage(self) -> Storage:
        """The storage of the files."""
        return storages[self._alias]

    def check_size(self, destination: QueueAddress, size: int, what: str) -> None:
        """Raise MessageBodyError for a body that stays in its row and is above MAX_BODY_SIZE."""
        if self._limit is not None and size > self._limit and destination not in self._queues:
            raise MessageBodyError(
                f'the body of a {what} has {size:,} bytes, more than the {self._limit:,} of SQLQUEUE["MAX_BODY_SIZE"], and '
                f"{destination.table!r} is not known to read claim checks: if it is an endpoint of sqlqueue with the same storage, "
                'add it to SQLQUEUE["CLAIM_CHECK"]["ENDPOINTS"]'
            )

    def check_in(self, destination: QueueAddress, row: NewRow) -> NewRow:
        """The row to write instead: if its body is large, with the name of a new file in its place. Raises the storage's errors.

        The file is written before the row, so no committed row is without it. If the transaction rolls back, the file stays until
        the clean-up of the workers.
        """
        # A failed message whose body was edited has the header, and its body in the row.
        if len(row.body) <= self._above or destination not in self._queues or _HEADER in row.headers:
            return row
        wanted = f"{FOLDER}/{datetime.now(UTC):%Y-%m-%d}/{uuid.uuid4()}"
        name = self.storage.save(wanted, ContentFile(row.body)).replace("\\", "/")
        if name != wanted:
            raise ConfigurationError(
                f"the storage {self._alias!r} has stored the file {wanted!r} as {name!r}: for claim checks it must keep names"
            )
        escaped = name.replace("/", "\\/")
        return replace(row, headers=f'{{{_HEADER}"{escaped}",{row.headers[1:]}', body=b"")

    def check_out(self, destination: QueueAddress, row: NewRow) -> NewRow:
        """The row of a message that changes its queue: with the body of its file, unless the queue is known to read claim checks.

        NServiceBus would drop a message without a body. The file stays until the clean-up. Raises as `read`.
        """
        if row.body or destination in self._queues or _HEADER not in row.headers:
            return row
        headers = read_headers(row.headers)
        body = self.read(headers.pop(names.CLAIM_CHECK) or "")
        return replace(row, headers=write_headers(headers), body=body)

    def read(self, name: str, limit: int = -1) -> bytes:
        """The body in a file, or its first `limit` bytes. BodyNotFound, MessageBodyError for a name that is not ours."""
        if not FILE_NAME.fullmatch(name):
            raise MessageBodyError(f"the header {names.CLAIM_CHECK} is {name!r:.200}, which is not the name of a body")
        try:
            with self.storage.open(name) as file:
                body: bytes = file.read(limit)
                return body
        except FileNotFoundError as error:
            raise BodyNotFound(
                f"the body of the message is the file {name!r}, which the storage {self._alias!r} does not have: restore the file "
                "and retry, or check that the sender uses the same storage"
            ) from error

    def size(self, name: str) -> int:
        """The size of a file that was read before, in bytes."""
        return int(self.storage.size(name))

    def remove(self, name: str) -> None:
        """Delete the file of a finished message. Errors are logged: the clean-up tries again."""
        try:
            if FILE_NAME.fullmatch(name):
                self.storage.delete(name)
        except Exception:
            logger.exception("the body %s of a finished message cannot be deleted", name, extra={"event": "body_not_deleted"})


def unknown_storage(alias: str) -> str:
    """The message for a name that is not in STORAGES."""
    return f'SQLQUEUE["CLAIM_CHECK"]["STORAGE"] is {alias!r}, expected an alias of STORAGES: {listed(storages.backends)}'


def claim_checks_of(settings: Settings, book: AddressBook) -> ClaimChecks | None:
    """The claim checks of the settings; None without CLAIM_CHECK. ConfigurationError for an unknown storage."""
    return None if settings.claim_check is None else ClaimChecks(settings.claim_check, settings, book)


def claimed_body(claim_checks: ClaimChecks | None, name: str) -> bytes:
    """The body of a received message that names a file. MessageBodyError without CLAIM_CHECK; raises as `read`."""
    if claim_checks is None:
        raise MessageBodyError(
            f'the body of the message is the file {name!r:.200}, but SQLQUEUE["CLAIM_CHECK"] is not set: set it as the sender does'
        )
    return claim_checks.read(name)
