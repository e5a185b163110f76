"""The driver of the Spark pipeline: it takes batches from the audit queues, writes them to a lake, and keeps the manifest of it.

Only the command `run_sqlqueue_pipeline` imports this part, which needs the extra `spark`.
"""
