"""The messages of a conversation that the pipeline has taken into the lake, or copied there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.asking import Asked
from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.errors import LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import FoundMessage, search
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.failure_groups import guid_of, unique_message_id
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.models import CopyFate, LakeCopy
from sqlqueue_app.operations.conversations.message import Fate, TalkMessage, talk_message
from sqlqueue_app.operations.lake_files import known_lake

SECONDS: Final = 2.0
_FATES: Final[Mapping[str, Fate]] = {
    CopyFate.WAITING: Fate.FAILED,
    CopyFate.RETRIED: Fate.RETRIED,
    CopyFate.RESOLVED: Fate.HANDLED,
    CopyFate.ARCHIVED: Fate.ARCHIVED,
    CopyFate.DELETED: Fate.GONE,
    CopyFate.GONE: Fate.GONE,
}


@dataclass(frozen=True, slots=True)
class LakeLooked:
    """How far the lake was looked at: so many files of it; `problem`: why not all of them."""

    files: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LakeMessages:
    """What the lake has of a conversation: handled messages, and copies of failures by the unique id, the last of each."""

    handled: tuple[TalkMessage, ...] = ()
    failed: Mapping[UUID, TalkMessage] | None = None
    looked: LakeLooked | None = None

    @property
    def again(self) -> frozenset[UUID]:
        """The unique ids of failed messages that were handled later."""
        return frozenset(each.failure for each in self.handled if each.failure is not None)


def read_lake(settings: Settings, conversation: str, *, most: int) -> LakeMessages:
    """The messages of this conversation; nothing where there is no lake. At most four statements. Raises ConnectionLost."""
    lake = known_lake(settings)
    if not lake.lake:
        return LakeMessages()
    if lake.problem:
        return LakeMessages(looked=LakeLooked(problem=lake.problem))
    try:
        found = search(lake.lake, lake.files, Asked(conversation=conversation, size=most, headers=True), seconds=SECONDS)
    except (LakeError, LakeEngineMissing) as error:
        return LakeMessages(looked=LakeLooked(problem=str(error)))
    problem = "; ".join(found.problems[:3]) or ("the time was over" if found.is_partial else "")
    handled = tuple(_talk(each, Fate.HANDLED) for each in found.messages if each.table != FAILURES.name)
    failed: dict[UUID, TalkMessage] = {}
    for each in found.messages:
        if each.table == FAILURES.name:
            unique = guid_of(each.unique_message_id) or unique_message_id(_headers(each), native_id=each.native_id)
            failed.setdefault(unique, replace(_talk(each, Fate.FAILED), failure=None))
    return LakeMessages(handled, _with_fates(failed), LakeLooked(found.files, problem))


def conversation_in_lake(settings: Settings, text: str) -> str | None:
    """The conversation that an id means in the lake: its own, or that of a message; None where it is not known there."""
    lake = known_lake(settings)
    for asked in (Asked(message_id=text, size=1), Asked(conversation=text, size=1)):
        try:
            found = search(lake.lake, lake.files, asked, seconds=SECONDS).messages if lake.lake and not lake.problem else []
        except (LakeError, LakeEngineMissing):
            return None
        if found and found[0].conversation_id:
            return found[0].conversation_id
    return None


def _talk(each: FoundMessage, fate: Fate) -> TalkMessage:
    headers = _headers(each)
    key = f"lake {each.table} {each.path_queue} {each.row_version} {each.day}"
    found = talk_message(headers, key, native_id=each.native_id or each.message_id, receiving=each.endpoint, fate=fate)
    return replace(
        found,
        queue=each.queue,
        row_version=each.row_version,
        failure=guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID)),
        ended=found.ended or each.counted_at,
        lake=each.table,
        day=each.day,
    )


def _headers(each: FoundMessage) -> Headers:
    try:
        return read_headers(each.headers)
    except PoisonMessage:
        return {}


def _with_fates(failed: dict[UUID, TalkMessage]) -> dict[UUID, TalkMessage]:
    """The copies with what has become of their messages, as far as the pipeline knows."""
    if not failed:
        return failed
    copies = LakeCopy.objects.using(managed_alias()).filter(unique_message_id__in=[str(each) for each in failed])
    for unique, fate in copies.order_by("copied_at").values_list("unique_message_id", "fate"):
        known = guid_of(unique)
        if known in failed and fate in _FATES:
            failed[known] = replace(failed[known], fate=_FATES[fate])
    return failed
