"""Checks: whether all is well, looked at by workers again and again, with what they last said in a table."""
