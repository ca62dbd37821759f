#!/bin/sh
# Init script of a cluster whose machines have Spark and pyarrow already (Databricks and its like): adds the wheel, and nothing else.
# FLINTMQ_WHEEL: path of pyspark_flintmq-*.whl (make spark-wheel), on storage that every machine sees; PYTHON: the cluster's interpreter.
set -eu
wheel=${FLINTMQ_WHEEL:?the path of pyspark_flintmq-VERSION-py3-none-any.whl}
python=${PYTHON:-/databricks/python/bin/python}
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
"$python" -c 'import pyarrow.flight, pyspark_flintmq'
