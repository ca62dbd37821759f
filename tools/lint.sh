#!/bin/sh
# Formatting, lint, types, layering, size and up-to-date generated files. Part of `make test`.
set -eu
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check --quiet src tests tools bench examples setup.py
$bin/ruff check --quiet src tests tools bench examples setup.py
$bin/python tools/layers.py
$bin/mypy
$bin/python tools/gen_amqp091.py --check
$bin/python -m tools.gen_arguments --check
$bin/python -m tools.gen_states --check
$bin/python -m tools.reference
$bin/python tools/waits.py
$bin/python tools/compiled.py
$bin/python tools/tidy.py
$bin/python tools/words.py
$bin/python tools/checks.py
$bin/python tools/unused.py
echo "lint: ok"
