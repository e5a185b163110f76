"""What runs on Spark. One process of pytest runs all of it, in one SparkSession (the fixture `spark`)."""
