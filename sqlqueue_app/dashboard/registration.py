"""Putting the pages on an admin site."""

from __future__ import annotations

from django.contrib.admin import AdminSite

from sqlqueue_app.dashboard.instance_admin import InstanceAdmin
from sqlqueue_app.dashboard.queue_admin import QueueAdmin
from sqlqueue_app.models import Instance, Queue


def register(site: AdminSite) -> None:
    """Register queues and instances on a site; harmless where they are registered already.

    The default site has them by itself. A project with further sites calls this for each.
    """
    for model, model_admin in ((Queue, QueueAdmin), (Instance, InstanceAdmin)):
        if not site.is_registered(model):
            site.register(model, model_admin)
