"""Any call to workdird over D-Bus, wrong ones included: libsystemd's sd-bus through ctypes, which
is there wherever systemd is, takes values that no command line could, and passes descriptors."""

import ctypes
import os

_lib = ctypes.CDLL("libsystemd.so.0")
_NUMBERS = {"y": ctypes.c_uint8, "b": ctypes.c_int, "n": ctypes.c_int16, "q": ctypes.c_uint16,
            "i": ctypes.c_int32, "u": ctypes.c_uint32, "x": ctypes.c_int64, "t": ctypes.c_uint64,
            "d": ctypes.c_double, "h": ctypes.c_int}
_message_p = ctypes.c_void_p

NAME = "dev.workdir1"
ROOT = "/dev/workdir1"


class _Error(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("message", ctypes.c_char_p),
                ("need_free", ctypes.c_int)]


class BusError(Exception):
    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


def _check(rc, what):
    if rc < 0:
        raise OSError(-rc, f"{what}: {os.strerror(-rc)}")
    return rc


def _split(signature):
    """The first complete type of a signature, and the rest."""
    if signature[0] == "a":
        first, rest = _split(signature[1:])
        return "a" + first, rest
    if signature[0] in "({":
        depth = 0
        for at, char in enumerate(signature):
            depth += (char in "({") - (char in ")}")
            if depth == 0:
                return signature[:at + 1], signature[at + 1:]
    return signature[0], signature[1:]


def _open(message, kind, contents):
    _check(_lib.sd_bus_message_open_container(message, ctypes.c_char(kind.encode()),
                                              contents.encode()), "open_container")


def _close(message):
    _check(_lib.sd_bus_message_close_container(message), "close_container")


def _append(message, kind, value):
    if kind in _NUMBERS:
        number = _NUMBERS[kind](value)
        _check(_lib.sd_bus_message_append_basic(message, ctypes.c_char(kind.encode()),
                                                ctypes.byref(number)), "append")
    elif kind in "sog":
        raw = value if isinstance(value, bytes) else value.encode()
        _check(_lib.sd_bus_message_append_basic(message, ctypes.c_char(kind.encode()),
                                                ctypes.c_char_p(raw)), "append")
    elif kind == "v":  # (signature, value)
        _open(message, "v", value[0])
        _append(message, *value)
        _close(message)
    elif kind[0] == "a":
        _open(message, "a", kind[1:])
        for item in value.items() if kind[1] == "{" else value:
            _append(message, kind[1:], item)
        _close(message)
    else:
        _open(message, "e" if kind[0] == "{" else "r", kind[1:-1])
        rest = kind[1:-1]
        for item in value:
            first, rest = _split(rest)
            _append(message, first, item)
        _close(message)


def _read(message):
    """The next value of a message; None at the end of a container."""
    kind, contents = ctypes.c_char(), ctypes.c_char_p()
    if _check(_lib.sd_bus_message_peek_type(message, ctypes.byref(kind),
                                            ctypes.byref(contents)), "peek") == 0:
        return None
    letter = kind.value.decode()
    if letter in _NUMBERS:
        number = _NUMBERS[letter]()
        _check(_lib.sd_bus_message_read_basic(message, kind, ctypes.byref(number)), "read")
        if letter == "h":  # the message owns it
            return os.dup(number.value)
        return bool(number.value) if letter == "b" else number.value
    if letter in "sog":
        text = ctypes.c_char_p()
        _check(_lib.sd_bus_message_read_basic(message, kind, ctypes.byref(text)), "read")
        return text.value.decode()
    inner = contents.value
    _check(_lib.sd_bus_message_enter_container(message, kind, inner), "enter")
    items = []
    while (item := _read(message)) is not None:
        items.append(item)
    _check(_lib.sd_bus_message_exit_container(message), "exit")
    if letter == "v":
        return items[0]
    return dict(items) if letter == "a" and inner.startswith(b"{") else tuple(items) \
        if letter in "re" else items


class Bus:
    """A connection of its own to the system bus."""

    def __init__(self):
        self._bus = ctypes.c_void_p()
        _check(_lib.sd_bus_open_system(ctypes.byref(self._bus)), "system bus")

    def close(self):
        _lib.sd_bus_flush_close_unref.restype = ctypes.c_void_p
        _lib.sd_bus_flush_close_unref(self._bus)
        self._bus = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _message(self, path, interface, method, signature, values):
        message = _message_p()
        _check(_lib.sd_bus_message_new_method_call(
            self._bus, ctypes.byref(message), NAME.encode(), path.encode(),
            f"{NAME}.{interface}".encode(), method.encode()), "new call")
        rest = signature
        for value in values:
            kind, rest = _split(rest)
            _append(message, kind, value)
        return message

    def send(self, path, interface, method, signature="", *values):
        """Calls a method and does not wait for the answer."""
        message = self._message(path, interface, method, signature, values)
        cookie = ctypes.c_uint64()
        _check(_lib.sd_bus_send(self._bus, message, ctypes.byref(cookie)), "send")
        _lib.sd_bus_message_unref(message)

    def call(self, path, interface, method, signature="", *values, timeout=120):
        """Calls a method of workdird: its one result, or the list of several."""
        reply, error = _message_p(), _Error()
        message = self._message(path, interface, method, signature, values)
        rc = _lib.sd_bus_call(self._bus, message, ctypes.c_uint64(timeout * 1000000),
                              ctypes.byref(error), ctypes.byref(reply))
        _lib.sd_bus_message_unref(message)
        if rc < 0:
            name, text = error.name, error.message
            failure = BusError(name.decode(), (text or b"").decode()) if name else \
                OSError(-rc, os.strerror(-rc))
            _lib.sd_bus_error_free(ctypes.byref(error))
            raise failure
        out = []
        while (item := _read(reply)) is not None:
            out.append(item)
        _lib.sd_bus_message_unref(reply)
        return out[0] if len(out) == 1 else out

    def manager(self, method, signature="", *values, **kwargs):
        return self.call(ROOT, "Manager", method, signature, *values, **kwargs)

    def request_name(self, name):
        return _lib.sd_bus_request_name(self._bus, name.encode(), ctypes.c_uint64(0))
