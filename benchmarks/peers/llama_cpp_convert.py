"""Writes a GGUF file again with its matrices in bfloat16, by llama.cpp's own quantise function: FROM TO THREADS."""

import ctypes
import sys

import llama_cpp


def convert(source: str, target: str, threads: int) -> int:
    """Write `target` and return llama.cpp's status, 0 when it was written."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    params.allow_requantize = True
    params.nthread = threads
    return llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))


if __name__ == "__main__":
    sys.exit(convert(sys.argv[1], sys.argv[2], int(sys.argv[3])))
