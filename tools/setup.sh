#!/usr/bin/env bash
# Make .venv: stock SGLang's CPU engine, the test tools, and this package (editable).
#
# PYTHON=python3.12 picks the interpreter.
# Each step leaves a stamp named after the hash of what it read, so a second run does only what
# changed. Exit 2: something is missing, and the line to type is printed. Never calls apt or sudo.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Measured in a fresh checkout: 2 cores, Python 3.11, nothing in pip's cache.
readonly download_mb=610 needed_mb=2600 minutes=2

apt_line() {
  local packages
  packages=$(tr '\n' ' ' <requirements/apt.txt)
  echo "apt-get update && apt-get install -y --no-install-recommends ${packages% }"
}

# The first CPython that SGLang 0.5.18 has wheels for and that can make a virtual environment.
find_python() {
  local candidate candidates=(python3.11 python3.12 python3.13 python3.10 python3)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# One LLVM, 19 or later, that compiles, links and takes apart gfx942 code.
find_llvm() {
  local suffix tool
  for suffix in -19 -20 -21 -22 ''; do
    for tool in ld.lld llvm-objdump llvm-readelf llvm-mca; do
      command -v "$tool$suffix" >/dev/null || continue 2
    done
    "clang$suffix" --target=amdgcn-amd-amdhsa -mcpu=gfx942 -nogpulib -x c -c -o /dev/null /dev/null 2>/dev/null && return
  done
  return 1
}

check_prerequisites() {
  local missing=()
  if [ "$(uname -sm)" != 'Linux x86_64' ]; then
    echo "setup: found $(uname -sm); supported: Linux x86_64, for which SGLang has wheels" >&2
    exit 2
  fi
  find_python >/dev/null || missing+=("${PYTHON:-python3}: CPython 3.10 to 3.13 with venv")
  command -v g++ >/dev/null || missing+=('g++')
  command -v git >/dev/null || missing+=('git')
  find_llvm || missing+=('clang, lld and the llvm tools, 19 or later, with the AMDGPU target')
  [ ${#missing[@]} -eq 0 ] && return
  printf 'setup: missing: %s\n' "${missing[@]}" >&2
  printf 'On Debian or Ubuntu, as root (else sudo before each apt-get), type:\n  %s\n' "$(apt_line)" >&2
  exit 2
}

check_same_python() {
  [ -n "${PYTHON:-}" ] && [ -x .venv/bin/python ] || return 0
  local ask='import sys; print("%d.%d" % sys.version_info[:2])' there wanted
  there=$(.venv/bin/python -c "$ask")
  wanted=$("$PYTHON" -c "$ask")
  [ "$there" = "$wanted" ] && return
  echo "setup: found .venv of Python $there; PYTHON=$PYTHON is $wanted; do: make clean, then again" >&2
  exit 2
}

say_expectation() {
  local free_mb
  free_mb=$(df -Pm . | awk 'NR == 2 {print $4}')
  echo "setup: making .venv: about $needed_mb MB on disk ($free_mb MB free here)," \
    "$minutes minutes plus the time to download $download_mb MB."
  if [ "$free_mb" -lt "$needed_mb" ]; then
    echo "setup: found $free_mb MB free in $PWD; needed: $needed_mb MB; do: free some, or check out elsewhere" >&2
    exit 2
  fi
}

pip_install() {
  # Few and short tries: an index that cannot be reached must cost seconds, since the wheel may be
  # at hand through pip's own configuration.
  .venv/bin/python -m pip install --disable-pip-version-check --no-input --retries 1 --timeout 15 --no-deps "${quiet[@]}" "$@"
}

# Beside what is installed: tests take single files out of it, and say so where it is missing.
get_aiter_wheel() {
  compgen -G '.venv/wheels/amd_aiter-*.whl' >/dev/null && return
  echo "setup: AITER's wheel, for tests to read"
  .venv/bin/python -m pip download --disable-pip-version-check --no-input --retries 1 --timeout 15 --no-deps \
    --only-binary=:all: --dest .venv/wheels "${quiet[@]}" -r requirements/aiter-wheel.txt ||
    echo "setup: not found: $(grep == requirements/aiter-wheel.txt); the tests that read it will be skipped" >&2
}

check_no_gpu_torch() {
  .venv/bin/python - <<'EOF'
import sys
import torch
gpu = torch.version.cuda or torch.version.hip
sys.exit(f"setup: found torch {torch.__version__}, a GPU build; supported: a +cpu build; do: make clean setup" if gpu else 0)
EOF
}

# step NAME WHAT KEY-FILES -- COMMAND...: run COMMAND unless it ran with these very files.
step() {
  local name=$1 what=$2 files=() key stamp
  shift 2
  while [ "$1" != -- ]; do files+=("$1"); shift; done
  shift
  key=$({ echo "$PWD"; cat "${files[@]}"; } | sha256sum | cut -c1-16)
  stamp=.venv/stamps/$name-$key
  [ -e "$stamp" ] && return
  echo "setup: $what"
  "$@"
  mkdir -p .venv/stamps
  rm -f .venv/stamps/"$name"-*
  touch "$stamp"
}

quiet=()
[ -t 1 ] || quiet=(--quiet)
check_prerequisites
check_same_python
[ -e .venv/stamps ] || say_expectation
step venv 'Python environment' /dev/null -- "$(find_python)" -m venv --clear .venv
step torch 'PyTorch, CPU build' requirements/torch-cpu.txt -- pip_install -r requirements/torch-cpu.txt
step engine "SGLang's CPU engine" requirements/cpu-engine.txt -- pip_install -r requirements/cpu-engine.txt
step tools 'test tools' requirements/dev.txt -- pip_install -r requirements/dev.txt
get_aiter_wheel
step package 'this package, editable' pyproject.toml setup.py -- pip_install --no-build-isolation -e .
.venv/bin/python setup.py --quiet native # compares content hashes by itself
step no-gpu-torch 'check: no GPU build of PyTorch' requirements/*.txt -- check_no_gpu_torch
