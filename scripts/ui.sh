#!/bin/bash
# ui.sh build|check|test [ARG...]: the web page of `myelin ui`.
#   build  makes hubble/ui/dist of hubble/ui/web
#   check  fails if the committed hubble/ui/dist is not what build makes
#   test   check, and the tests in a browser; ARG... goes to Playwright
# Needs what deps.sh ui installs. npm takes packages from where it is set up to.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
web=$PWD/hubble/ui/web

packages() {
  local have=$web/node_modules/.package-lock.json
  [ "$have" -nt "$web/package-lock.json" ] || (cd "$web" && npm ci --loglevel=error)
}

build() { # DIR
  (cd "$web" && npx tsc && npx vite build --logLevel warn --outDir "$1" --emptyOutDir)
  sources >"$1/SOURCES.sha256"
}

# The sources of a build, so that a test in Go finds a stale one without Node.js.
sources() {
  (cd "$web" && find index.html package.json package-lock.json tsconfig.json vite.config.ts public src -type f |
    LC_ALL=C sort | xargs -d '\n' sha256sum)
}

check() {
  local fresh
  fresh=$(mktemp -d)
  build "$fresh"
  if ! diff -r "$fresh" hubble/ui/dist; then
    rm -rf "$fresh"
    echo "stale: hubble/ui/dist (scripts/ui.sh build)" >&2
    return 1
  fi
  rm -rf "$fresh"
  echo "hubble/ui/dist is fresh: $(du -sb hubble/ui/dist | cut -f1) bytes"
}

case ${1-} in
  build) packages; build "$PWD/hubble/ui/dist" ;;
  check) packages; check ;;
  test)
    shift
    packages
    check
    go build -o bin/ui-load ./test/ui
    (cd "$web" && npx playwright test "$@")
    ;;
  *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
esac
