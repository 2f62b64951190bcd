"""Who may connect over loopback: processes of this process's own user, and root's. Linux only.

The kernel is asked for the peer's end of the connection: over netlink, which finds one socket among any number in
constant time; where that is not possible, in /proc/net/tcp and tcp6. A socket that was closed belongs to no user any
more, and the kernel then reports root: only one that a process still holds, which has an inode, counts.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

CAN_ASK = sys.platform == "linux"

Address: TypeAlias = "tuple[str, int]"

# <linux/sock_diag.h>, <linux/inet_diag.h>, <linux/netlink.h>
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; the socket's own port and its peer's; then addresses
REQUEST = struct.Struct("=BBBxI")
PORTS = struct.Struct(">HH")
ADDRESS_BYTES = 16
ANY_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
ID_SIZE = PORTS.size + 2 * ADDRESS_BYTES + len(ANY_INTERFACE_NO_COOKIE)
# family, state, timer, retransmissions, the id, then expires, rqueue, wqueue, uid, inode
RESPONSE = struct.Struct(f"=BBBB{ID_SIZE}sIIIII")
ALL_STATES = 0xFFFFFFFF
ANSWER_SECONDS = 2.0

# Columns of /proc/net/tcp.
LOCAL, REMOTE, UID, INODE = 1, 2, 7, 9
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class Owner(NamedTuple):
    """The user of a socket; ``inode`` is 0 if no process holds it any more."""

    uid: int
    inode: int


def is_own_user(connection: socket.socket) -> bool:
    """Whether the other end of a loopback connection belongs to this user, or to root. Not found: no."""
    owner = owner_of_peer(connection.getpeername()[:2], connection.getsockname()[:2])
    return owner is not None and owner.inode != 0 and owner.uid in (0, os.geteuid())


def owner_of_peer(peer: Address, own: Address) -> Owner | None:
    """The user of the socket that is bound to ``peer`` and connected to ``own``; None if it is not found."""
    try:
        found = _asked(peer, own)
    except OSError:
        found = _listed(peer, own)
    return found


def _asked(peer: Address, own: Address) -> Owner | None:
    """Raises: OSError where netlink does not tell, and for a socket that it does not find."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    addresses = b"".join(socket.inet_pton(family, host).ljust(ADDRESS_BYTES, b"\0") for host in (peer[0], own[0]))
    wanted = PORTS.pack(peer[1], own[1]) + addresses
    body = REQUEST.pack(family, socket.IPPROTO_TCP, 0, ALL_STATES) + wanted + ANY_INTERFACE_NO_COOKIE
    head = HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    with socket.socket(getattr(socket, "AF_NETLINK", -1), socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        kernel.sendto(head + body, (0, 0))
        answer = kernel.recv(4096)
    if len(answer) < HEADER.size + RESPONSE.size or HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        raise OSError("netlink does not find the socket")
    _, _, _, _, found, _, _, _, uid, inode = RESPONSE.unpack_from(answer, HEADER.size)
    # A listening socket on the peer's port would also be an answer.
    return Owner(uid, inode) if found[: PORTS.size] == wanted[: PORTS.size] else None


def _listed(peer: Address, own: Address) -> Owner | None:
    wanted = _key(peer), _key(own)
    for table in TABLES:
        try:
            text = Path(table).read_text("ascii")
        except OSError:
            continue
        for line in text.splitlines()[1:]:
            # First a cheap look: there may be tens of thousands.
            if f":{peer[1]:04X} " not in line:
                continue
            columns = line.split()
            if (_key_of_text(columns[LOCAL]), _key_of_text(columns[REMOTE])) == wanted:
                return Owner(int(columns[UID]), int(columns[INODE]))
    return None


def _key(address: Address) -> tuple[str, int]:
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip), address[1]


def _key_of_text(text: str) -> tuple[str, int]:
    """An address of the table: hexadecimal, each 4 bytes as a number in the machine's own order."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8)]
    return _key((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
