"""Tests of what a lake looks like."""
