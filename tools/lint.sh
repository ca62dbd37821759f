#!/bin/sh
# Formatting, lint, types, layering, size and up-to-date generated files. Part of `make test`.
set -eu
cd "$(dirname "$0")/.."
bin=.venv/bin
$bin/ruff format --check --quiet src tests tools bench examples setup.py
$bin/ruff check --quiet src tests tools bench examples setup.py
$bin/mypy
$bin/lint-imports --no-cache >build/layers.log 2>&1 || { tail -n 40 build/layers.log; exit 1; }
$bin/python tools/gen_amqp091.py --check
$bin/python tools/waits.py
$bin/python tools/tidy.py
echo "lint: ok"
