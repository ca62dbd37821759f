#!/bin/sh
# Writes requirements-{dev,test,spark,docs}.lock: for each requirements-*.txt the versions that set-up installs, for every Python from 3.11 on, with
# the hashes of its files, so that nobody between the registry and this machine can change what is installed. Run it (`make lock`) after a
# change of a requirements-*.txt, or to take newer versions.
set -eu
cd "$(dirname "$0")/.."
tool=build/lock-tool
[ -x "$tool/bin/uv" ] || { ${PYTHON:-python3} -m venv "$tool" && "$tool/bin/python" -m pip install --quiet uv; }
known=""
for part in dev test spark docs; do
    # A package that two parts need has one version: each part keeps to what the ones before chose.
    { echo "# Made from requirements-$part.txt by tools/lock.sh (make lock). Do not edit."
      # shellcheck disable=SC2086
      "$tool/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $known "requirements-$part.txt"
    } >"requirements-$part.lock.new"
    mv "requirements-$part.lock.new" "requirements-$part.lock"
    known="$known --constraint requirements-$part.lock"
done
