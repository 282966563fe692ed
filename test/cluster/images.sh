# Sourced by build.sh: images of the machine's own programs, under the names that the upstream suite asks for.

# image NAME ROOT ENTRYPOINT CMD: an archive of one layer in $images; the last two are JSON.
image() {
  local name=$1 root=$2 work sum config
  work=$(mktemp -d "$images/tmp.XXXX")
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$root" -cf "$work/layer.tar" .
  sum=$(sha256sum < "$work/layer.tar" | cut -d' ' -f1)
  config='{"architecture":"%s","os":"linux","config":{'
  config+='"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Entrypoint":%s,"Cmd":%s,'
  config+='"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}'
  # shellcheck disable=SC2059
  printf "$config" "$(go env GOARCH)" "$3" "$4" "$sum" > "$work/config.json"
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" > "$work/manifest.json"
  tar -C "$work" -cf "$images/$(tr /: __ <<< "$name").tar" manifest.json config.json layer.tar
  rm -rf "$work"
}

# base ROOT PROGRAM...: a root file system with busybox, the programs and the libraries that they need.
base() {
  local root=$1 program file library; shift
  mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,usr/local/bin,lib64,etc/ssl/certs,tmp,root,proc,sys,dev,run} \
    "$root"/{var/tmp,home} "$root/lib/$(uname -m)-linux-gnu"
  chmod 1777 "$root/tmp" "$root/var/tmp"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for program in $(busybox --list); do [ "$program" = busybox ] || ln -sf busybox "$root/bin/$program"; done
  for program; do
    file=$(readlink -f "$(command -v "$program")")
    rm -f "$root/bin/$program"
    cp "$file" "$root/bin/$program"
    for library in $(ldd "$file" 2> /dev/null | grep -o '/[^ ]*'); do mkdir -p "$root$(dirname "$library")"; \
      cp -Ln "$library" "$root$library"; done
  done
  # busybox's own shell prefers its applets to programs in the path
  [ ! -e "$root/bin/bash" ] || ln -sf bash "$root/bin/sh"
  for library in libnss_dns.so.2 libnss_files.so.2 libresolv.so.2; do
    cp -Ln "/lib/$(uname -m)-linux-gnu/$library" "$root/lib/$(uname -m)-linux-gnu/"
  done
  printf '%b' 'root:x:0:0:root:/root:/bin/sh\n' \
    'nobody:x:65534:65534:nobody:/:/bin/false\n' \
    'user-defined-in-image:x:1000:1000::/home:/bin/sh\n' > "$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n' > "$root/etc/group"
  echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
}

make_images() {
  local roots agnhost
  roots=$(mktemp -d "$dir/roots.XXXX")
  mkdir -p "$roots"/{pause,agnhost/uploads,coredns/tmp,regression}
  cp "$bin/pause" "$roots/pause/"
  image registry.k8s.io/pause:3.10.1 "$roots/pause" '["/pause"]' null
  base "$roots/agnhost" bash getent curl wget nc dig host nslookup ip ss iperf
  agnhost=$(cd "$dir/module" && go list -mod=mod -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)
  cp "$agnhost"/porter/localhost.{crt,key} "$roots/agnhost/"
  cp "$bin/agnhost" "$roots/agnhost/agnhost"
  cp "$bin/coredns" "$roots/agnhost/coredns" # specs of DNS run it from there
  ln -s agnhost "$roots/agnhost/agnhost-2"
  image registry.k8s.io/e2e-test-images/agnhost:2.56 "$roots/agnhost" '["/agnhost"]' '["pause"]'
  cp "$bin/regression-issue-74839" "$roots/regression/"
  image registry.k8s.io/e2e-test-images/regression-issue-74839:1.2 "$roots/regression" '["/regression-issue-74839"]' \
    null
  base "$roots/busybox"
  image registry.k8s.io/e2e-test-images/busybox:1.37.0-1 "$roots/busybox" null '["sh"]'
  base "$roots/dnsutils" bash getent dig host nslookup
  image registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7 "$roots/dnsutils" null '["sleep","3600"]'
  cp "$bin/coredns" "$roots/coredns/"
  image registry.k8s.io/coredns/coredns:v1.12.1 "$roots/coredns" '["/coredns"]' null
  rm -rf "$roots"
}
