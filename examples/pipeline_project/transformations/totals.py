"""Turnover by shop: computed anew by each run from all orders."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.materialized_view(comment="orders and turnover by shop")
def totals() -> DataFrame:
    orders = spark.read.table("orders")
    return orders.groupBy("shop").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
