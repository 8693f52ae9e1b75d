"""Files made to break a loader: name -> what is on disk -> the text that refuses it.

A new attack is one row. `SAFETENSORS` rows are the bytes of `model.safetensors`, `INDEXES` rows those of
`model.safetensors.index.json` beside a right `a.safetensors`, `CONFIGS` rows those of `config.json`, `GGUF` rows those
of one GGUF file.
"""

import struct

from .files import (
    Typed,
    array,
    entry,
    gguf_file,
    index_file,
    llama_gguf,
    safetensors_file,
    string,
    strings,
    tensor,
    vectors,
)

GOOD = vectors(x=[1.0, 2.0], y=[3.0])
_DATA = bytes(8)


def _one(dtype="F32", shape=(2,), offsets=(0, 8), data=_DATA, **more):
    fields = {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}
    return safetensors_file({"x": fields}, data)


SAFETENSORS = {
    "empty file": (b"", "model.safetensors: truncated: a safetensors file has at least 8 bytes, found 0"),
    "seven bytes": (bytes(7), "truncated"),
    "header length past the end": (
        safetensors_file({}, length=100),
        "truncated: the header needs 108 bytes, the file has 10",
    ),
    "header length over the limit": (safetensors_file({}, length=100_000_001), "header length 100000001 exceeds"),
    "header length 2**63": (safetensors_file({}, length=2**63), "header length 9223372036854775808 exceeds"),
    "header length 2**64-1": (safetensors_file({}, length=2**64 - 1), "exceeds the format's limit of 100000000"),
    "no header": (safetensors_file(b""), "not a safetensors file"),
    "header is a list": (safetensors_file([]), "must start with '{'"),
    "header begins with a space": (safetensors_file(b" {}"), "must start with '{'"),
    "header is not JSON": (safetensors_file(b"{x}"), "not valid JSON"),
    "header is not UTF-8": (safetensors_file(b'{"\xff": 1}'), "not valid UTF-8 at byte 2"),
    "a pickle": (b"\x80\x02}q\x00X" + bytes(64), "header length"),
    "no tensors": (safetensors_file({}), "has no tensors"),
    "metadata that is no object": (safetensors_file({"__metadata__": [], "x": entry(0, 8)}, _DATA), "__metadata__"),
    "metadata of numbers": (safetensors_file({"__metadata__": {"a": 1}, "x": entry(0, 8)}, _DATA), "__metadata__"),
    "repeated tensor": (
        safetensors_file(b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{}}', _DATA),
        "key 'x' is repeated",
    ),
    "repeated field": (
        safetensors_file(b'{"x":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}', _DATA),
        "key 'dtype' is repeated",
    ),
    "entry is a number": (safetensors_file({"x": 1}), "tensor 'x': must have exactly dtype, shape and data_offsets"),
    "entry without shape": (safetensors_file({"x": {"dtype": "F32", "data_offsets": [0, 0]}}), "must have exactly"),
    "entry with another field": (_one(strides=[1]), "must have exactly dtype, shape and data_offsets"),
    "dtype is a number": (_one(dtype=4), "dtype 4 is not supported"),
    "shape is no list": (_one(shape=2), "tensor 'x': shape must list integers"),
    "shape of strings": (_one(shape=["2"]), "shape must list integers"),
    "shape of booleans": (_one(shape=[True, 2]), "shape must list integers"),
    "fraction in a shape": (_one(shape=[2.0]), "shape must list integers"),
    "negative dimension": (_one(shape=[-2]), "shape must list integers from 0"),
    "two negative dimensions": (_one(shape=[-1, -2]), "shape must list integers from 0"),
    "dimension 2**63": (_one(shape=[2**63]), "shape must list integers from 0 to 2**63-1"),
    "dimension of 4000 digits": (safetensors_file(b'{"x":{"shape":[' + b"9" * 4000 + b"]}}"), "an integer of 4000"),
    "product that wraps 64 bits": (_one(shape=[2**33, 2**31 + 1]), "needs 73786976329197944832 bytes"),
    "product that wraps to the right size": (
        _one(shape=[2**62 + 2]),
        "needs 18446744073709551624 bytes, data_offsets give 8",
    ),
    "more bytes than the shape": (_one(shape=[1]), "shape [1] of F32 needs 4 bytes, data_offsets give 8"),
    "nine dimensions": (_one(shape=[1] * 8 + [2]), "shape has 9 dimensions; at most 8"),
    "offsets of one number": (_one(offsets=[8]), "data_offsets must be [begin, end]"),
    "offsets the wrong way round": (_one(offsets=[8, 0]), "begin <= end"),
    "offset 2**64": (_one(offsets=[2**64 - 8, 2**64]), "data_offsets must list integers from 0 to 2**63-1"),
    "offsets past the end": (_one(offsets=[2**40, 2**40 + 8]), "truncated: the header describes 10995116"),
    "NaN in the header": (safetensors_file(b'{"x":NaN}'), "NaN is not a JSON number"),
    "infinite number": (safetensors_file(b'{"x":1e999}'), "the number 1e999 overflows"),
    "deep nesting": (safetensors_file(b'{"x":' + b"[" * 100_000), "nested too deeply"),
    "name is empty": (safetensors_file({"": entry(0, 8)}, _DATA), "tensor '': a tensor name must be printable"),
    "NUL in a name": (
        safetensors_file({"a\0b": entry(0, 8)}, _DATA),
        r"tensor 'a\x00b': a tensor name must be printable",
    ),
    "lone surrogate in a name": (safetensors_file({"\ud800": entry(0, 8)}, _DATA), "lone surrogate"),
    "name of 513 bytes": (safetensors_file({"n" * 513: entry(0, 8)}, _DATA), "at most 512 bytes, found 513"),
    "overlap": (
        safetensors_file({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12)),
        "tensor 'y': overlaps the tensor before it: begins at 4, expected 8",
    ),
    "same bytes twice": (safetensors_file({"x": entry(0, 8), "y": entry(0, 8)}, _DATA), "tensor 'y': overlaps"),
    "gap": (
        safetensors_file({"x": entry(0, 4), "y": entry(8, 12)}, bytes(12)),
        "tensor 'y': leaves a gap before it: begins at 8, expected 4",
    ),
    "gap at the start": (safetensors_file({"x": entry(4, 12)}, bytes(12)), "tensor 'x': leaves a gap"),
    "bytes after the last tensor": (_one(data=bytes(9)), "1 bytes follow the last tensor"),
    "100,001 tensors": (
        safetensors_file({f"t{number}": entry(0, 0) for number in range(100_001)}),
        "has 100001 tensors; at most 100000",
    ),
    "two million empty objects": (safetensors_file(b'{"x":[' + b"{}," * 1_000_000 + b"{}]}"), "items; at most 2000000"),
}

INDEXES = {
    "not JSON": (b"{", "model.safetensors.index.json: not valid JSON"),
    "no weight_map": (b"{}", "'weight_map' must map tensor names to file names"),
    "weight_map is a list": (b'{"weight_map": []}', "'weight_map' must map"),
    "weight_map is empty": (b'{"weight_map": {}}', "'weight_map' must map"),
    "tensor twice": (b'{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}', "key 'x' is repeated"),
    "file name is a number": (index_file(x=1), "tensor 'x': a file name must be a string"),
    "file name is empty": (index_file(x=""), "file name '' must"),
    "dot": (index_file(x="."), "file name '.' must"),
    "absolute path": (
        index_file(x="/etc/passwd"),
        "'/etc/passwd' must be a plain file name inside the model directory",
    ),
    "parent directory": (index_file(x="../x.safetensors"), "must be a plain file name inside the model directory"),
    "detour": (index_file(x="a/../../x.safetensors"), "must be a plain file name inside the model directory"),
    "backslashes": (index_file(x="..\\x.safetensors"), "must be a plain file name inside the model directory"),
    "drive letter": (index_file(x="C:x.safetensors"), "must be a plain file name inside the model directory"),
    "NUL": (index_file(x="a\0.safetensors"), "must be printable"),
    "hidden file": (index_file(x=".a.safetensors"), "not start with a dot"),
    "pickle": (index_file(x="a.bin"), "'a.bin' must end in .safetensors"),
    "256 bytes": (index_file(x="a" * 244 + ".safetensors"), "must have at most 255 bytes"),
    "bad tensor name": (index_file(**{"x\n": "a.safetensors"}), "a tensor name must be printable"),
    "1,001 files": (
        index_file(**{f"x{number}": f"{number}.safetensors" for number in range(1001)}),
        "names 1001 files; at most 1000",
    ),
    "a million tensors": (
        b'{"weight_map": {' + b",".join(b'"%d":"a.safetensors"' % number for number in range(10**6)) + b"}}",
        "items; at most 500000 are read",
    ),
    "file that is not there": (index_file(x="a.safetensors", y="b.safetensors"), "not there: b.safetensors"),
    "tensor that is not there": (
        index_file(x="a.safetensors", y="a.safetensors", z="a.safetensors"),
        "a.safetensors: tensor 'z': is not there",
    ),
    "file with an unlisted tensor": (index_file(x="a.safetensors"), "a.safetensors: tensor 'y': is not listed in"),
}

CONFIGS = {
    "empty": (b"", "config.json: not valid JSON"),
    "a list": (b"[]", "must be a JSON object, found list"),
    "byte order mark": (b"\xef\xbb\xbf{}", "not valid JSON"),
    "two documents": (b"{}{}", "not valid JSON"),
    "latin-1": (b'{"a": "\xe9"}', "not valid UTF-8 at byte 7"),
    "repeated key": (b'{"hidden_size": 1, "hidden_size": 2}', "key 'hidden_size' is repeated"),
    "NaN": (b'{"rms_norm_eps": NaN}', "NaN is not a JSON number"),
    "Infinity": (b'{"rope_theta": -Infinity}', "-Infinity is not a JSON number"),
    "overflow": (b'{"rope_theta": 1e400}', "the number 1e400 overflows"),
    "5,000 digits": (b'{"hidden_size": ' + b"1" * 5000 + b"}", "an integer of 5000 characters"),
    "100,000 brackets": (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
    "lone surrogate": (b'{"architectures": ["\\ud83d"]}', "lone surrogate"),
    "11 MiB": (b'{"a": "' + b"x" * 11 * 2**20 + b'"}', "at most 10485760 are read"),
    "no architecture": (b"{}", "'architectures' must name exactly one architecture"),
}

_X = [tensor("x", (8,))]
_BYTES = bytes(32)


def _key(key, value):
    return gguf_file([(key, value)], _X, _BYTES)


def _tensor(dims, kind=0, offset=0, data=_BYTES, name="x"):
    return gguf_file([], [tensor(name, dims, kind, offset)], data)


GGUF = {
    "empty file": (b"", "is not a GGUF file"),
    "another magic": (gguf_file([], _X, _BYTES, magic=b"GGML"), "is not a GGUF file"),
    "magic alone": (b"GGUF", "truncated: the version needs 4 bytes at byte 4, 0 are left"),
    "version 1": (gguf_file([], _X, _BYTES, version=1), "GGUF version 1 is not read"),
    "version 4": (gguf_file([], _X, _BYTES, version=4), "GGUF version 4 is not read"),
    "big-endian": (gguf_file([], _X, _BYTES, version=3 << 24), "byte order of a big-endian file"),
    "no tensors": (gguf_file(), "must have from 1 to 100000 tensors, found 0"),
    "2**64-1 tensors": (gguf_file([], _X, num_tensors=2**64 - 1), "found 18446744073709551615"),
    "100,000 tensors in a small file": (gguf_file([], _X, num_tensors=100_000), "truncated: a header of 1 keys"),
    "65,537 keys": (gguf_file([], _X, num_keys=65_537), "has 65537 keys; at most 65536"),
    "65,536 keys in a small file": (gguf_file([], _X, num_keys=65_536), "truncated: a header of 65536 keys"),
    "empty key": (_key("", 1), "key 1: a key must be printable and not empty"),
    "key with a NUL": (_key("a\0", 1), "a key must be printable"),
    "key that is not UTF-8": (_key(b"\xff", 1), "a string is not valid UTF-8"),
    "key of 2**63 bytes": (
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**63) + bytes(64),
        "at most 65535 bytes, found 9223372036854775808",
    ),
    "key past the end": (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 60_000) + bytes(64), "truncated: key 0 needs 60000"),
    "repeated key": (_key("general.architecture", "x"), "key 'general.architecture' is repeated"),
    "value type 13": (_key("a", Typed(13, bytes(8))), "key 'a': value type 13 is unknown"),
    "string over 1 MiB": (_key("a", "x" * (2**20 + 1)), "key 'a': a string has at most 1048576 bytes, found 1048577"),
    "boolean 2": (_key("a", Typed(7, b"\2")), "key 'a': a boolean is stored as 0 or 1, found 2"),
    "array of 2**63 bytes": (_key("a", array(0, 2**63)), "key 'a': an array of 9223372036854775808 elements"),
    "array of 2**63 strings": (_key("a", array(8, 2**63)), "key 'a': an array of 9223372036854775808 elements"),
    "array longer than the file": (
        _key("a", array(10, 1000)),
        "truncated: key 'a': an array of 1000 elements needs 8000",
    ),
    "strings longer than the file": (_key("a", array(8, 1000)), "truncated: key 'a': an array of 1000 elements"),
    "array of arrays": (
        _key("a", array(9, 1, struct.pack("<IQ", 9, 1) * 5000)),
        "key 'a': arrays of arrays are not read",
    ),
    "array of type 99": (_key("a", array(99, 1)), "element type 99 is unknown"),
    "token of 65,537 bytes": (_key("a", strings("x" * 65_537)), "a string has at most 65536 bytes, found 65537"),
    "token that is not UTF-8": (_key("a", strings(b"ok", b"\xff")), "key 'a': a string is not valid UTF-8"),
    "boolean array of twos": (_key("a", array(7, 2, b"\1\2")), "a boolean is stored as 0 or 1, found 2"),
    "alignment 0": (_key("general.alignment", 0), "'general.alignment': must be an integer from 1 to 1048576, found 0"),
    "alignment 2**32": (_key("general.alignment", 2**32), "must be an integer from 1 to 1048576"),
    "alignment 33": (_key("general.alignment", 33), "must be a power of two, found 33"),
    "alignment is a string": (_key("general.alignment", "32"), "must be an integer"),
    "architecture is a number": (
        gguf_file([], _X, _BYTES, architecture=7),
        "key 'general.architecture': must be a string, found 7",
    ),
    "architecture is empty": (gguf_file([], _X, _BYTES, architecture=""), "'general.architecture': is no name"),
    "no dimensions": (_tensor(()), "tensor 'x': must have from 1 to 4 dimensions, found 0"),
    "five dimensions": (_tensor((1,) * 5), "must have from 1 to 4 dimensions, found 5"),
    "2**32-1 dimensions": (
        gguf_file([], [string("x") + struct.pack("<I", 2**32 - 1)], bytes(64)),
        "from 1 to 4 dimensions, found 4294967295",
    ),
    "dimension 0": (_tensor((8, 0)), "dimensions must be at least 1"),
    "dimensions that wrap 64 bits": (_tensor((2**42 + 1, 2**22)), "make less than 2**63 bytes"),
    "dimensions that wrap to 8": (_tensor((2**32, 2**32, 8)), "make less than 2**63 bytes"),
    "bytes that wrap": (_tensor((2**62,)), "make less than 2**63 bytes"),
    "half a block": (_tensor((16,), kind=8), "rows of Q8_0 must be a multiple of 32 elements, found 16"),
    "row of 32 in Q4_K": (_tensor((32, 8), kind=12), "rows of Q4_K must be a multiple of 256 elements, found 32"),
    "type 2**32-1": (_tensor((8,), kind=2**32 - 1), "tensor 'x': tensor type id 4294967295 is unknown"),
    "offset between": (_tensor((8,), offset=16, data=bytes(64)), "its offset must be a multiple of 32, found 16"),
    "offset 2**64-32": (_tensor((8,), offset=2**64 - 32), "tensor 'x': truncated: the header describes"),
    "offset past the end": (_tensor((8,), offset=32), "tensor 'x': truncated: the header describes"),
    "one byte short": (_tensor((8,), data=bytes(31)), "tensor 'x': truncated: the header describes"),
    "tensor name of 513 bytes": (_tensor((8,), name="n" * 513), "at most 512 bytes, found 513"),
    "tensor name with a newline": (_tensor((8,), name="a\nb"), r"tensor 'a\nb': a tensor name must be printable"),
    "repeated tensor": (gguf_file([], _X * 2, _BYTES), "tensor 'x': the name is repeated"),
    "overlap": (gguf_file([], [*_X, tensor("y", (8,))], _BYTES), "tensor 'y': overlaps tensor 'x'"),
    "split by key": (_key("split.count", 3), "is one of 3 parts; split GGUF is not supported"),
    "missing key": (llama_gguf({"llama.block_count": None}), "key 'llama.block_count' is missing"),
    "block count is a string": (llama_gguf({"llama.block_count": "1"}), "'llama.block_count': must be an integer"),
    "heads for each layer": (
        llama_gguf({"llama.attention.head_count": array(4, 2, bytes(8))}),
        "'llama.attention.head_count': must be an integer from 1 to 65536, found an array of 2 elements",
    ),
    "heads do not divide": (llama_gguf({"llama.attention.head_count": 3}), "(8) must be a multiple of head_count (3)"),
    "epsilon is NaN": (
        llama_gguf({"llama.attention.layer_norm_rms_epsilon": float("nan")}),
        "must be a positive number, found nan",
    ),
    "more tokens than rows": (
        llama_gguf({"tokenizer.ggml.tokens": strings(*"abcde")}),
        "as many tokens as 'token_embd.weight' has rows (4), found 5",
    ),
    "tokens are numbers": (
        llama_gguf({"tokenizer.ggml.tokens": array(4, 4, bytes(16))}),
        "must be an array of strings",
    ),
    "end of text past the vocabulary": (
        llama_gguf({"tokenizer.ggml.eos_token_id": 4}),
        "'tokenizer.ggml.eos_token_id': must be an integer from 0 to 3, found 4",
    ),
    "partial rotary": (llama_gguf({"llama.rope.dimension_count": 2}), "only the head size (4) works, found 2"),
    "experts": (llama_gguf({"llama.expert_count": 8}), "key 'llama.expert_used_count'"),
    "longrope": (llama_gguf({"llama.rope.scaling.type": "longrope"}), "'longrope' is not supported"),
    "logit scale": (llama_gguf({"llama.logit_scale": 0.5}), "key 'llama.logit_scale' is not supported, found 0.5"),
    "no embedding": (
        gguf_file([], _X, _BYTES, architecture="llama"),
        "tensor 'token_embd.weight': a model needs it",
    ),
}
