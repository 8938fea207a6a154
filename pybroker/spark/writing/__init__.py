"""Write rows of a DataFrame to topics, in Spark's tasks."""
