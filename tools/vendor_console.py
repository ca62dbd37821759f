"""Copies the console's libraries from the npm registry into src/flintmq/admin/console/vendor, with their licences and hashes.

    python tools/vendor_console.py [--check]

Run it to take other versions (VERSIONS), and look at the difference. `--check` compares the files with
the hashes that were written, without the registry. One file is changed on its way: a browser finds no module by a bare name, so
`from"preact"` becomes a relative path.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src/flintmq/admin/console/vendor"
VERSIONS = {"preact": ("11.2.0", "MIT"), "htm": ("3.1.1", "Apache-2.0"), "uplot": ("1.6.32", "MIT")}
# package, path in it, name here, (text, what it becomes)
FILES = (
    ("preact", "dist/preact.mjs", "preact.js", None),
    ("preact", "hooks/dist/hooks.mjs", "hooks.js", ('from"preact"', 'from"./preact.js"')),
    ("preact", "LICENSE", "preact.LICENSE.txt", None),
    ("htm", "dist/htm.module.js", "htm.js", None),
    ("htm", "LICENSE", "htm.LICENSE.txt", None),
    ("uplot", "dist/uPlot.esm.js", "uplot.js", None),
    ("uplot", "dist/uPlot.min.css", "uplot.css", None),
    ("uplot", "LICENSE", "uplot.LICENSE.txt", None),
)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetch(into: Path) -> None:
    """npm's own checks compare each package with the registry's hash; scripts of packages are not run."""
    wanted = [f"{name}@{version}" for name, (version, _) in VERSIONS.items()]
    subprocess.run(["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(into), *wanted], check=True)


def copy(modules: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    rows = []
    for package, path, name, change in FILES:
        content = (modules / package / path).read_bytes()
        row = {"file": name, "package": package, "version": VERSIONS[package][0], "licence": VERSIONS[package][1], "path": path}
        row["sha256_upstream"] = digest(content)
        if change is not None:
            before, after = (one.encode() for one in change)
            if content.count(before) != 1:
                sys.exit(f"{package}/{path} does not have {change[0]!r} once: look at it")
            content = content.replace(before, after)
            row["change"] = f"{change[0]} -> {change[1]}"
        row["sha256"] = digest(content)
        (FOLDER / name).write_bytes(content)
        rows.append(row)
    (FOLDER / "vendored.json").write_text(json.dumps(rows, indent=1) + "\n")


def check() -> None:
    rows = json.loads((FOLDER / "vendored.json").read_text())
    wrong = [row["file"] for row in rows if digest((FOLDER / row["file"]).read_bytes()) != row["sha256"]]
    strange = {path.name for path in FOLDER.iterdir()} - {row["file"] for row in rows} - {"vendored.json"}
    if wrong or strange:
        sys.exit(f"changed: {wrong}; of nobody: {sorted(strange)}. Run tools/vendor_console.py.")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        check()
        return
    with tempfile.TemporaryDirectory() as folder:
        fetch(Path(folder))
        copy(Path(folder) / "node_modules")


if __name__ == "__main__":
    main()
