"""Everything that runs on Spark: the session, the data source `sqlqueue`, transforms. No Django; needs the extra `spark`."""
