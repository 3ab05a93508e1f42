"""Spark's side of Headgate: the sink for foreachBatch and the data source "headgate".

Only this layer imports pyspark, and it is imported only when it is used.
"""
