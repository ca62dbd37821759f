"""Several streaming queries in one Spark session, started at once.

In: a Spark session. Out: whether it could be done; a map inside Spark has the entries that its queries would else add at the same time.
Why: `PythonStreamingSourceRunner.init` (Spark 4.3) puts four entries into the environment of the data source, a hash map that all queries
of the source share, in the thread of each query and without a lock. Two queries that begin together can leave it with a size that is not
that of its entries. From then on each task of the session that reads the source fails with java.io.OptionalDataException, until the driver
is started again; nothing is lost or repeated. Entries that are there are only overwritten, which is safe.
"""

from __future__ import annotations

from typing import Any

NAME = "flintmq"


def several_queries(spark: Any, name: str = NAME) -> bool:
    """Makes it safe to start several queries on `flintmq` at once in this session and in those that share its Spark context.

    Call it once, before the first of them starts; again is no error. A session of `flintmq pipeline run` or `make run` has it already.
    Args: name: of another Python data source, with which Spark does the same.
    Returns: whether it could be done. False with Spark Connect, whose map is in the server, and with a Spark that keeps it elsewhere: then
    start one query, and the next when the first has had a batch.
    """
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        shared = manager.lookupDataSource(name).dataSourceCls().envVars()
        conf = spark.sparkContext.getConf()
        entries = {
            "SPARK_LOCAL_DIRS": conf.get("spark.local.dir", "/tmp"),
            "SPARK_AUTH_SOCKET_TIMEOUT": conf.get("spark.python.authenticate.socketTimeout", "15"),
            "SPARK_BUFFER_SIZE": conf.get("spark.buffer.size", "65536"),
            "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        }
        for key, value in entries.items():
            if shared.get(key) is None:
                shared.put(key, value)
    except Exception:  # inside of Spark, in a version that nobody has seen: the session works as it would without
        return False
    return True
