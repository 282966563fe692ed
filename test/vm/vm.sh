#!/bin/bash
# vm.sh fetch [-k KERNEL]...
#   Puts kernels and tools into $MYELIN_VM (default ~/.cache/myelin/vm). Nothing is installed into /; done once, then
#   free.
# vm.sh run [-k KERNEL] [-t SECONDS] [-m MEMORY] [-w FOLDER] [--icount] [--nics] -- CMD ARG...
#   Boots KERNEL (a series: 6.12, 6.1 or 5.10; default 6.12) and runs CMD there as root, in this folder, on this
#   machine's own file system: read-only, under an overlay that is thrown away. Its output and its exit code are ours.
#   124: out of time; 125: the VM ended without an exit code (its console is printed). -w FOLDER the guest may really
#   write there --icount one CPU in virtual time, 1 ns an instruction: speeds are path lengths and repeat whatever the
#   machine's load --nics two network cards (virtio-net, one queue each) on one hub, which leads nowhere else
#   VM_PLUGIN=FILE,OPTION... loads a plugin of QEMU
#   VM_ACCEL=kvm instead of software emulation; asked for, not probed: a nested /dev/kvm may open and then hang the
#   guest
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../scripts/apt.sh"
VM=${MYELIN_VM:-${XDG_CACHE_HOME:-$HOME/.cache}/myelin/vm}

usage() { sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 2; }
say() { echo "vm: $*" >&2; }

# kernel_release SERIES: the release that fetch chose, as uname -r prints it.
kernel_release() { cat "$VM/kernel-$1" 2>/dev/null || { say "kernel $1 is not here: run $here/vm.sh fetch -k $1"; \
  return 1; }; }

fetch_deb() { # NAME[/SUITE]: download once, unpack into $VM/root
  (cd "$VM/deb" && { ls "${1%%/*}"_*.deb >/dev/null 2>&1 || own_apt download "$1" >&2; } && dpkg \
    -x "${1%%/*}"_*.deb "$VM/root")
}

fetch_tools() {
  local tool
  for tool in kmod busybox-static wireguard-tools; do fetch_deb "$tool/bookworm"; done
  # the release's own don't know netkit and tcx
  for tool in iproute2 bpftool; do fetch_deb "$tool/bookworm-backports"; done
  # Debian's links to kmod are absolute; ours must not leave $VM/root
  for tool in modprobe depmod lsmod insmod rmmod modinfo; do ln -sfn ../bin/kmod "$VM/root/sbin/$tool"; done
}

fetch_kernel() { # SERIES: the newest that Debian's releases have
  local release
  release=$(own_cache pkgnames "linux-image-$1." | sed -n 's/^linux-image-\(.*-cloud-amd64\)$/\1/p' | sort -V | tail -1)
  [ -n "$release" ] || { say "no package source offers a $1 kernel"; return 1; }
  fetch_deb "linux-image-$release"
  "$VM/root/sbin/depmod" -b "$VM/root" "$release"
  make_initramfs "$release"
  echo "$release" > "$VM/kernel-$1"
  say "kernel $1: $release"
}

fetch() {
  local kernels=() need=() k
  while getopts k: opt; do case $opt in k) kernels+=("$OPTARG") ;; *) usage ;; esac; done
  for k in "${kernels[@]:-6.12}"; do
    [ -s "$VM/kernel-$k" ] || need+=("$k")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  mkdir -p "$VM/deb" "$VM/root"
  exec 9>"$VM/lock"; flock 9
  own_apt_init "$VM/apt" bookworm:main bookworm-backports:main bullseye:main
  own_apt update >&2
  fetch_tools
  for k in "${need[@]}"; do fetch_kernel "$k"; done
}

# Older Debian kernels have virtio and virtiofs as modules: an initramfs loads them, then moves on to the share.
make_initramfs() {
  local release=$1 dir f
  ! grep -q '^CONFIG_VIRTIO_FS=y' "$VM/root/boot/config-$release" || return 0
  dir=$(mktemp -d "$VM/initramfs.XXXXXX")
  mkdir -p "$dir"/{bin,mod,new,dev,proc}
  cp "$VM/root/bin/busybox" "$dir/bin/"
  "$VM/root/sbin/modprobe" -d "$VM/root" -S "$release" -aD virtio_pci virtio_console virtiofs overlay |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r f; do
      cp "$(realpath "$f")" "$dir/mod/"; basename "$f" >> "$dir/mod/order"
    done
  cp "$here/initramfs.sh" "$dir/init"; chmod +x "$dir/init"
  (cd "$dir" && find . | ./bin/busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$VM/initramfs-$release"
  rm -rf "$dir"
}

# share TAG FOLDER CACHE: one virtiofsd, added to the QEMU arguments.
share() {
  /usr/lib/qemu/virtiofsd --socket-path="$run/$1.sock" -o "source=$2,sandbox=chroot,xattr,cache=$3" \
    -o log_level=err >"$run/$1.log" 2>&1 & pids+=($!)
  for _ in $(seq 200); do [ ! -S "$run/$1.sock" ] || break; sleep .05; done
  qemu+=(-chardev "socket,id=$1,path=$run/$1.sock" -device "vhost-user-fs-pci,chardev=$1,tag=$1,queue-size=1024")
}

accelerator() { # ICOUNT
  # -cx16: cmpxchg16b of QEMU 7.2's emulation corrupts flags now and then, and Linux then panics in its slab allocator
  if [ -n "$1" ]; then qemu+=(-accel tcg,thread=single -icount shift=0,sleep=off -cpu max,-cx16 -smp 1); return; fi
  if [ "${VM_ACCEL:-tcg}" = kvm ]; then qemu+=(-accel kvm -cpu host -smp 2); return; fi
  qemu+=(-accel tcg,thread=multi -cpu max,-cx16 -smp 2)
}

cards() {
  local i
  for i in 0 1; do qemu+=(-netdev "hubport,id=nic$i,hubid=0" \
    -device "virtio-net-pci,netdev=nic$i,mac=02:6d:79:01:00:0$i,romfile="); done
}

stop() { # also when we are killed: no QEMU, no virtiofsd, no folder stays
  local p
  [ -n "$run" ] || return 0
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || :; done
  wait 2>/dev/null || :
  rm -rf "$run"; run=''
}

run() {
  local kernel=6.12 seconds=300 memory=2G writable='' icount='' nics='' release initramfs rc=0
  while [ $# -gt 0 ]; do
    case $1 in
      -k) kernel=$2; shift 2 ;;
      -t) seconds=$2; shift 2 ;;
      -m) memory=$2; shift 2 ;;
      -w) writable=$(realpath "$2"); shift 2 ;;
      --icount) icount=1; shift ;;
      --nics) nics=1; shift ;;
      --) shift; break ;;
      *) usage ;;
    esac
  done
  [ $# -gt 0 ] || usage
  release=$(kernel_release "$kernel")
  pids=() run=''   # not local: stop needs them
  trap stop EXIT; trap 'exit 130' INT TERM HUP
  for _ in 1 2 3; do
    rc=0; boot "$@" || rc=$?
    # emulation is not flawless: a guest that died before the command began may be tried again
    { [ "$rc" = 125 ] && ! grep -aq VM-READY "$run/console"; } || break
    say "booting again"
    stop; pids=()
  done
  return "$rc"
}

boot() { # CMD ARG...; the rest of the settings are run's
  local rc=0 reader initramfs=$VM/initramfs-$release busybox=$VM/root/bin/busybox
  run=$(mktemp -d "$VM/run.XXXXXX")
  { echo '#!/bin/bash'; echo "cd $(printf %q "$PWD")"; printf '%q ' exec "$@"; echo; } > "$run/cmd"
  qemu=(-M q35 -m "$memory" -object "memory-backend-memfd,id=mem,size=$memory,share=on" -numa node,memdev=mem
    -nodefaults -no-user-config -display none -no-reboot -serial "file:$run/console" -device virtio-serial-pci)
  accelerator "$icount"
  share root / always
  [ -z "$writable" ] || share rw "$writable" auto
  [ -z "$nics" ] || cards
  [ -z "${VM_PLUGIN:-}" ] || qemu+=(-plugin "$VM_PLUGIN")
  [ ! -s "$initramfs" ] || qemu+=(-initrd "$initramfs")
  mkfifo "$run/out"; cat "$run/out" & reader=$!; pids+=("$reader")   # a stdio chardev would close with our stdin
  qemu+=(-chardev "file,id=out,path=$run/out,append=on" -device virtserialport,chardev=out,name=out
    -chardev "file,id=rc,path=$run/rc" -device virtserialport,chardev=rc,name=rc)
  # what follows "--" on the kernel's command line are the arguments of init: busybox sh guest.sh
  local append="console=ttyS0 quiet rootfstype=virtiofs root=root ro init=$busybox panic=-1 oops=panic"
  append+=" mitigations=off cryptomgr.notests=1"
  append+=" VM_RUN=$run VM_ROOT=$VM/root VM_WRITABLE=$writable VM_NICS=$nics -- sh $here/guest.sh"
  qemu+=(-kernel "$VM/root/boot/vmlinuz-$release" \
    -append "$append")

  timeout -k 5 "$seconds" qemu-system-x86_64 "${qemu[@]}" </dev/null 2>"$run/qemu" & pids+=($!)
  wait $! || rc=$?
  [ "$rc" = 0 ] || kill "$reader" 2>/dev/null || :
  wait "$reader" 2>/dev/null || :
  if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then say "out of time after $seconds s"; tail -20 "$run/console" >&2; \
    return 124; fi
  if [ ! -s "$run/rc" ]; then say "no exit code (qemu: $rc)"; tail -20 "$run/qemu" >&2; tail -40 "$run/console" >&2; \
    return 125; fi
  return "$(tr -dc 0-9 < "$run/rc")"
}

verb=${1:-}; shift || usage
case $verb in fetch) fetch "$@" ;; run) run "$@" ;; *) usage ;; esac
