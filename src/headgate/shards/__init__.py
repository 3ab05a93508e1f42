"""Shards: rows that live with many processes, and batches that run where their rows are.

Nothing in here knows Spark: a share of a batch is a small value, and whoever can run a function
with it somewhere, at least once, can run a batch. spark/cluster.py does it by tasks of Spark.
"""
