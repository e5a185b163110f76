"""The entries of Django's setting `TASKS` that name our backend, and the queues that their tasks go through.

They are read here, and not by the backend, so that a worker knows which of its endpoints run tasks without importing it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlqueue_app.conf.kinds import CountOrZero, QueueName, Seconds
from sqlqueue_app.conf.validation import Code, Findings, KeyPath, keys_of, listed, read_section, shown, suggestion
from sqlqueue_app.messages.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlqueue_app.conf.settings import EndpointSettings

TASK_BACKEND: Final = "sqlqueue_app.tasks.SqlQueueBackend"
TASK_HANDLER: Final = "sqlqueue_app.tasks.handle_task"
TASK_MESSAGE: Final = "sqlqueue.Task"
DEFAULT_QUEUE: Final = "default"  # Django's name for the queue of a task without one

_ROOT: Final = KeyPath(root="TASKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """`OPTIONS` of an entry of `TASKS`. Durations are seconds."""

    endpoint: QueueName | None = None
    retries: CountOrZero = 0
    retry_delay_seconds: Seconds = 10.0
    keep_results_seconds: Seconds | None = 14 * 86_400.0


@dataclass(frozen=True, slots=True)
class TaskQueue:
    """The destination of the tasks of a queue name: the literal name of a queue, and the endpoint that receives from it."""

    endpoint: str
    queue: str


@dataclass(frozen=True, slots=True)
class TaskBackend:
    """One entry of `TASKS`. Without `queues` the framework accepts any name."""

    alias: str
    queues: tuple[str, ...]
    options: TaskOptions

    def place_of(self, queue_name: str, endpoints: Mapping[str, EndpointSettings]) -> TaskQueue:
        """The queue that tasks of this name go through; ConfigurationError if no endpoint receives from one.

        The name is that of an endpoint or of a satellite. `default` is also the endpoint of the option ENDPOINT, or the only one.
        """
        chosen = self.options.endpoint
        if queue_name == DEFAULT_QUEUE and chosen is not None and chosen in endpoints:
            return TaskQueue(chosen, chosen)
        for name, endpoint in endpoints.items():
            if queue_name == name or queue_name in endpoint.satellites:
                return TaskQueue(name, queue_name)
        if queue_name == DEFAULT_QUEUE and len(endpoints) == 1:
            (only,) = endpoints
            return TaskQueue(only, only)
        names = [*endpoints, *(name for endpoint in endpoints.values() for name in endpoint.satellites)]
        raise ConfigurationError(
            f'no endpoint of SQLQUEUE["ENDPOINTS"] receives from the task queue {queue_name!r}'
            f"{suggestion(queue_name, names) or f', expected {listed(names)}'}"
        )

    def takes_tasks(self, endpoint: str, endpoints: Mapping[str, EndpointSettings]) -> bool:
        """Whether tasks of this backend go through a queue of the endpoint."""
        return not self.queues or any(self.place_of(name, endpoints).endpoint == endpoint for name in self.queues)


def names_our_backend(raw: object) -> bool:
    """Whether the value of `TASKS` has an entry that names our backend."""
    return bool(_entries(raw))


def read_task_backends(raw: object, findings: Findings) -> Mapping[str, TaskBackend]:
    """Our entries of `TASKS`, by alias; wrong values are reported and replaced by the defaults."""
    return MappingProxyType({alias: _read(alias, entry, findings) for alias, entry in _entries(raw).items()})


def with_endpoints_for_tasks(raw: object, backends: Mapping[str, TaskBackend]) -> object:
    """The value of `SQLQUEUE`; if it names no endpoint, with one for each task queue, without callback queues."""
    if not backends or not isinstance(raw, Mapping) or raw.get("ENDPOINTS"):
        return raw
    names: dict[str, dict[str, object]] = {}
    for backend in backends.values():
        for queue in backend.queues or (DEFAULT_QUEUE,):
            name = backend.options.endpoint if queue == DEFAULT_QUEUE and backend.options.endpoint else queue
            names[name] = {"CALLBACKS": False}
    return {**raw, "ENDPOINTS": names}


def find_missing_queues(backends: Mapping[str, TaskBackend], endpoints: Mapping[str, EndpointSettings], findings: Findings) -> None:
    """Report names in QUEUES and ENDPOINT without an endpoint."""
    for alias, backend in backends.items():
        wanted = backend.options.endpoint
        if wanted is not None and wanted not in endpoints:
            at = _ROOT / alias / "OPTIONS" / "ENDPOINT"
            message = f'{at} is {wanted!r}, expected an endpoint of SQLQUEUE["ENDPOINTS"]{suggestion(wanted, endpoints)}'
            findings.add(at, message, f"the endpoints are {listed(endpoints, last='and')}", Code.TASK_QUEUE)
            continue
        for queue in backend.queues:
            try:
                backend.place_of(queue, endpoints)
            except ConfigurationError as error:
                hint = (
                    "name an endpoint or a satellite, or add an endpoint of that name; 'default' may be another: OPTIONS ENDPOINT"
                )
                at = _ROOT / alias / "QUEUES"
                findings.add(at, f"{at}: {error}", hint, Code.TASK_QUEUE)


def _entries(raw: object) -> dict[str, Mapping[str, Any]]:
    entries = raw.items() if isinstance(raw, Mapping) else ()
    return {alias: entry for alias, entry in entries if isinstance(entry, Mapping) and entry.get("BACKEND") == TASK_BACKEND}


def _read(alias: str, entry: Mapping[str, Any], findings: Findings) -> TaskBackend:
    at = _ROOT / alias
    # The framework ignores keys that it does not know.
    for key in filter(entry.__contains__, keys_of(TaskOptions)):
        message = f"{at / key} is not a setting here, it belongs to {at / 'OPTIONS'}"
        findings.add(at / key, message, f"move it to {at / 'OPTIONS'}", Code.UNKNOWN_KEY)
    options = read_section(TaskOptions, entry.get("OPTIONS", {}), at / "OPTIONS", findings)
    return TaskBackend(alias, _queues(alias, entry.get("QUEUES", [DEFAULT_QUEUE]), findings), options or TaskOptions())


def _queues(alias: str, value: object, findings: Findings) -> tuple[str, ...]:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)) and all(isinstance(name, str) for name in value):
        return tuple(sorted(value)) if isinstance(value, (set, frozenset)) else tuple(value)
    at = _ROOT / alias / "QUEUES"
    message = f"{at} is {shown(value)}, expected a list of names"
    findings.add(at, message, 'write it as in "QUEUES": ["default"]', Code.WRONG_TYPE)
    return ()
