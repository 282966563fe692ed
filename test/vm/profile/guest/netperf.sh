#!/bin/sh
# netperf.sh ARG...: netperf, between two marks if it measures (-l -COUNT, with COUNT from $PROFILE_COUNT). Then leaves
# the kernel's symbols, which the datapath's programs are among, in $PROFILE_OUT.
case " $* " in
*" -l -$PROFILE_COUNT "*)
  "$PROFILE_TOOLS/mark"
  "$PROFILE_NETPERF/netperf" "$@"
  code=$?
  "$PROFILE_TOOLS/mark"
  cat /proc/kallsyms > "$PROFILE_OUT/kallsyms"
  exit $code ;;
esac
exec "$PROFILE_NETPERF/netperf" "$@"
