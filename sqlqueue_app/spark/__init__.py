"""Code that runs on Spark: session, data source `sqlqueue`, transforms, rollups. No Django; needs the extra `spark`."""
