"""How the messages of a conversation hang together: whose handling sent which (operations reference 3.7). Pure.

Headers are whatever somebody has written: a message may name itself, a circle, or one that nobody has seen; and one that was
handled twice has sent all of its messages twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.operations.conversations.message import Kind, TalkMessage

# A message that was handled more often is linked to the first of those copies.
MOST_PARENTS: Final = 10


@dataclass(frozen=True, slots=True)
class Branch:
    """A message at its place in the tree. `parent` is the number of the branch that it hangs on, None for a root."""

    message: TalkMessage
    parent: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class Forest:
    """The branches, each behind the one that it hangs on, with all that hangs on that together.

    `links` are all pairs of numbers (cause, effect): those of the tree, and those of messages with several causes.
    """

    branches: tuple[Branch, ...]
    links: tuple[tuple[int, int], ...]


def causes(messages: Sequence[TalkMessage]) -> list[list[int]]:
    """For each message the numbers of those whose handling has sent it.

    The cause has the id that it is related to, and was handled where it was sent from; where none fits both, that nobody has
    published. None where it is related to itself.
    """
    by_id: defaultdict[str, list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        by_id[message.message_id].append(number)
    found = []
    for message in messages:
        named = by_id.get(message.related_to, []) if message.related_to and message.related_to != message.message_id else []
        at_sender = [each for each in named if messages[each].receiving == message.sending]
        found.append((at_sender or [each for each in named if messages[each].kind is not Kind.EVENT])[:MOST_PARENTS])
    return found


def forest(messages: Sequence[TalkMessage]) -> Forest:
    """All messages as trees: roots first, in the order in which they were processed, as are those that hang on one."""
    ordered = sorted(messages, key=lambda each: each.order)
    parents = causes(ordered)
    first = _without_circles([each[0] if each else None for each in parents])
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for number, parent in enumerate(first):
        children[parent].append(number)
    branches: list[Branch] = []
    place_of: dict[int, int] = {}
    left = [(number, 0) for number in reversed(children[None])]
    while left:
        number, depth = left.pop()
        parent = first[number]
        place_of[number] = len(branches)
        branches.append(Branch(ordered[number], None if parent is None else place_of[parent], depth))
        left += [(child, depth + 1) for child in reversed(children[number])]
    links = tuple((place_of[cause], place_of[number]) for number, each in enumerate(parents) for cause in each)
    return Forest(tuple(branches), links)


def _without_circles(parents: list[int | None]) -> list[int | None]:
    """The same with one parent taken away in each circle: of the message that comes first."""
    found = list(parents)
    state = [0] * len(found)  # 1: on the way that is being walked, 2: leads to a root
    for start in range(len(found)):
        way = []
        at: int | None = start
        while at is not None and state[at] == 0:
            state[at] = 1
            way.append(at)
            at = found[at]
        if at is not None and state[at] == 1:
            found[min(way[way.index(at) :])] = None
        for each in way:
            state[each] = 2
    return found


def cut(whole: Forest, most: int, *, first: Collection[int] = ()) -> Forest:
    """At most so many branches of it: those numbered in `first` with all that they hang on, then the ones nearest to the roots."""
    if len(whole.branches) <= most:
        return whole
    kept: set[int] = set()
    by_depth = sorted(range(len(whole.branches)), key=lambda number: whole.branches[number].depth)
    for wanted in (*first, *by_depth):
        chain = []
        at: int | None = wanted
        while at is not None and at not in kept:
            chain.append(at)
            at = whole.branches[at].parent
        if len(kept) + len(chain) <= most:
            kept.update(chain)
        if len(kept) == most:
            break
    places = {number: place for place, number in enumerate(sorted(kept))}
    branches = []
    for number in places:
        branch = whole.branches[number]
        branches.append(Branch(branch.message, None if branch.parent is None else places[branch.parent], branch.depth))
    links = tuple((places[cause], places[effect]) for cause, effect in whole.links if cause in places and effect in places)
    return Forest(tuple(branches), links)
