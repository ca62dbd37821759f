"""Runs an unmodified rabbitmqadmin, as Debian's package has it, for many commands in one process.

    python rabbitmqadmin_driver.py SCRIPT PORT < commands.json

Reads a JSON list of command lines (lists of words); prints a JSON list of [exit code, output].
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys


def main() -> None:
    script, port = sys.argv[1:]
    loader = importlib.machinery.SourceFileLoader("rabbitmqadmin", script)
    spec = importlib.util.spec_from_loader("rabbitmqadmin", loader)
    assert spec is not None
    results = []
    for words in json.load(sys.stdin):
        sys.argv = ["rabbitmqadmin", "--host=127.0.0.1", f"--port={port}", *words]
        module = importlib.util.module_from_spec(spec)  # anew: it keeps what it parsed
        output, code = io.StringIO(), 0
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                loader.exec_module(module)
                module.main()
            except SystemExit as end:
                code = int(end.code or 0)
        results.append([code, output.getvalue()])
    print(json.dumps(results))


main()
