"""Add the dashboard to the default admin site; discovered by Django's admin."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue_app.dashboard.registration import register

register(admin.site)
