# FlintMQ's commands. First use of any sets up .venv and compiles; a second use is quick.
#
#   make run     the main job: flights through the broker into Spark, with a checked result table
#   make serve   a broker on the default ports (ARGS="--port 0 ..." for options)
#   make test    lint and all tests            make bench   the workloads of docs/PERFORMANCE.md
#   make bench-start  a start, an idle broker, a command
#   make bench-pipeline  queues and Spark (docs/pipeline/benchmarks.md)
#   make bench-fairness  scheduling, streams, held polls, cold drains beside hot queues (docs/FAIRNESS.md)
#   make lint    formatting, types, layering   make stress  threads on the queue core, under ThreadSanitizer
#   make replication-sim   the state machine of ADR 13: 20,000 random walks, and planted mistakes (ARGS="--walks N")
#   make shared-sim        the state machine of ADR 15: 20,000 random walks, and planted mistakes (ARGS="--walks N")
#   make crash-shared      three brokers and three members of etcd in network namespaces, and what breaks them (root; ARGS="--seconds 180")
#   make actors  a million interleavings of the actor system, and mutants of it
#   make fuzz    coverage-guided fuzzing of codec and engine
#   make asan    the compiled half under AddressSanitizer and UBSan: tests, fuzzers of sessions and Arrow batches (ARGS="seconds [tests]")
#   make crash   the long crash and fault campaigns of docs/RELIABILITY.md (hours)
#   make test-spark   50 kills around the Spark pipeline, and lost or old checkpoints (half an hour); make crash-spark: 530 kills (hours)
#   make interop the same scripts against FlintMQ and RabbitMQ (Debian's package), and what comes back compared
#   make spark-sites  source and sink with PySpark 4.0 and 4.1, on a cluster with TLS, by Spark Connect, of an archive (ten minutes)
#   make spark-wheel   source and sink for Spark's machines, without the broker, in build/wheel
#   make docs    the documentation site with an API reference, in build/site; a broken link fails
#   make dist    source distribution, wheels, a Debian package in build/dist, each installed in a clean environment and tried (ARGS="--python python3.13")
#   make console-test  the web console in headless Chromium (ARGS=--screenshots writes those of docs/img); make api-test: schemathesis on /api/v1
#   make model   5,000 histories of queue features together against their model (minutes; ARGS go to pytest)
#   make rolling  three brokers of a cluster restarted ten times under load of pika and Celery (FLINTMQ_ROLLING_ROUNDS; some minutes)
#   make newcomer  does what the pages for users say, command by command
#   make soak    half an hour of durable load with one message held back: the log must not grow
PYTHON ?= python3
BIN := .venv/bin
# what is to be installed is fetched while the compilers run
MAKEFLAGS += --jobs=2
SOURCES := $(shell find src/flintmq tests/twins tests/drivers -name '*.py' -o -name '*.pxd' -o -name '*.c') setup.py

.PHONY: lock build run serve test lint bench bench-beside bench-others bench-shared bench-start bench-pipeline bench-fairness stress fuzz asan crash model newcomer soak rolling actors interop replication-sim shared-sim crash-shared console-test api-test docs dist clean test-spark crash-spark spark-sites spark-wheel

build: .venv/.compiled

.venv/.base: pyproject.toml requirements-dev.lock tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh base
.venv/.spark: .venv/.base requirements-spark.lock
	@sh tools/setup.sh spark
.venv/.test: .venv/.base requirements-test.lock
	@sh tools/setup.sh test

.venv/.compiled: .venv/.base $(SOURCES)
	@sh tools/setup.sh compile

run: .venv/.compiled .venv/.spark
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && exec $(BIN)/python -m examples.flights.job $(ARGS)

serve: .venv/.compiled
	@exec $(BIN)/flintmq serve $(ARGS)

lint: .venv/.compiled .venv/.spark .venv/.test
	@sh tools/lint.sh

test: .venv/.compiled .venv/.spark .venv/.test lint
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && exec sh tools/run_tests.sh $(ARGS)

bench: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m bench.run $(ARGS)

# this checkout beside another one that is built: ARGS="../other --rounds 5"
bench-beside: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m bench.beside $(ARGS)

# what others wait while one client floods the broker: ARGS="--rabbitmq"
bench-others: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m bench.others $(ARGS)

# shared queues on etcd, PostgreSQL and the embedded engine, beside RabbitMQ's quorum queue (ARGS="--sites etcd --rows owner,window-1")
bench-shared: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m bench.shared $(ARGS)

# a start until the ready line, an idle broker, a command: ARGS="--command /path/of/another/flintmq"
bench-start: .venv/.compiled
	@exec $(BIN)/python -m bench.start $(ARGS)

bench-pipeline: .venv/.compiled .venv/.spark .venv/.test
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && exec $(BIN)/python -m bench.pipeline $(ARGS)

bench-fairness: .venv/.compiled .venv/.test
	@exec sh bench/fairness_all.sh

stress: .venv/.compiled .venv/.test
	@exec sh tools/stress_tsan.sh

fuzz: .venv/.compiled .venv/.test
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet atheris
	@exec $(BIN)/python -m tools.fuzz $(ARGS)

asan: .venv/.compiled .venv/.test
	@exec sh tools/asan.sh $(ARGS)

actors: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m tools.actor_sim.campaign $(ARGS)

replication-sim: .venv/.base
	@exec $(BIN)/python -m tools.replication_sim.campaign $(ARGS)

shared-sim: .venv/.base
	@exec $(BIN)/python -m tools.shared_sim.campaign $(ARGS)

crash-shared: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m tools.faults.shared_campaign $(ARGS)

crash: .venv/.compiled .venv/.test
	@exec sh tools/crash/all.sh $(ARGS)

# A pipeline that is wrong must be seen first, else a campaign that finds nothing says nothing.
SPARK_CAMPAIGN := $(BIN)/python -m tools.crash.spark.campaign

test-spark: .venv/.compiled .venv/.spark .venv/.test
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && $(SPARK_CAMPAIGN) --mutants && \
	    FLINTMQ_LONG=1 $(BIN)/python -m pytest -q tests/pipeline/test_sink_speculation.py tests/pipeline/test_sink_crowd.py tests/pipeline/test_sink_volume.py \
	        tests/pipeline/test_amqp_kill_driver.py tests/pipeline/test_examples_killed.py tests/jobs/test_records_killed_spark.py && \
	    exec $(SPARK_CAMPAIGN) --kills 50 --scenes $(ARGS)

crash-spark: .venv/.compiled .venv/.spark .venv/.test
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && $(SPARK_CAMPAIGN) --mutants && \
	    $(SPARK_CAMPAIGN) --kills 500 --scenes $(ARGS) && exec $(SPARK_CAMPAIGN) --kills 30 --master 'local-cluster[2,1,1024]' $(ARGS)

spark-sites: .venv/.compiled .venv/.spark .venv/.test
	@JAVA_HOME="$$(sh tools/ensure_java.sh)" && export JAVA_HOME && exec $(BIN)/python -m tests.pipeline.sites $(ARGS)

spark-wheel:
	@$(PYTHON) tools/spark_wheel.py $(ARGS)

dist: .venv/.compiled
	@exec $(BIN)/python tools/dist.py $(ARGS)

interop: .venv/.compiled .venv/.test
	@PYTHON="$(PYTHON)" sh tools/setup.sh celery4
	@FLINTMQ_CELERY_PREVIOUS="$$([ -e build/celery4/.done ] && echo $(CURDIR)/build/celery4/bin/python)" $(BIN)/python -m pytest -q tests/interop/test_celery_gate.py
	@sh tools/setup.sh flower
	@FLINTMQ_TEST_PEER=1 FLINTMQ_FLOWER="$(CURDIR)/build/flower/bin/python" $(BIN)/python -m pytest -q tests/interop/test_rabbitmqadmin.py tests/interop/test_management_clients.py tests/interop/test_flower.py
	@exec $(BIN)/python -m tools.differential.probe $(ARGS)

# Chromium and npm stand apart from .venv
console-test: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m tools.console.run $(ARGS)

api-test: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m tools.console.api $(ARGS)

# one process: its brokers share one clock that stands
model: .venv/.compiled .venv/.test
	@FLINTMQ_MODEL_EXAMPLES=$${FLINTMQ_MODEL_EXAMPLES:-5000} $(BIN)/python -m pytest -q -p no:cacheprovider --timeout 0 tests/session/test_features_together.py $(ARGS)

rolling: .venv/.compiled .venv/.test
	@FLINTMQ_ROLLING_ROUNDS=$${FLINTMQ_ROLLING_ROUNDS:-10} $(BIN)/python -m pytest -q -p no:cacheprovider --timeout 3600 tests/shared_wire/test_cluster.py $(ARGS)

# every command of the pages for users (the tests run it, too)
newcomer: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m tools.newcomer $(ARGS)

soak: .venv/.compiled .venv/.test
	@exec $(BIN)/python -m bench.soak $(ARGS)

# its tools stand apart from .venv, which never needs them
build/docs-tool/.done: requirements-docs.lock
	@sh tools/setup.sh docs

docs: build/docs-tool/.done
	@NO_MKDOCS_2_WARNING=1 build/docs-tool/bin/mkdocs build --strict --clean $(ARGS)

# the exact versions that set-up installs, with hashes, from requirements-*.txt
lock:
	@exec sh tools/lock.sh

clean:
	rm -rf build .venv run .cache $$(find src tests -name '*.so')
