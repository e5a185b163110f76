"""Found by Django's admin: the dashboard on the default site."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue_app.dashboard.registration import register

register(admin.site)
