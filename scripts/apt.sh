# Sourced by deps.sh and test/vm/vm.sh: Debian packages without touching the system's own package lists.
# shellcheck shell=bash

# apt_quiet CMD...: apt-get that waits for another apt instead of failing.
apt_quiet() { DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"; }

# debian_codename: bookworm, trixie, ...
debian_codename() { . /etc/os-release && echo "$VERSION_CODENAME"; }

# debian_mirror: the mirror that this machine itself uses, whichever format its lists are in.
debian_mirror() {
  local uri
  uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v r="$(debian_codename)" '$2 == r && $3 == "main" { print $1; exit }')
  [ -n "$uri" ] || { echo "apt: this machine has no package source for $(debian_codename) main" >&2; return 1; }
  echo "$uri"
}

# own_apt_init DIR SUITE:COMPONENT...: writes a source list of our own into DIR; own_apt and own_cache then use only
# that.
own_apt_init() {
  local mirror entry
  mirror=$(debian_mirror) || return 1
  OWN_APT=$1; shift
  mkdir -p "$OWN_APT/lists/partial"
  for entry in "$@"; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror ${entry%%:*} ${entry##*:}"
  done | sort -u > "$OWN_APT/sources.list"
  OWN_OPTS=(-o "Dir::Etc::sourcelist=$OWN_APT/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::Lists=$OWN_APT/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
}
own_apt() { apt_quiet "${OWN_OPTS[@]}" "$@"; }
own_cache() { apt-cache "${OWN_OPTS[@]}" "$@"; }
