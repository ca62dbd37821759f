#!/bin/sh
# Compiles the scheduler, as it is in src, for simulation: into a copy of the sources, with sim.h in place of atomics, futexes and
# clocks. Prints the directory to put on PYTHONPATH. Quick when nothing changed. Usage: tools/actor_sim/build.sh [copy] [patch]
# `patch`: the name of a source mutant (mutants_source.py). PLAIN=1: without simulation, for the load on real threads.
set -eu
cd "$(dirname "$0")/../.."
root=$(pwd)
python=${PYTHON:-$root/.venv/bin/python}
plain=${PLAIN:-}
kind=sim
[ -z "$plain" ] || kind=plain
copy=${1:-build/actor_$kind}
patch=${2:-}
mkdir -p "$copy/src/flintmq/actor_sim" "$copy/sim"
exec 9>"$copy/.lock"
flock 9

take() { # unchanged files keep their time stamps, so that a second run compiles nothing
    cmp -s "$1" "$2" || cp "$1" "$2"
}
take setup.py "$copy/setup.py"
printf '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "flintmq-sim"\nversion = "0"\n' > "$copy/pyproject.toml"
for part in core scheduler; do
    mkdir -p "$copy/src/flintmq/$part"
    for file in src/flintmq/"$part"/*.py src/flintmq/"$part"/*.pxd; do
        [ -f "$file" ] || continue
        [ -n "$patch" ] && [ "$part" = scheduler ] && cp "$file" "$copy/$file.new" && continue
        take "$file" "$copy/$file"
    done
done
mkdir -p "$copy/src/flintmq/config"
for file in src/flintmq/__init__.py src/flintmq/__init__.pxd src/flintmq/clock.py src/flintmq/config/*.py src/flintmq/errors.py src/flintmq/slotted.py; do
    take "$file" "$copy/$file"
done
for file in tools/actor_sim/scenes/*; do
    [ -f "$file" ] && take "$file" "$copy/src/flintmq/actor_sim/$(basename "$file")"
done
if [ -n "$patch" ]; then # patched files, too, are only touched when they differ
    (cd "$copy" && "$python" "$root/tools/actor_sim/mutants_source.py" "$patch" src/flintmq/scheduler)
    for file in "$copy"/src/flintmq/scheduler/*.new; do
        cmp -s "$file" "${file%.new}" || cp "$file" "${file%.new}"
        rm "$file"
    done
fi
for file in sim.h sim.c plain.h; do take "tools/actor_sim/$file" "$copy/sim/$file"; done

cd "$copy"
sum=$(cat sim/* setup.py src/flintmq/core/*.p* src/flintmq/scheduler/*.p* src/flintmq/actor_sim/*.p* | cksum)
if [ "$(cat .built 2>/dev/null)" != "$sum" ]; then
    rm -f .built
    [ sim/$kind.h -nt .sim ] && find build src -name '*.so' -delete 2>/dev/null || true
    [ -n "$plain" ] || ${CC:-cc} -O2 -Wall -Wextra -fPIC -shared -o libactorsim.so sim/sim.c
    touch .sim
    compile() { # modules, flags
        FLINTMQ_ONLY=${1#,} FLINTMQ_CFLAGS="$2 -include $root/$copy/sim/$kind.h -Wno-unused" \
            "$python" setup.py -q build_ext --inplace >build.log 2>&1 || { tail -n 40 build.log >&2; exit 1; }
    }
    watched=
    others=
    for file in src/flintmq/core/*.pxd src/flintmq/scheduler/*.pxd src/flintmq/actor_sim/*.pxd; do
        name=${file%.pxd}
        [ -f "$name.py" ] && [ "$(basename "$name")" != __init__ ] || continue
        module=$(echo "${name#src/}" | tr / .)
        case $kind:$name in
        plain:*/actor_sim/load | plain:*/actor_sim/parked | plain:*/actor_sim/compat) others=$others,$module ;;
        *:*/actor_sim/parked | plain:*/actor_sim/*) ;;
        *:*/scheduler/*) watched=$watched,$module ;;
        *:*/core/*) grep -qs "core.$(basename "$name") \|core import.*$(basename "$name")" src/flintmq/scheduler/*.p* src/flintmq/actor_sim/*.p* && others=$others,$module ;;
        *) others=$others,$module ;;
        esac
    done
    if [ -n "$plain" ]; then
        compile "$watched$others" -O2
    else # what runs in the scheduler's modules may be interrupted at any load or store; scenes and checks only where they say so
        compile "$watched" "-O1 -fsanitize=thread"
        compile "$others" -O1
    fi
    echo "$sum" > .built
fi
echo "$root/$copy/src"
