"""Topics read by Spark: the driver plans ranges, tasks fetch and decode them, and streams record their progress."""
