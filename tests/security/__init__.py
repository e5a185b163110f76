"""What somebody tries who may write into a queue, or may look at what a project shows."""
