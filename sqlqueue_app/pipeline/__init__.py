"""The driver of the Spark pipeline: it moves batches from audit queues into a lake, copies error queues, and keeps the manifest.

Only the command `run_sqlqueue_pipeline` imports this package. It needs the extra `spark`.
"""
