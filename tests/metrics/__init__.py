"""Tests of the address that Prometheus scrapes."""
