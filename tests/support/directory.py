"""An LDAP directory of our own for tests: Debian's slapd, its own data directory, free loopback ports, stopped by pid.

in: entries as LDIF. out: `Directory`, or `servers.Unavailable` with the reason to skip. Rules S1-S3 of servers.py hold here too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import Unavailable, ensure_debian_packages, free_ports

PACKAGE = "slapd"
START_S_MAX = 60.0
SCHEMAS = Path("/etc/ldap/schema")
BASE = "dc=example,dc=org"
PEOPLE, GROUPS = f"ou=people,{BASE}", f"ou=groups,{BASE}"
SERVICE, SERVICE_PASSWORD = f"cn=broker,{BASE}", "service-password"
USER_DN = f"uid=${{username}},{PEOPLE}"

_ENTRIES = f"""\
dn: {BASE}
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people

dn: {GROUPS}
objectClass: organizationalUnit
ou: groups

dn: {SERVICE}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: broker
userPassword: {SERVICE_PASSWORD}
"""


def person(uid: str, password: str, *more: str) -> str:
    lines = ["objectClass: inetOrgPerson", f"uid: {uid}", f"cn: {uid}", f"sn: {uid}", f"userPassword: {password}", *more]
    return "\n".join([f"dn: uid={uid},{PEOPLE}", *lines]) + "\n"


def group(name: str, *members: str) -> str:
    return "\n".join([f"dn: cn={name},{GROUPS}", "objectClass: groupOfNames", f"cn: {name}", *(f"member: {one}" for one in members)]) + "\n"


def dn_of(uid: str) -> str:
    return f"uid={uid},{PEOPLE}"


@dataclass(frozen=True, slots=True)
class Directory:
    """port: plain and STARTTLS; tls_port: ldaps. Certificate of `localhost` and 127.0.0.1."""

    port: int
    tls_port: int
    pid: int

    @property
    def url(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"


def slapd_program() -> str:
    """Installs Debian's slapd when it is not there and may be. Raises: Unavailable."""
    program = shutil.which("slapd", path="/usr/sbin:/usr/local/sbin:/usr/lib/openldap")
    if program is None:
        reason = ensure_debian_packages([PACKAGE])
        program = shutil.which("slapd", path="/usr/sbin")
        if program is None:
            raise Unavailable(reason or "the package has no slapd program")
    return program


@contextlib.contextmanager
def directory(certificate: tuple[str, str], *entries: str) -> Iterator[Directory]:
    """A running directory; gone afterwards. Users see all but passwords, strangers nothing.

    Raises: Unavailable.
    """
    program = slapd_program()
    base = Path(tempfile.mkdtemp(prefix="flintmq-slapd-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        (base / "data").mkdir()
        config = base / "slapd.conf"
        config.write_text(
            "\n".join(
                [
                    *(f"include {SCHEMAS}/{name}.schema" for name in ("core", "cosine", "inetorgperson")),
                    "modulepath /usr/lib/ldap",
                    "moduleload back_mdb",
                    f"pidfile {base}/pid",
                    f"TLSCertificateFile {certificate[0]}",
                    f"TLSCertificateKeyFile {certificate[1]}",
                    "database mdb",
                    f'suffix "{BASE}"',
                    f"directory {base}/data",
                    "maxsize 16777216",
                    "access to attrs=userPassword by anonymous auth by * none",
                    f'access to dn.subtree="{PEOPLE}" by dn.exact="{SERVICE}" read by users read by anonymous auth by * none',
                    "access to * by users read by anonymous auth",
                    "",
                ]
            )
        )
        ldif = base / "data.ldif"
        ldif.write_text("\n".join([_ENTRIES, *entries]))
        # Another program than ours: under a sanitizer's runtime that the tests run with it hangs.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        add = [program, "-T", "add", "-f", config, "-l", ldif]
        done = subprocess.run(add, env=environment, capture_output=True, text=True, timeout=START_S_MAX, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"slapadd failed: {done.stderr[-1000:]}")
        port, tls_port = free_ports(2)
        log = base / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, "-f", config, "-h", f"ldap://127.0.0.1:{port}/ ldaps://127.0.0.1:{tls_port}/", "-d", "0"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        stack.callback(_stop, process)
        for one in (port, tls_port):
            _wait(one, process, log)
        yield Directory(port, tls_port, process.pid)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 2).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"slapd did not start; its log ends with:\n{log.read_text(errors='replace')[-2000:]}") from None
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    if process.poll() is None:
        process.kill()
    process.wait()
