"""TLS on the I/O loop: encrypted bytes in, clear bytes out, and back, over memory buffers.

The loop moves encrypted bytes like any others; this layer turns them into clear ones for the engine. It runs under the GIL, once
per read and once per flush of a TLS connection.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from flintmq.errors import OperatorError

# bytes of clear text taken from OpenSSL at a time: one TLS record at most
RECORD_SIZE = 16 * 1024


def server_context(cert_file: str, key_file: str | None, ca_file: str | None = None, require_client: bool = False) -> ssl.SSLContext:
    """Context of the listener: TLS 1.2 or newer.

    Args: ca_file: who signs certificates of clients, which are asked for then; require_client: a client without one is cut.
    Raises: OperatorError (78) naming the file that is missing or does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file)
    except FileNotFoundError as error:
        raise OperatorError(f"--tls-cert/--tls-key: no such file: {error.filename or f'{cert_file} or {key_file}'}") from error
    except (ssl.SSLError, OSError) as error:
        key = f"--tls-key {key_file}" if key_file else "no --tls-key"
        raise OperatorError(f"--tls-cert {cert_file}, {key}: not a certificate and its private key in PEM form ({error})") from error
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (ssl.SSLError, OSError) as error:
            raise OperatorError(f"--tls-ca {ca_file}: no certificates in PEM form ({error})") from error
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    return context


def client_context(ca_file: str, cert_file: str, key_file: str | None) -> ssl.SSLContext:
    """Context of connections to other nodes, whose certificates these authorities have signed, for the host that is dialled; this node
    shows its own one.

    Raises: OperatorError (78) naming the file that is missing or does not fit."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, OSError) as error:
        raise OperatorError(f"--cluster-ca {ca_file}: no certificates in PEM form ({error})") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert_file, key_file)  # the listener's context has been made of them
    return context


class TlsLayer:
    """One connection's TLS state."""

    NAME = "TLS"
    # whether bytes pass as they are from now on
    over = False

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.eof = False

    def certificate(self) -> dict[str, Any]:
        """The certificate of the peer, which was verified; {}: it showed none, or none is asked for."""
        return self._object.getpeercert() or {} if self.established else {}

    def receive(self, data: bytes) -> bytes:
        """Takes encrypted bytes, returns what they mean. Raises ssl.SSLError (an OSError) when they mean nothing."""
        self._incoming.write(data)
        if not self.established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.established = True
        pieces = []
        while True:
            try:
                piece = self._object.read(RECORD_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.eof = True
                with contextlib.suppress(ssl.SSLError):
                    self._object.unwrap()  # a client that ends its stream may wait for our end of it
                break
            pieces.append(piece)
        return b"".join(pieces)

    def send(self, clear: bytes) -> bytes:
        """Encrypts `clear`; returns everything that must go on the wire now."""
        view = memoryview(clear)
        while view:
            view = view[self._object.write(view) :]
        return self.pending()

    def pending(self) -> bytes:
        """Encrypted bytes that wait (handshake, alerts)."""
        return self._outgoing.read()
