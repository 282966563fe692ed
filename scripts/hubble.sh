#!/bin/sh
# Builds the real Hubble CLI from its Go module into the cache, once, and prints its path: for tests of Hubble's API.
# The build takes up to ten minutes the first time.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
out=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/hubble
if [ ! -x "$out/hubble" ] || [ "$here/test/hubble/go.mod" -nt "$out/hubble" ]; then
  mkdir -p "$out"
  (cd "$here/test/hubble" && CGO_ENABLED=0 GOFLAGS='-buildvcs=false' nice go build -trimpath -o "$out/hubble" . >&2)
fi
echo "$out/hubble"
