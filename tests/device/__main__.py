"""Runs the device checks and writes what they found: `python -m tests.device --out DIR [--dry]`.

`--dry` runs the same code on the imagined device, in small: it shows that the script works, and nothing about a GPU.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.device.rig import Rig


def main() -> int:
    """Run the sections within the time; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--seconds", type=float, default=220.0, help="start no section after this many")
    arguments = parser.parse_args()
    from pyvllm.memory.cuda import probe

    if not arguments.dry and ((found := probe()).error or not found.device_count):
        print(f"no CUDA device: {found.text or 'none is visible'}; --dry runs on the imagined one")
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    rig = Rig(is_dry=arguments.dry)
    from tests.device.sections import SECTIONS

    results: dict[str, dict[str, object]] = {}
    failures: list[str] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for section in SECTIONS:
            name = section.__name__
            if time.monotonic() - start > arguments.seconds:
                failures.append(f"{name}: not started, the time was over")
                continue
            began = time.monotonic()
            try:
                results[name] = section(rig, Path(folder))
            except Exception:  # one section's error must not cost what the others would have found
                traceback.print_exc()
                failures.append(f"{name}: {traceback.format_exc(limit=1).splitlines()[-1]}")
                continue
            failures += [f"{name}: {what}" for what, value in results[name].items() if value is False]
            print(f"== {name}, {time.monotonic() - began:.1f} s", flush=True)
            for what, value in results[name].items():
                print(f"   {what}: {value}", flush=True)
            _write(arguments.out, rig, results, failures)
    _write(arguments.out, rig, results, failures)
    print("\n".join(["FAILED:", *failures]) if failures else "nothing failed", flush=True)
    return bool(failures)


def _write(out: Path, rig: Rig, results: dict[str, dict[str, object]], failures: list[str]) -> None:
    document = {"is_dry": rig.is_dry, "failures": failures, "results": results}
    (out / "results.json").write_text(json.dumps(document, indent=1))
    if not rig.is_dry and "golden" in results:
        (out / "golden.json").write_text(json.dumps(results["golden"], indent=1))


if __name__ == "__main__":
    sys.exit(main())
