"""Tests of the layout and search of a lake."""
