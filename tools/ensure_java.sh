#!/bin/sh
# Prints a JAVA_HOME with Java 17 or newer, for Spark. Looks at $JAVA_HOME, PATH and the usual places; as root on Debian or Ubuntu it
# installs one, else it says what to install. Only the path goes to stdout. Exit code 69: there is none.
set -u
least=17

# Major version of the java in $1/bin; fails if there is none that starts.
major() {
    [ -x "$1/bin/java" ] || return 1
    "$1/bin/java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1 | grep .
}

# Whether Spark can use it. The module test is for the small runtimes on PyPI, which lack one that Spark always asks for.
usable() {
    version=$(major "$1") && [ "$version" -ge "$least" ] && "$1/bin/java" --list-modules 2>/dev/null | grep -q '^jdk\.incubator\.vector'
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ] && usable "$JAVA_HOME"; then
        echo "$JAVA_HOME"
        return 0
    fi
    if command -v java >/dev/null 2>&1; then
        home=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
        usable "$home" && { echo "$home"; return 0; }
    fi
    for home in /usr/lib/jvm/* /opt/java/* /opt/jdk* /Library/Java/JavaVirtualMachines/*/Contents/Home "${HOME:-/}"/.sdkman/candidates/java/current; do
        usable "$home" && { echo "$home"; return 0; }
    done
    return 1
}

find_java && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Java (apt-get install openjdk-*-jre-headless) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2 || true
    for version in 17 21 25; do
        apt-get install -y -qq --no-install-recommends "openjdk-$version-jre-headless" >/dev/null 2>&1 && find_java && exit 0
    done
fi

{
    echo "Spark needs Java $least or newer, and none was found. Install one, then run this again:"
    echo "  Debian, Ubuntu: apt-get install openjdk-17-jre-headless     Fedora: dnf install java-21-openjdk-headless     macOS: brew install openjdk@17"
    echo "or set JAVA_HOME to where it is."
} >&2
exit 69
