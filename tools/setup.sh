#!/usr/bin/env bash
# Installs the Debian packages that the build needs; quick when all are there. --ci adds what only CI needs.
# MOEWRIGHT_SKIP_SETUP=1 skips it, for machines whose libraries lie under another prefix.
set -euo pipefail

packages=(
  g++ make cmake ninja-build ccache pkg-config python3 git
  libopenmpi-dev openmpi-bin libmpich-dev mpich libdnnl-dev
  libtomlplusplus-dev nlohmann-json3-dev libfmt-dev libcli11-dev libgtest-dev libxxhash-dev
  libsodium-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev libzstd-dev zlib1g-dev python3-venv
  dpkg-dev file
)
if [[ ${1:-} == --ci ]]; then
  packages+=(
    clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev libomp-14-dev
    hipcc clang-15 clang-tools-15 lld-15 rocm-device-libs libamdhip64-dev
    slurmctld slurmd slurm-client munge debootstrap qemu-user
    zsh fish groff-base
  )
fi

[[ ${MOEWRIGHT_SKIP_SETUP:-0} == 1 ]] && exit 0
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian system; CMake will look for the same libraries here." >&2
  echo "setup: needed: a C++20 compiler, CMake 3.25, Ninja, MPI, toml++, nlohmann-json, fmt, CLI11, GoogleTest, xxHash;" >&2
  echo "setup: libsodium; optional: oneDNN, ccache, PCRE2, utf8proc, SentencePiece, zstd, zlib. Name other prefixes in CMAKE_PREFIX_PATH." >&2
  exit 0
fi

installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
missing=()
for package in "${packages[@]}"; do
  [[ $installed == *" installed:$package "* ]] || missing+=("$package")
done
[[ ${#missing[@]} == 0 ]] && exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing Debian packages: ${missing[*]}" >&2
    echo "hint: as root, run: apt-get install ${missing[*]}" >&2
    echo "hint: or, if these libraries lie under another prefix, set MOEWRIGHT_SKIP_SETUP=1 and CMAKE_PREFIX_PATH" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
install() { apt install -y --no-install-recommends "${missing[@]}" >/dev/null; }
# The package lists of a fresh or old machine may be absent or stale: only then fetch them.
if ! install 2>/dev/null; then
  apt update
  if ! install; then
    echo "setup: could not install: ${missing[*]}" >&2
    echo "hint: these are Debian 12 package names; on another release install the like by hand and set MOEWRIGHT_SKIP_SETUP=1" >&2
    exit 1
  fi
fi
