"""A DEALER and a REQ of any libzmq that each ask three times: python libzmq_client.py LIBRARY ENDPOINT."""

import ctypes
import sys

DEALER, REQ = 5, 3
LINGER, RCVMORE, RCVTIMEO = 17, 13, 27
SNDMORE = 2
BUFFER_BYTES = 10_000

library = ctypes.CDLL(sys.argv[1])
library.zmq_ctx_new.restype = ctypes.c_void_p
library.zmq_socket.restype = ctypes.c_void_p


def set_option(socket: ctypes.c_void_p, option: int, value: int) -> None:
    assert library.zmq_setsockopt(socket, option, ctypes.byref(ctypes.c_int(value)), ctypes.c_size_t(4)) == 0


def send(socket: ctypes.c_void_p, frames: list[bytes]) -> None:
    for number, frame in enumerate(frames, 1):
        flags = SNDMORE if number < len(frames) else 0
        assert library.zmq_send(socket, frame, ctypes.c_size_t(len(frame)), flags) == len(frame)


def receive(socket: ctypes.c_void_p) -> list[bytes]:
    frames, more = [], ctypes.c_int(1)
    buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    while more.value:
        size = library.zmq_recv(socket, buffer, ctypes.c_size_t(BUFFER_BYTES), 0)
        assert size >= 0, "no answer"
        frames.append(buffer.raw[:size])
        library.zmq_getsockopt(socket, RCVMORE, ctypes.byref(more), ctypes.byref(ctypes.c_size_t(4)))
    return frames


def main() -> None:
    context = ctypes.c_void_p(library.zmq_ctx_new())
    for kind, envelope in ((DEALER, [b""]), (REQ, [])):
        socket = ctypes.c_void_p(library.zmq_socket(context, kind))
        set_option(socket, LINGER, 0)
        set_option(socket, RCVTIMEO, 20_000)
        assert library.zmq_connect(socket, sys.argv[2].encode()) == 0
        for number in range(3):
            send(socket, [*envelope, b"Res01", b"GS", b"id-%d" % number])
            answer = receive(socket)[len(envelope) :]
            assert answer[:3] == [b"Res01", b"id-%d" % number, b"SG"], answer
        library.zmq_close(socket)
    library.zmq_ctx_term(context)
    version = [ctypes.c_int() for _ in range(3)]
    library.zmq_version(*map(ctypes.byref, version))
    print("libzmq", ".".join(str(number.value) for number in version), "ok")


main()
