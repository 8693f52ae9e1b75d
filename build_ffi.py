"""Build libvllm.so: cffi's embedding over include/vllm.h and csrc/, with SONAME, symbol version and pkg-config file.

`include/vllm.h` is the only place where the interface is written. The types that cffi is told, and the list of symbols
that are exported, are read from it.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cffi
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
HEADER = ROOT / "include" / "vllm.h"
CSRC = ROOT / "csrc"
KERNELS, KERNELS_NAME = CSRC / "kernels", "pyvllm.lib.libvllm_kernels"
SONAME = "libvllm.so.21"
VERSION_NODE = "VLLM_21"
C_SOURCES = ("report.c", "home.c", "start.c", "leave.c", "signals.c")
WARNINGS = ["-Wall", "-Wextra"]
C_FLAGS = ["-std=gnu11", "-fvisibility=hidden", *WARNINGS, "-Wno-unused-parameter"]
#: Of the CPU kernels. The instruction set is chosen in the sources and at run time, never by the machine that compiles.
KERNEL_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]

#: What cffi runs once Python is up. It sets the flag that says so last; a failure becomes the error text.
BIND = """
from pyvllm._libvllm import ffi, lib
try:
    from pyvllm import capi
    capi.bind(ffi, lib)
    lib.vllm__mark_bound()
except BaseException as error:
    lib.vllm__set_error(f"cannot start pyvllm: {type(error).__name__}: {error}".encode("utf-8", "replace"))
"""

PREAMBLE = """
#include "internal.h"
#include "python_calls.h"
#include "api.c"
"""


def declarations(path):
    """Return a header's declarations as text: no comments, no preprocessor lines, no `extern "C"`."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Interface:
    """What include/vllm.h declares."""

    types: str
    """The typedefs, as cffi's cdef takes them."""
    functions: tuple[str, ...]
    """Names of the exported functions."""
    version: str
    """VLLM_VERSION."""


def read_interface():
    """Read the public header."""
    body = declarations(HEADER)
    version = re.search(r'^#define VLLM_VERSION "(.+)"$', HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    types, _, functions = body.partition("VLLM_API")
    return Interface(types, tuple(re.findall(r"\b(vllm_\w+)\(", functions)), version.group(1))


def make_ffi():
    """Build the cffi side: the header's types, what each side may call, and what binds them."""
    ffi = cffi.FFI()
    ffi.cdef(read_interface().types)
    ffi.cdef(declarations(CSRC / "python_side.h"))
    calls = declarations(CSRC / "python_calls.h").replace("static ", "")
    ffi.cdef(f'extern "Python" {{ {calls} }}')
    ffi.embedding_api("")  # turns embedding on; the public functions are in csrc/api.c
    ffi.embedding_init_code(BIND)
    ffi.set_source("pyvllm._libvllm", PREAMBLE)
    return ffi


def version_script(directory):
    """Write the linker's list of exported symbols and return its path."""
    names = "".join(f"    {name};\n" for name in read_interface().functions)
    path = Path(directory) / "libvllm.map"
    path.write_text(f"{VERSION_NODE} {{\n  global:\n{names}  local: *;\n}};\n", encoding="utf-8")
    return path


def compile_stub(path):
    """Compile libvllm.so.21, which does nothing but need the libvllm.so beside it.

    Programs look for the SONAME and linkers for libvllm.so. A wheel holds no symbolic links, and two copies of the
    library would be two libraries in one process.
    """
    compiler = sysconfig.get_config_var("CC").split()
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        (here / "empty.c").touch()
        (here / "stub.map").write_text(f"{VERSION_NODE} {{ local: *; }};\n")
        shared = [*compiler, "-shared", "-fPIC", str(here / "empty.c")]
        target = here / "libvllm.so"
        subprocess.check_call([*shared, "-o", str(target), "-Wl,-soname,libvllm.so"])
        link = [f"-Wl,-soname,{SONAME}", "-Wl,-rpath,$ORIGIN", f"-Wl,--version-script={here / 'stub.map'}"]
        subprocess.check_call([*shared, "-o", str(path), "-Wl,--no-as-needed", str(target), *link])


def write_pkg_config(path):
    """Write vllm.pc; it finds its files from its own place, so that the package can be moved."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "prefix=${pcfiledir}/../..\n"
        "libdir=${prefix}/lib\n"
        "includedir=${prefix}/include\n"
        "\n"
        "Name: vllm\n"
        "Description: language models larger than the device, with vLLM's weight offload settings\n"
        f"Version: {read_interface().version}\n"
        "Cflags: -I${includedir}\n"
        "Libs: -L${libdir} -Wl,-rpath,${libdir} -lvllm\n",
        encoding="utf-8",
    )


def companions(package):
    """Return the files that stand beside libvllm.so in the package: stub, pkg-config file, header."""
    return [package / "lib" / SONAME, package / "lib" / "pkgconfig" / "vllm.pc", package / "include" / "vllm.h"]


def write_companions(package, is_editable):
    """Write those files; an editable install links to the header."""
    stub, pkg_config, header = companions(package)
    compile_stub(stub)
    write_pkg_config(pkg_config)
    header.parent.mkdir(exist_ok=True)
    header.unlink(missing_ok=True)
    if is_editable:
        header.symlink_to(os.path.relpath(HEADER, header.parent))
    else:
        shutil.copyfile(HEADER, header)


def write_kernels_abi(path):
    """Write the Python module that tells cffi what libvllm_kernels.so declares; no header is parsed at start then."""
    ffi = cffi.FFI()
    ffi.cdef(declarations(KERNELS / "interface.h"))
    ffi.set_source("kernels_abi", None)
    ffi.emit_python_code(str(path))


class BuildLibvllm(build_ext):
    """`build_ext` for the libraries of `pyvllm.lib`, which are shared libraries for C and no extension modules."""

    def get_ext_filename(self, fullname):
        """Name the file without the tag that an extension module has."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext):
        """Generate the C source, compile and link, then write what stands beside the library."""
        if ext.name == KERNELS_NAME:
            self._build_kernels(ext)
            return
        os.makedirs(self.build_temp, exist_ok=True)
        generated = os.path.join(self.build_temp, "_libvllm.c")
        make_ffi().emit_c_code(generated)
        ext.sources = [generated, *(os.path.relpath(CSRC / name) for name in C_SOURCES)]
        ext.depends = [str(path) for path in (HEADER, ROOT / "build_ffi.py", *CSRC.iterdir())]
        ext.include_dirs = [str(HEADER.parent), str(CSRC)]
        ext.define_macros = [("VLLM_BUILD_PYTHON", f'"{sys.executable}"')]
        ext.extra_compile_args = C_FLAGS
        self._set_link(ext)
        super().build_extension(ext)
        write_companions(Path(self.get_ext_fullpath(ext.name)).parents[1], is_editable=False)

    def _build_kernels(self, ext):
        """Compile the CPU kernels. They are optional: without them, layers compute with torch."""
        ext.sources = [os.path.relpath(path) for path in sorted(KERNELS.glob("*.cpp"))]
        ext.depends = [str(path) for path in KERNELS.iterdir()]
        ext.extra_compile_args = [*KERNEL_FLAGS, *WARNINGS]
        # Its threads run in it until the last engine is gone, whatever order Python lets go in.
        ext.libraries, ext.extra_link_args, ext.optional = ["pthread"], ["-Wl,-z,nodelete"], True
        super().build_extension(ext)
        write_kernels_abi(Path(self.get_ext_fullpath(ext.name)).parent / "kernels_abi.py")

    def _set_link(self, ext):
        library_directory = sysconfig.get_config_var("LIBDIR")
        ext.library_dirs = [library_directory]
        ext.libraries = [f"python{sysconfig.get_config_var('LDVERSION')}", "dl", "pthread"]
        ext.extra_link_args = [
            f"-Wl,--version-script={version_script(self.build_temp)}",
            f"-Wl,-soname,{SONAME}",
            "-Wl,-z,nodelete",  # neither CPython nor torch can be unloaded
            "-Wl,--no-undefined",
            f"-Wl,-rpath,{library_directory}",
        ]

    def copy_extensions_to_source(self):
        """Put the library into the source tree, for an editable install."""
        (ROOT / "pyvllm" / "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()
        write_kernels_abi(ROOT / "pyvllm" / "lib" / "kernels_abi.py")
        write_companions(ROOT / "pyvllm", is_editable=True)

    def get_outputs(self):
        """List every file that was built, so that a wheel and an uninstall know them."""
        built = super().get_outputs()
        directory = Path(built[0]).parent
        return [*built, str(directory / "kernels_abi.py"), *map(str, companions(directory.parent))]
