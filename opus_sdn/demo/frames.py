"""Length-prefixed frames: how the launcher, its fork server and the ranks tell their messages apart.

The bytes travel over a socket or pipe that only these processes hold; they are never read from a network.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest message. A result above it is a mistake of the program: results are figures, not models."""

_HEADER = struct.Struct("!I")


class FrameTooLargeError(ValueError):
    """A message above `MAX_FRAME_BYTES`, or a stream that is not made of frames."""


def write_frame(fd: int, payload: bytes) -> None:
    """Write one frame to a blocking descriptor, whole. Raises FrameTooLargeError, OSError."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLargeError(
            f"frame: {len(payload)} bytes; at most {MAX_FRAME_BYTES}: return figures, not tensors or models"
        )
    rest = memoryview(_HEADER.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(fd, rest) :]


class FrameReader:
    """Cuts a byte stream into frames, however the bytes arrive."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take `data` and yield every frame that is complete with it. Raises FrameTooLargeError."""
        self._bytes += data
        while len(self._bytes) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._bytes)
            if size > MAX_FRAME_BYTES:
                raise FrameTooLargeError(f"frame: announced as {size} bytes; at most {MAX_FRAME_BYTES}")
            end = _HEADER.size + size
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[_HEADER.size : end])
            del self._bytes[:end]
            yield frame
