"""What ends a run of the pipeline, or a batch of it."""

from __future__ import annotations

from sqlqueue_app.messages.errors import SqlQueueError


class PipelineError(SqlQueueError):
    """The pipeline cannot go on; the message says what was found, and what to do. What is in the queues stays there."""


class PipelineBusy(PipelineError):
    """Another pipeline runs on the same database."""


class BatchLost(PipelineError):
    """Somebody else has taken rows of the batch, or its files: it was rolled back, and the next one may be tried at once."""
