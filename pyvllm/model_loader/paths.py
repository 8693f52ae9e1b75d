"""Opening the files of a model: which names, which kinds of file, and how far a symbolic link may lead.

Nothing here reads what is in a file.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from errno import ELOOP

from pyvllm.errors import FormatError, ModelLoadError

#: Longest file name that common file systems allow, in bytes.
MAX_FILE_NAME_BYTES = 255
#: How many entries a model directory may have.
MAX_DIRECTORY_ENTRIES = 100_000

# Without O_NONBLOCK, opening a FIFO waits for a writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file that is open for reading; everything is read through its descriptor, never by path again."""

    fd: int
    name: str
    """Name for errors, without its directory."""
    size: int
    identity: tuple[int, int, int, int]
    """Device, inode, size and time of change: equal for two openings of one unchanged file."""

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`; raises FormatError when the file ends before them."""
        data = bytearray(length)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` (writable, one byte per item) from `offset` on.

        Raises FormatError when the file ends before, ModelLoadError when the system cannot read it.
        """
        done, length = 0, len(view)
        while done < length:
            try:
                count = os.preadv(self.fd, [view[done:]], offset + done)
            except OSError as error:
                raise ModelLoadError(f"{self.name}: cannot be read at byte {offset + done}: {error.strerror}") from None
            if count == 0:
                end = offset + done
                raise FormatError(f"{self.name}: truncated: {length} bytes asked for at {offset}, it ends at {end}")
            done += count

    def read_all(self, max_bytes: int) -> bytes:
        """Read the whole file, which may have at most `max_bytes`."""
        if self.size > max_bytes:
            raise FormatError(f"{self.name}: has {self.size} bytes; at most {max_bytes} are read")
        return self.read(0, self.size)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def open_regular(path: str, name: str, dir_fd: int | None = None, flags: int = 0) -> OpenFile:
    """Open `path` for reading and require a regular file.

    name: what to call it in errors. dir_fd: directory that a relative path starts from.
    Raises OSError from the opening itself, ModelLoadError for anything but a regular file.
    """
    fd = os.open(path, _OPEN_FLAGS | flags, dir_fd=dir_fd)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = next((text for test, text in _KINDS if test(status.st_mode)), "something else")
        raise ModelLoadError(f"{name}: must be a regular file, found {kind}")
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return OpenFile(fd, name, status.st_size, identity)


def check_shard_name(name: object, origin: str) -> str:
    """Return `name` if it is a plain `.safetensors` file name; raise FormatError, naming `origin`, if it is not."""
    if not isinstance(name, str):
        raise FormatError(f"{origin}: a file name must be a string, found {name!r:.100}")
    rule = None
    if "/" in name or "\\" in name or re.match(r"[A-Za-z]:", name):
        rule = "must be a plain file name inside the model directory"
    elif name.startswith(".") or not name.isprintable():
        rule = "must be printable and not start with a dot"
    elif not name.endswith(".safetensors"):
        rule = "must end in .safetensors"
    elif len(name.encode("utf-8")) > MAX_FILE_NAME_BYTES:
        rule = f"must have at most {MAX_FILE_NAME_BYTES} bytes"
    if rule:
        raise FormatError(f"{origin}: file name {name[:100]!r} {rule}")
    return name


class ModelDirectory:
    """An open model directory, a context manager; its files are opened relative to its descriptor.

    A symbolic link is followed when it ends inside the directory, or in `../../blobs` when the directory is
    `.../snapshots/<revision>` (the cache of huggingface_hub); any other link is refused.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        self._real = os.path.realpath(path)

    def __enter__(self) -> "ModelDirectory":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def names(self) -> list[str]:
        """List the entries, sorted, without those that start with a dot."""
        found: list[str] = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) > MAX_DIRECTORY_ENTRIES:
                    raise ModelLoadError(f"the model directory has more than {MAX_DIRECTORY_ENTRIES} entries")
        return sorted(name for name in found if not name.startswith("."))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Say which of `names` do not exist; opens nothing."""
        return [name for name in names if not self._exists(name)]

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # there, but not usable: opening it tells why
        return True

    def open(self, name: str) -> OpenFile:
        """Open a regular file of the directory.

        name: one path component. Raises ModelLoadError if it is missing, cannot be opened, is not a regular file, or is
        a symbolic link that leads out of the model.
        """
        try:
            try:
                return open_regular(name, name, dir_fd=self._fd, flags=os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != ELOOP:  # what O_NOFOLLOW says of a symbolic link
                    raise
            return open_regular(self._target(name), name, flags=os.O_NOFOLLOW)
        except OSError as error:
            raise ModelLoadError(f"{name}: cannot be opened: {error.strerror}") from None

    def _target(self, name: str) -> str:
        target = os.path.realpath(os.path.join(self._real, name), strict=True)
        roots = [self._real]
        parent = os.path.dirname(self._real)
        if os.path.basename(parent) == "snapshots":
            roots.append(os.path.join(os.path.dirname(parent), "blobs"))
        if not any(target.startswith(os.path.join(root, "")) for root in roots):
            raise ModelLoadError(f"{name}: is a symbolic link that leads out of the model directory")
        return target
