"""Redirects: where retries go instead of the queue in which a message failed (operations reference 3.5). Used at retries alone."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import AddressError, SqlQueueError
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.models import Redirect
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import queue_table


class RedirectRefused(SqlQueueError):
    """A redirect that cannot be made; the message says why."""


def redirect_id(from_address: str) -> uuid.UUID:
    """The id that ServiceControl gives the redirect of an address."""
    return uuid.UUID(bytes_le=hashlib.md5(from_address.encode(), usedforsecurity=False).digest())


def canonical_text(book: AddressBook, text: str) -> str:
    """The address as the book writes it, so that two texts of one queue are one; AddressError for text that is none."""
    return book.canonical(book.parse(text.strip()))


def make_redirect(
    settings: Settings, from_address: str, to_address: str, *, by: str = "", now: Callable[[], datetime] | None = None
) -> Redirect:
    """Send retries of messages that failed in one queue to another one from now on.

    RedirectRefused for addresses that cannot be read, a second redirect of the same queue, a chain (either queue is the other end
    of another redirect), a queue redirected to itself, and a target that does not exist.
    """
    book = address_book_of(settings)
    source, target = _address(book, from_address), _address(book, to_address)
    alias = managed_alias()
    if source == target:
        raise RedirectRefused(_("%(queue)s cannot be redirected to itself.") % {"queue": source})
    with transaction.atomic(using=alias):
        _refuse_chains(alias, source, target)
        _refuse_missing(settings, book, target)
        at = now() if now is not None else database_now(alias)
        made = Redirect(id=redirect_id(source), from_address=source, to_address=target, created_by=by[:255], created_at=at)
        try:
            with transaction.atomic(using=alias):
                made.save(using=alias, force_insert=True)
        except IntegrityError as error:
            raise RedirectRefused(_("There is a redirect of %(queue)s already.") % {"queue": source}) from error
    return made


def change_redirect(settings: Settings, redirect: Redirect, to_address: str) -> None:
    """Send the retries of an existing redirect elsewhere; raises as `make_redirect`, and if it is gone."""
    book = address_book_of(settings)
    target = _address(book, to_address)
    alias = managed_alias()
    if target == redirect.from_address:
        raise RedirectRefused(_("%(queue)s cannot be redirected to itself.") % {"queue": target})
    with transaction.atomic(using=alias):
        _refuse_chains(alias, redirect.from_address, target)
        _refuse_missing(settings, book, target)
        if not Redirect.objects.using(alias).filter(pk=redirect.pk).update(to_address=target):
            raise RedirectRefused(_("The redirect has been removed meanwhile."))


def remove_redirect(redirect: Redirect) -> bool:
    """Let retries go to the queue in which the messages failed again; False if it was gone already."""
    return bool(Redirect.objects.using(managed_alias()).filter(pk=redirect.pk).delete()[0])


def count_use(redirect: Redirect, count: int) -> None:
    """So many retries were turned by it."""
    Redirect.objects.using(managed_alias()).filter(pk=redirect.pk).update(used=F("used") + count)


def _address(book: AddressBook, text: str) -> str:
    try:
        return canonical_text(book, text)
    except AddressError as error:
        raise RedirectRefused(str(error)) from error


def _refuse_chains(alias: str, source: str, target: str) -> None:
    redirects = Redirect.objects.using(alias)
    if redirects.filter(from_address=target).exists():
        raise RedirectRefused(_("Retries to %(queue)s are redirected themselves: name the last queue.") % {"queue": target})
    if redirects.filter(to_address=source).exists():
        text = _("Other retries are redirected to %(queue)s: change those redirects first.")
        raise RedirectRefused(text % {"queue": source})


def _refuse_missing(settings: Settings, book: AddressBook, target: str) -> None:
    if not queue_table(settings.database, book.parse(target)).exists():
        raise RedirectRefused(_("The queue %(queue)s does not exist.") % {"queue": target})
