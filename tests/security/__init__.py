"""Attacks by those who may write to a queue or see what a project shows."""
