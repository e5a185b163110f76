"""Bulk operations: rows that say what to do with many, and the engine by which any live process does it, batch by batch."""
