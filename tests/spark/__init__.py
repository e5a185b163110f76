"""Tests that run on Spark, all in one pytest process and one SparkSession (the fixture `spark`)."""
