"""Plays the tuning process: the same lines on standard output, and candidates that misbehave.

Its behaviour by row count: 13 ends the process (once it began), 14 never ends, 15 gives NaN, 17 is
no faster than stock, at 20 a kernel of this package wins and the library's choice is wrong, at all
others the library wins. Two products of one input are faster in one launch at 20 and 16 alone.
Argument: a file to which each started product is appended, for two with their solutions apart.
"""

import json
import os
import sys
import time

from tests.gemm.standin_tunableop import STACK

KERNEL = "gemm_skinny_64x16_w2"
DEVICE = {"name": "AMD Instinct MI300A", "arch": "gfx942", "visible_cus": 228}


def main():
    asked = json.loads(sys.stdin.readline())
    if sys.argv[2:] == ["broken"]:
        print("no accelerator", file=sys.stderr)
        sys.exit(3)
    print("a library greets", flush=True)
    print(json.dumps({"machine": {"device": DEVICE, "validators": STACK}}), flush=True)
    if sys.argv[2:] == ["late"] and asked:
        sys.exit(4)
    if sys.argv[2:] == ["dropping"] and asked:
        print(json.dumps({"dropped": {KERNEL: "relative L2 inf"}}), flush=True)
    for m in asked.get("m", []):
        with open(sys.argv[1], "a") as file:
            apart = " ".join(["", *asked["apart"][str(m)]]) if asked["parts"] else ""
            if str(m) in asked["known"]:
                apart = f" known {asked['known'][str(m)]}"
            device = os.environ["HIP_VISIBLE_DEVICES"]
            file.write(f"{asked['n']} {asked['k']} {m} {device}{apart}\n")
        print(json.dumps({"begin": m}), flush=True)
        if m == 13:
            os.abort()
        if m == 14:
            time.sleep(3600)
        outcome = {15: "wrong", 17: "lost"}.get(m, "won")
        result = {
            "n": asked["n"],
            "k": asked["k"],
            "m": m,
            "outcome": outcome,
            "solution": f"kernel/{KERNEL}" if m == 20 else f"Gemm_Rocblas_{m}",
            "us": 10.0 if m != 17 else 30.0,
            "stock_us": 30.0,
            "relative_error": float("nan") if m == 15 else 1e-3,
            "samples": asked["samples"],
            "wrong": [f"Gemm_Rocblas_{m}"] if m == 20 else [],
            "kernels": asked["kernels"],
        }
        if asked["parts"]:
            suffix = "+".join(map(str, asked["parts"]))
            result |= {"parts": asked["parts"], "solution": f"kernel/{KERNEL}/{suffix}"}
            result["outcome"] = "won" if m in (16, 20) else "lost"
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
