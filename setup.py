"""Builds the compiled modules: every `.py` in src/flintmq that has a `.pxd` of its own beside it, and those of WRITTEN_IN_C.

`build_ext --inplace`, which only a checkout is built with, also makes those that tests and tools use (tests/twins, tests/drivers): no wheel
has them. One extension per module (docs/adr/0001). `FLINTMQ_ONLY=flintmq.queue.queue_core,...` builds just those, for a quick
edit-build-test loop; `FLINTMQ_CFLAGS` adds compiler flags (the ThreadSanitizer build of `make stress` uses it);
`FLINTMQ_CYTHON_CACHE` names a directory where generated C is kept by the hash of what it was made from.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
IN_PLACE = bool({"--inplace", "-i"} & set(sys.argv))
# folder of packages -> the compiled modules in it, by their `.pxd`
PLACES = {ROOT / "src": "flintmq/**/*.pxd"} | ({ROOT: "tests/**/*.pxd"} if IN_PLACE else {})
# modules that can't be Cython's: what another process preloads
WRITTEN_IN_C = {"flintmq.flight._adopt": "src/flintmq/flight/_adopt.c"}
# compilers at a time
JOBS = int(os.environ.get("FLINTMQ_JOBS", os.cpu_count() or 1))


def compiled_modules() -> dict[str, str]:
    """Module name -> source path (relative, as setuptools wants it) of everything that is compiled."""
    modules = {}
    for place, pattern in PLACES.items():
        for pxd in sorted(place.glob(pattern)):
            source = pxd.with_suffix(".py")
            if pxd.stem != "__init__" and source.exists():
                name = ".".join(source.relative_to(place).with_suffix("").parts)
                modules[name] = str(source.relative_to(ROOT))
    only = os.environ.get("FLINTMQ_ONLY")
    if only:
        wanted = set(only.split(","))
        unknown = wanted - set(modules)
        if unknown:
            sys.exit(f"FLINTMQ_ONLY names no compiled module: {', '.join(sorted(unknown))}")
        modules = {name: path for name, path in modules.items() if name in wanted}
    return modules


def require_compiler() -> None:
    """Stops with the package to install, instead of distutils' traceback, when there is no C compiler."""
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    if shutil.which(compiler) is None and shutil.which("gcc") is None and shutil.which("clang") is None:
        sys.exit(
            f"FlintMQ's hot path is compiled C and no C compiler ('{compiler}') was found.\n"
            "Install one and run the command again: Debian/Ubuntu 'apt-get install gcc libc6-dev', "
            "Fedora 'dnf install gcc glibc-devel', Alpine 'apk add gcc musl-dev', macOS 'xcode-select --install'."
        )


def hardening() -> tuple[list[str], list[str]]:
    """Flags that turn a write past a buffer into the end of the process: of the compiler, and of the linker where it is an ELF one.

    Sanitizers have checks of their own and do not go together with them.
    """
    compiled = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
    return compiled, ["-Wl,-z,relro", "-Wl,-z,now"] if sys.platform.startswith("linux") else []


def extensions() -> list[Extension]:
    from Cython.Build import cythonize

    require_compiler()
    asked = shlex.split(os.environ.get("FLINTMQ_CFLAGS", ""))
    hardened, linked = ([], []) if any(flag.startswith("-fsanitize") for flag in asked) else hardening()
    # Python's own flags ask for full debugging information: lines are enough for a backtrace; they compile faster and make smaller wheels.
    flags = ["-O2", "-g1", "-fno-strict-aliasing", "-Wno-unused-function", *hardened, *asked]
    links = [*linked, *shlex.split(os.environ.get("FLINTMQ_LDFLAGS", ""))]
    built = [Extension(name, [path], extra_compile_args=flags, extra_link_args=links) for name, path in compiled_modules().items()]
    made: list[Extension] = cythonize(
        built,
        include_path=[str(place) for place in PLACES],
        build_dir=os.environ.get("FLINTMQ_BUILD_DIR", "build/cython"),
        nthreads=JOBS,
        cache=os.environ.get("FLINTMQ_CYTHON_CACHE") or None,
        emit_linenums=True,  # lines of the sources in backtraces, in profiles, and in what core/check.pxd says
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": True,
            "auto_pickle": False,  # nothing is pickled, and the code for it would be a twentieth of all
            "show_performance_hints": False,
        },
        show_all_warnings=False,
    )
    if not os.environ.get("FLINTMQ_ONLY"):
        plain = {name: path for name, path in WRITTEN_IN_C.items() if (ROOT / path).exists()}  # a copy for a sanitizer has none
        made += [Extension(name, [path], extra_compile_args=flags, extra_link_args=links) for name, path in plain.items()]
    # The largest first: the one that a compiler begins last keeps the other cores waiting, so it should be a small one.
    return sorted(made, key=lambda one: os.path.getsize(one.sources[0]), reverse=True)


# An editable install takes what `build_ext --inplace` left in src/; compiling there again would only cost time.
# What is built in place is gathered in build/lib*, twins and drivers included; a wheel is all that stands in its folder, which is emptied.
WHEEL = ROOT / "build" / "wheel"
if "bdist_wheel" in sys.argv:
    shutil.rmtree(WHEEL, ignore_errors=True)
setup(
    ext_modules=extensions() if {"build_ext", "bdist_wheel", "install", "build"} & set(sys.argv) else [],
    options={"build_ext": {"parallel": JOBS}} | ({} if IN_PLACE else {"build": {"build_lib": str(WHEEL)}}),
    **({"package_dir": {"": "src", "tests": "tests"}} if IN_PLACE else {}),
)
