"""Pictures by address, fetched so that nobody can point the service at its own network.

Every name is resolved here, every address it has must be public, and the connection goes to the address that was
checked, so that a second answer of the name server changes nothing. Redirects are checked like the first address.
Size and time are bounded; nothing is unpacked, no cookie or credential is sent, no proxy is asked.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

PORTS = {"http": 80, "https": 443}
REDIRECTS = 3
MAX_URL = 2000  # characters
CHUNK = 64 * 1024
AGENT = "DiffMark verifier"
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class FetchError(ValueError):
    """An address that cannot or may not be fetched; the message says why."""


@dataclass(frozen=True)
class Place:
    """A checked address: where to connect, and what to ask for."""

    scheme: str
    host: str
    port: int
    target: str
    address: str  # the IP address that was checked


def fetch(url: str, most: int, seconds: float) -> bytes:
    """The content at an http(s) address: at most `most` bytes within so many seconds."""
    deadline = time.monotonic() + seconds
    for _ in range(REDIRECTS + 1):
        place = resolve(url)
        status, location, data = _get(place, most, deadline)
        if status not in (301, 302, 303, 307, 308):
            if status != 200:
                raise FetchError(f"the address answered with status {status}")
            return data
        if not location:
            raise FetchError("the address redirects to nowhere")
        url = urljoin(url, location)
    raise FetchError(f"the address redirects more than {REDIRECTS} times")


def resolve(url: str) -> Place:
    """The place of an address; FetchError unless everything about it is public."""
    if len(url) > MAX_URL or not url.isascii() or any(ord(letter) <= 32 for letter in url):
        raise FetchError(f"an address has at most {MAX_URL} characters, ASCII without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchError("this is not an address") from error
    if parts.scheme not in PORTS or not parts.hostname:
        raise FetchError("an address begins with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None:
        raise FetchError("an address here has no user name or password")
    if port not in (None, PORTS[parts.scheme]):
        raise FetchError(f"only the usual ports are asked, not {port}")
    port = PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchError(f"{parts.hostname}: no such host") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(is_public(address) for address in addresses):
        raise FetchError(f"{parts.hostname}: not an address of the public internet")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme, parts.hostname, port, target, addresses[0])


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet, whatever it is wrapped in."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved


class _Pinned(http.client.HTTPConnection):
    """A connection to the address that was checked, under the name that was asked for."""

    def __init__(self, place: Place, timeout: float) -> None:
        super().__init__(place.host, place.port, timeout=timeout)
        self.place = place

    def connect(self) -> None:
        self.sock: Any = socket.create_connection((self.place.address, self.place.port), self.timeout)
        if self.place.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.place.host)

    def cut(self) -> None:
        """End the connection under whoever waits for it."""
        try:
            if self.sock is not None:
                self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself


def _get(place: Place, most: int, deadline: float) -> tuple[int, str | None, bytes]:
    """Status, redirection and content."""

    def left() -> float:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise FetchError("the address answers too slowly")
        return seconds

    connection = _Pinned(place, left())
    watchdog = threading.Timer(left(), connection.cut)  # for who sends a byte now and then
    watchdog.daemon = True
    try:
        watchdog.start()
        headers = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": AGENT}
        connection.request("GET", place.target, headers={**headers, "Connection": "close"})
        connection.sock.settimeout(left())
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, answer.headers.get("Location"), b""
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise FetchError("the address packs its content, which is not unpacked here")
        if int(answer.headers.get("Content-Length") or 0) > most:
            raise FetchError(f"the content has more than {most:,} bytes")
        data = bytearray()
        while True:
            left()
            chunk = answer.read1(CHUNK)
            if not chunk:
                return answer.status, None, bytes(data)
            data += chunk
            if len(data) > most:
                raise FetchError(f"the content has more than {most:,} bytes")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"{place.host}: cannot be fetched ({type(error).__name__})") from error
    finally:
        watchdog.cancel()
        connection.close()
