# Process 1 of the VM, run by a static busybox (its applets need no exec, and each exec is slow under emulation). The
# root is the other machine's / by virtiofs, read-only. VM_RUN, VM_ROOT, VM_WRITABLE come from the kernel command line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
if [ "${1:-}" != overlaid ]; then
  "$VM_ROOT/bin/busybox" mount -t proc proc /proc   # first: busybox finds its applets by /proc/self/exe
  mount -t sysfs sys /sys
  mount -t tmpfs -o size=75% tmpfs /mnt
  mkdir /mnt/upper /mnt/work /mnt/root
  "$VM_ROOT/sbin/modprobe" -d "$VM_ROOT" overlay
  mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
  mount -t proc proc /mnt/root/proc
  mount -t sysfs sys /mnt/root/sys
  mount -t devtmpfs dev /mnt/root/dev
  cd /mnt/root || exit 1
  pivot_root . mnt
  exec chroot . "$VM_ROOT/bin/busybox" sh "$0" overlaid </dev/console >/dev/console 2>&1
fi

umount -l /mnt
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/unified
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin; ln -sfn /proc/self/fd/1 /dev/stdout; ln -sfn /proc/self/fd/2 /dev/stderr
mkdir -p /lib/modules
mount --bind "$VM_ROOT/lib/modules" /lib/modules
for tool in modprobe depmod lsmod insmod rmmod modinfo; do [ -e /sbin/$tool ] \
  || ln -s "$VM_ROOT/bin/kmod" /sbin/$tool; done
export PATH="/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:$PATH"
export PATH="$VM_ROOT/usr/sbin:$VM_ROOT/sbin:$VM_ROOT/usr/bin:$VM_ROOT/bin:$PATH" HOME=/root IN_VM=1
ip link set lo up
hostname vm
# nothing answers module aliases of CPUs and device names here
"$VM_ROOT/sbin/modprobe" -qa aesni_intel ghash_clmulni_intel tun loop
[ -z "${VM_NICS:-}" ] || "$VM_ROOT/sbin/modprobe" -q virtio_net

for port in /sys/class/virtio-ports/*; do
  case $(cat "$port/name") in out) out=/dev/${port##*/} ;; rc) rc=/dev/${port##*/} ;; esac
done
[ -z "${VM_WRITABLE:-}" ] || { mkdir -p "$VM_WRITABLE"; mount -t virtiofs rw "$VM_WRITABLE"; }

echo VM-READY >/dev/console
setsid bash "$VM_RUN/cmd" </dev/null >"$out" 2>&1
code=$?
sync
[ -z "${VM_WRITABLE:-}" ] || umount "$VM_WRITABLE"
echo $code > "$rc"
sleep 0.2
echo o > /proc/sysrq-trigger
sleep 30
