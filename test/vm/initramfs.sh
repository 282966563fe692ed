#!/bin/busybox sh
# /init of the initramfs for kernels whose virtio drivers are modules: load them, mount the share, become its init.
b=/bin/busybox
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/mod/$module"; done < /mod/order
$b mount -t virtiofs -o ro root /new
exec $b switch_root /new "$VM_ROOT/bin/busybox" "$@"
