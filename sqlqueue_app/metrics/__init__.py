"""The address that Prometheus scrapes: include `sqlqueue_app.urls`, and set `METRICS`."""
