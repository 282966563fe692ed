#!/bin/bash
# generate-check.sh: generates everything again in a copy of the tree and fails where a file differs from the tree's.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
scripts/deps.sh build
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# the files as they are, committed or not, without what git ignores
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ ! -e "$f" ] \
  || printf '%s\0' "$f"; done |
  tar -c --null -T - | tar -x -C "$copy"
(cd "$copy" && go generate ./...)
stale=0
while IFS= read -r f; do
  cmp -s "$f" "$copy/$f" || { echo "stale: $f (make generate)"; stale=1; }
done < <(cd "$copy" && find . -type f | sed 's|^\./||')
[ $stale = 0 ] && echo "generated files are fresh"
exit $stale
