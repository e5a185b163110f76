"""The peers: the command and settings of each worker, and the documented guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ADAPTERS = "benchmarks.peers.adapters"

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the worker, for one cell of the table of rates."""

    column: str
    """`one` and `eight` at once, or in `batch`es."""
    commands: Sequence[Command]
    """Arguments of Python, one tuple for each process that is started; `{worker}` is the name of the worker."""
    pace: int
    """The approximate number of messages per second, so that a turn takes about the same time for all peers."""
    row: str = ""
    """Its label in a separate row of the report."""
    handling: int = 1
    """Processes that call handlers; they begin together."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promise:
    """A documented guarantee for messages."""

    sending: str
    """Whether it is sent with the sender's own rows, or not at all."""
    work: str
    """Whether the rows of its handler commit together with its receipt."""
    killed: str
    """Its outcome if its worker is killed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The data of one queue for the measurements."""

    key: str
    name: str
    packages: Sequence[str]
    """The installed packages, whose versions are reported; the first one is required."""
    settings: str
    promise: Promise
    adapter: str
    variants: Sequence[Variant]
    at_rest: Callable[[int], Variant]
    """The worker with this concurrency, to watch it at rest and to kill it."""
    tables: Sequence[str] = ()
    """The tables that are emptied between turns."""
    broker: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    returns: float | None = None
    """Seconds after which a message of a killed worker is handled again by these settings; None: never, or not within an hour."""
    in_django: bool = False
    """Whether it is made for Django: the first goal applies to these."""


def _ours() -> Peer:
    def variant(column: str, pace: int, *arguments: str, row: str = "", processes: int = 1) -> Variant:
        command = ("-m", "django", "run_sqlqueue_worker", "--processes", str(processes), *arguments)
        return Variant(column, [command], pace, row, processes)

    batches, unbound = ("--batch-size", "auto"), ("--cpu-affinity", "none")
    two, free = "sqlqueue, 2 processes of 4 threads", "sqlqueue, --cpu-affinity none"
    return Peer(
        "sqlqueue", "sqlqueue", ["sqlqueue"],
        "run_sqlqueue_worker with its defaults (a supervisor and N processes), WAKE_UP with its trigger; batch: BATCH_SIZE auto",
        Promise(
            "yes, `send()` joins the transaction",
            "yes, one transaction",
            "visible again when the database sees the session end; effects in the database once",
        ),
        "peer_ours",
        [
            variant("one", 2500, "--max-concurrency", "1"),
            variant("eight", 8000, "--max-concurrency", "8"),
            variant("batch", 30000, "--max-concurrency", "8", *batches),
            variant("eight", 8000, "--max-concurrency", "4", row=two, processes=2),
            variant("batch", 30000, "--max-concurrency", "4", *batches, row=two, processes=2),
            variant("one", 2500, "--max-concurrency", "1", *unbound, row=free),
            variant("eight", 5500, "--max-concurrency", "8", *unbound, row=free),
            variant("batch", 20000, "--max-concurrency", "8", *batches, *unbound, row=free),
        ],
        lambda threads: variant("", 0, "--max-concurrency", str(threads)),
        ["Bench"],
        returns=0.0,
    )  # fmt: skip


def _procrastinate(kind: str, task: str, paces: tuple[int, int]) -> Peer:
    def worker(concurrency: int, column: str = "", pace: int = 0) -> Variant:
        app = f"--app={ADAPTERS}.peer_procrastinate.app"
        command = ("-m", "procrastinate", app, "worker", "-c", str(concurrency), "--delete-jobs", "successful")
        return Variant(column, [command], pace)

    return Peer(
        f"procrastinate-{kind}", f"procrastinate, {kind} tasks", ["procrastinate", "psycopg"],
        "procrastinate worker -c N --delete-jobs successful; retry_stalled_jobs every minute",
        Promise(
            "yes, on a connection that you pass (Django's)",
            "no, three transactions",
            "at least once, if retry_stalled_jobs is scheduled: within a minute after 30 s without a heartbeat",
        ),
        "peer_procrastinate",
        [worker(1, "one", paces[0]), worker(8, "eight", paces[1])], worker,
        ["procrastinate_jobs", "procrastinate_workers"],
        environment={"BENCH_TASK": task}, returns=100.0, in_django=True,
    )  # fmt: skip


def _django_tasks_db() -> Peer:
    def worker(processes: int, column: str = "", pace: int = 0) -> Variant:
        command = ("-m", "django", "db_worker", "--no-startup-delay", "--verbosity", "0")
        return Variant(column, [command] * processes, pace, handling=processes)

    return Peer(
        "django-tasks-db", "django-tasks-db", ["django-tasks-db", "Django", "psycopg"],
        "manage.py db_worker --verbosity 0, N of them, its interval of 1 s; CONN_MAX_AGE 600",
        Promise("yes, by the ORM", "no, two transactions", "at most once: its task stays RUNNING, and nothing retries it"),
        "peer_django_tasks_db",
        [worker(1, "one", 120), worker(8, "eight", 700)], worker,
        ["django_tasks_database_dbtaskresult"],
        environment={"BENCH_PEER": "django_tasks_db", "DJANGO_SETTINGS_MODULE": f"{ADAPTERS}.django_settings"}, in_django=True,
    )  # fmt: skip


def _django_q2() -> Peer:
    def worker(workers: int, column: str = "", pace: int = 0) -> Variant:
        environment = {"BENCH_CONCURRENCY": str(workers)}
        return Variant(column, [("-m", "django", "qcluster")], pace, handling=workers, environment=environment)

    return Peer(
        "django-q2", "django-q2", ["django-q2", "Django", "psycopg"],
        "manage.py qcluster with N workers, the ORM as broker, as documented: timeout 90, retry 120, "
        "bulk 10; log_level WARNING, CONN_MAX_AGE 600",
        Promise("yes, by the ORM", "no, several transactions", "at least once, `retry` seconds after it was taken (120)"),
        "peer_django_q2",
        [worker(1, "one", 100), worker(8, "eight", 400)], worker,
        ["django_q_ormq", "django_q_task"],
        environment={"BENCH_PEER": "django_q2", "DJANGO_SETTINGS_MODULE": f"{ADAPTERS}.django_settings"},
        returns=130.0, in_django=True,
    )  # fmt: skip


def _pgqueuer() -> Peer:
    def worker(batch: int, column: str = "", pace: int = 0, limit: int = 0) -> Variant:
        cap = ("--max-concurrent-tasks", str(limit)) if limit else ()
        command = (
            "-m",
            "pgqueuer",
            "run",
            f"{ADAPTERS}.peer_pgqueuer:factory",
            "--log-level",
            "WARNING",
            "--batch-size",
            str(batch),
            *cap,
        )
        return Variant(column, [command], pace)

    return Peer(
        "pgqueuer", "pgqueuer", ["pgqueuer", "asyncpg", "uvloop"],
        "pgq run --log-level ERROR, asyncpg, durable tables; "
        "1: --batch-size 1 --max-concurrent-tasks 2 (its minimum); 8: its default "
        "of --batch-size 10, no cap; batch: --batch-size 100",
        Promise("yes, on a connection that you pass", "no, two transactions", "at least once, 30 s without a heartbeat"),
        "peer_pgqueuer",
        [worker(1, "one", 700, limit=2), worker(10, "eight", 4000), worker(100, "batch", 15000)],
        lambda _: worker(10),
        ["pgqueuer", "pgqueuer_log", "pgqueuer_statistics"],
        returns=45.0,
    )  # fmt: skip


def _oban() -> Peer:
    def worker(limit: int, column: str = "", pace: int = 0) -> Variant:
        return Variant(column, [("-m", "oban", "start", "--queues", f"default:{limit}", "--log-level", "warning")], pace)

    return Peer(
        "oban", "oban", ["oban", "psycopg", "uvloop"],
        "oban start --queues default:N --log-level warning, finished jobs are kept (its default)",
        Promise(
            "yes, on a connection that you pass",
            "no, two transactions",
            "at least once, 300 s after it was taken, checked every minute",
        ),
        "peer_oban",
        [worker(1, "one", 400), worker(8, "eight", 1100)], worker,
        ["oban_jobs", "oban_leaders", "oban_producers"],
        returns=380.0,
    )  # fmt: skip


def _pgmq() -> Peer:
    def worker(threads: int, column: str = "", pace: int = 0, batch: int = 1) -> Variant:
        return Variant(column, [("-m", f"{ADAPTERS}.peer_pgmq", "work", str(threads), str(batch))], pace)

    return Peer(
        "pgmq", "pgmq", ["pgmq", "psycopg"],
        "read_with_poll (100 ms), the handler, delete, in N threads, visibility timeout 30 s; batch: 8 threads, 100 at once. "
        "It has no worker, so the benchmark provides one. Its functions are the plain SQL of its client: "
        "PostgreSQL's packages have no extension",
        Promise(
            "yes, on a connection that you pass",
            "no, as documented; yes if one transaction covers reading, work and deleting",
            "at least once, after its visibility timeout (30 s)",
        ),
        "peer_pgmq",
        [worker(1, "one", 500), worker(8, "eight", 1400), worker(8, "batch", 15000, 100)], worker,
        ["pgmq.q_bench"],
        returns=35.0,
    )  # fmt: skip


def _celery(key: str, broker: str, name: str, acks: str, killed: str, returns: float | None, paces: tuple[int, int]) -> Peer:
    def worker(processes: int, column: str = "", pace: int = 0) -> Variant:
        command = ("-m", "celery", "-A", f"{ADAPTERS}.peer_celery", "worker", "-n", f"{{worker}}-{key}@%h", "-c", str(processes))
        return Variant(column, [command], pace, handling=processes)

    kept = {
        "rabbitmq": "persistent messages in a durable queue",
        "redis": "append-only file, written to the disk every second (its default)",
    }[broker]
    late = "task_acks_late, task_reject_on_worker_lost" if acks == "late" else "acknowledged before the work (its default)"
    return Peer(
        key, name, ["celery", "kombu", "redis" if broker == "redis" else "amqp"],
        f"celery worker -c N (prefork), prefetch 64, no results, {late}; {kept}",
        Promise("no, the broker is another system", "no", killed),
        "peer_celery",
        [worker(1, "one", paces[0]), worker(8, "eight", paces[1])], worker,
        broker=broker, environment={"BENCH_ACKS": acks, "BENCH_QUEUE": key}, returns=returns,
    )  # fmt: skip


PEERS: Sequence[Peer] = (
    _ours(),
    _procrastinate("sync", "handle", (400, 350)),
    _procrastinate("async", "handle_async", (600, 900)),
    _django_tasks_db(),
    _django_q2(),
    _pgqueuer(),
    _oban(),
    _pgmq(),
    _celery(
        "celery-rabbitmq", "rabbitmq", "celery, RabbitMQ, late acknowledgement", "late",
        "at least once, when the broker sees the connection end", 0.0, (2000, 3000),
    ),
    _celery(
        "celery-rabbitmq-early", "rabbitmq", "celery, RabbitMQ, its defaults", "early", "at most once: lost", None, (2000, 3000)
    ),
    _celery(
        "celery-redis", "redis", "celery, Redis, late acknowledgement", "late",
        "at least once, after its visibility timeout (1 hour)", None, (1300, 1300),
    ),
)  # fmt: skip
"""Ours first, because the others are compared with it."""

OURS = PEERS[0].key
