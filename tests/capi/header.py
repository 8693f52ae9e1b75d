"""Read include/vllm.h with pycparser: what the header says, without the code that the build uses for it."""

import re
import subprocess
from functools import cache

from pycparser import c_ast, c_parser

from tests.capi.toolchain import HEADER

_KNOWN_TYPES = "".join(
    f"typedef int {name};\n" for name in ("int32_t", "int64_t", "uint64_t", "uintptr_t", "size_t", "bool")
)


@cache
def tree():
    """Return the syntax tree of the header's declarations."""
    command = ["gcc", "-fpreprocessed", "-dD", "-E", "-P", str(HEADER)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return c_parser.CParser().parse(_KNOWN_TYPES + text.replace("VLLM_API ", ""))


def spelled(node):
    """Write a type as in C, such as `const char*`."""
    if isinstance(node, c_ast.TypeDecl | c_ast.Typename):
        return spelled(node.type) if not node.quals else f"{' '.join(node.quals)} {spelled(node.type)}"
    if isinstance(node, c_ast.PtrDecl):
        return f"{spelled(node.type)}*{' const' if 'const' in node.quals else ''}"
    return " ".join(node.names) if isinstance(node, c_ast.IdentifierType) else type(node).__name__


def functions():
    """Return, by name, each function's result type and its parameters as (name, type)."""
    found = {}
    for node in tree().ext:
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            found[node.name] = _signature(node.type)
    return found


def callbacks():
    """Return, by typedef, each callback's result type and its parameters."""
    return {
        node.name: _signature(node.type.type)
        for node in tree().ext
        if isinstance(node, c_ast.Typedef)
        and isinstance(node.type, c_ast.PtrDecl)
        and isinstance(node.type.type, c_ast.FuncDecl)
    }


def structs():
    """Return, by name, each structure's fields as (name, type)."""
    found = {}
    for node in tree().ext:
        inner = node.type.type if isinstance(node, c_ast.Typedef) and isinstance(node.type, c_ast.TypeDecl) else None
        if isinstance(inner, c_ast.Struct) and inner.decls:
            found[node.name] = [(field.name, spelled(field.type)) for field in inner.decls]
    return found


def enums():
    """Return, by name, each enumeration's values by name."""
    found = {}
    for node in tree().ext:
        inner = node.type.type if isinstance(node, c_ast.Typedef) and isinstance(node.type, c_ast.TypeDecl) else None
        if isinstance(inner, c_ast.Enum):
            found[node.name] = {item.name: int(item.value.value) for item in inner.values.enumerators}
    return found


def _signature(node):
    given = node.args.params if node.args else []
    parameters = [(item.name, spelled(item.type)) for item in given]
    return spelled(node.type), [] if parameters == [(None, "void")] else parameters
