"""Stands for the IDE, and talks: `python talking_ide.py SOCKET`. It speaks WebSocket, and misbehaves on request.

`/ws…`: every message comes back. `/big/N`: N bytes. `/drip`: chunks without end. `/silent`: no answer. `/garbage`: no
HTTP. `/early`: it hangs up. `/half`: it hangs up in the middle of the answer. Anything else: what was asked for.
"""

import asyncio
import sys
from base64 import b64encode
from hashlib import sha1

import uvloop

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PIECE = b"y" * 65536


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await answered(reader, writer):
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection goes on."""
    head = await reader.readuntil(b"\r\n\r\n")
    target = head.split(b" ", 2)[1]
    kind, _, amount = target.partition(b"?")[0].lstrip(b"/").partition(b"/")
    if kind.startswith(b"ws"):
        writer.write(switch(head))
        await echo(reader, writer)
        return False
    if kind in MISBEHAVIOUR:
        writer.write(MISBEHAVIOUR[kind])
        return False
    if kind == b"silent":
        return bool(await reader.read(1))
    if kind == b"big":
        await send_big(writer, int(amount))
    elif kind == b"drip":
        await drip(writer)
    else:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(target) + target
        )
    return True


MISBEHAVIOUR = {
    b"garbage": b"SSH-2.0-OpenSSH_9.9\r\nnothing like HTTP\r\n\r\n",
    b"early": b"",
    b"half": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nten bytes.",
}


def switch(head: bytes) -> bytes:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    key = next((value.strip() for name, _, value in lines if name.lower() == b"sec-websocket-key"), b"")
    accept = b64encode(sha1(key + MAGIC, usedforsecurity=False).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    return head + b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept


async def send_big(writer: asyncio.StreamWriter, size: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    for start in range(0, size, len(PIECE)):
        writer.write(PIECE[: size - start])
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"5\r\ndrip\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        first, second = await reader.readexactly(2)
        length = second & 0x7F
        if length > 125:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
        key = await reader.readexactly(4)
        payload = await reader.readexactly(length)
        stream = (key * (length // 4 + 1))[:length]
        plain = (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(length, "big")
        writer.write(bytes([first]) + sized(length) + plain)
        await writer.drain()
        if first & 0xF == 8:
            return


def sized(length: int) -> bytes:
    if length < 126:
        return bytes([length])
    return b"\x7e" + length.to_bytes(2, "big") if length < 65536 else b"\x7f" + length.to_bytes(8, "big")


async def main() -> None:
    server = await asyncio.start_unix_server(serve, sys.argv[1], backlog=4096, limit=1 << 17)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
