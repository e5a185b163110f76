"""Dead rows that pile up in queue tables: when that is a problem, whose fault it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue_app.messages.identifiers import quote_postgresql
from sqlqueue_app.operations.queue_problems import ProblemKind, QueueProblem
from sqlqueue_app.tables.dead_rows import DeadRows, HorizonHolder, dead_rows, horizon_holders

# Measured (performance reference 4), receives that look from the start of the table: behind an old transaction 5,000 dead rows
# leave 0.28 of the speed, 60,000 leave 0.02; without one, 100,000 leave 0.58. Ours remember where they were and lose nothing, but
# what looks from the start pays all the same: other systems' receivers, the first receive of a thread, counts and peeks.
DEAD_ROWS_BEHIND_A_HOLDER = 5_000
DEAD_ROWS = 100_000
# A transaction that is as young as this is no problem yet: it may be a receive, or a report that is about to end.
OLD_SECONDS = 60.0
# The same for sessions whose time is hidden: so many receives of one message each.
OLD_TRANSACTIONS = 1_000


def dead_row_problems(alias: str, tables: Sequence[str]) -> dict[str, QueueProblem]:
    """The tables, by qualified name, in which dead rows pile up, with the advice to give; empty on other databases.

    One statement, and one more where there are many dead rows. DatabaseError if the database cannot be asked.
    """
    many = {name: found for name, found in dead_rows(alias, tables).items() if found.dead >= DEAD_ROWS_BEHIND_A_HOLDER}
    if not many:
        return {}
    holders = [holder for holder in horizon_holders(alias) if _is_old(holder)]
    return {name: _problem(found, holders) for name, found in many.items() if holders or found.dead >= DEAD_ROWS}


def _is_old(holder: HorizonHolder) -> bool:
    return holder.transactions >= OLD_TRANSACTIONS or (holder.seconds is not None and holder.seconds >= OLD_SECONDS)


def _problem(found: DeadRows, holders: Sequence[HorizonHolder]) -> QueueProblem:
    counts = f"{found.dead:,} dead rows beside {found.live:,} live ones"
    text = f"table {found.table} holds {counts}: who reads it from the start steps over all"
    if not holders:
        advice = (
            "autovacuum does not keep up; let it come sooner (and set autovacuum_naptime of the server to 5s, which "
            "is how often it looks)"
        )
        return QueueProblem(ProblemKind.DEAD_ROWS, f"{text}; {advice}", _tuning(found.table))
    who = "; ".join(map(_words, holders))
    hidden = any(holder.kind == "session" and holder.seconds is None for holder in holders)
    more = "; this role may not see what the sessions of others do: GRANT pg_read_all_stats to it" if hidden else ""
    mend = "\n".join([*(line for holder in holders for line in _ending(holder)), f"VACUUM {found.table};"])
    return QueueProblem(ProblemKind.DEAD_ROWS, f"{text}; vacuum must keep them for {who}{more}", mend)


def _words(holder: HorizonHolder) -> str:
    age = f"{holder.transactions:,} transactions old"
    if holder.kind != "session":
        return f"the {holder.kind} {holder.name!r}, {age}"
    state = holder.state or "in a state that is hidden"
    since = "" if holder.seconds is None else f", open for {holder.seconds:.0f} s"
    role = "" if holder.role is None else f" of the role {holder.role!r}"
    return f"process {holder.pid} ({holder.name or 'without an application name'}){role}, {state}{since}, {age}"


def _ending(holder: HorizonHolder) -> list[str]:
    """SQL that ends the holder, and keeps it from coming back where that can be set."""
    if holder.kind == "prepared transaction":
        return [
            "-- or COMMIT PREPARED, as the other databases that took part have decided:",
            f"ROLLBACK PREPARED {_literal(holder.name)};",
        ]
    if holder.kind == "replication slot":
        return ["-- if no standby or subscriber needs it any more:", f"SELECT pg_drop_replication_slot({_literal(holder.name)});"]
    lines = [f"SELECT pg_terminate_backend({holder.pid});"]
    if holder.role is not None:
        lines.append(f"ALTER ROLE {quote_postgresql(holder.role)} SET idle_in_transaction_session_timeout = '60s';")
    return lines


def _tuning(table: str) -> str:
    return (
        f"ALTER TABLE {table} SET (\n    autovacuum_vacuum_scale_factor = 0,\n    autovacuum_vacuum_threshold = 1000,\n"
        f"    autovacuum_vacuum_cost_delay = 0\n);\nVACUUM {table};"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
