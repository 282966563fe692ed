#!/bin/bash
# fuzz.sh [SECONDS]: runs every fuzz target of the tree for that long (10), one after the other. A failing input stays
# in the package's testdata.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
seconds=${1:-10} targets=0 failed=()
while IFS=: read -r file target; do
  echo "── $target in $(dirname "$file")"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" "./$(dirname "$file")" || failed+=("$target")
  targets=$((targets + 1))
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' \
  | sed 's/func //' | sort)
[ $targets -gt 0 ] || { echo "no fuzz targets"; exit 1; }
[ ${#failed[@]} = 0 ] || { echo "fuzz targets that failed: ${failed[*]}"; exit 1; }
echo "$targets fuzz targets found nothing"
