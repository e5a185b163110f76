"""Unmanaged Django models of queue tables, made when asked for. Public as `sqlqueue_app.models.queue_model`."""

from __future__ import annotations

from sqlqueue_app.queue_models.apps import QUEUE_MODELS_LABEL, register_app
from sqlqueue_app.queue_models.base import QueueMessage
from sqlqueue_app.queue_models.factory import make_known_models, queue_model, queue_models

__all__ = ["QUEUE_MODELS_LABEL", "QueueMessage", "make_known_models", "queue_model", "queue_models", "register_app"]
