package lab

import (
	"crypto/sha256"
	"encoding/hex"
)

// cgroupParent is the control group that holds one group per lab.
const cgroupParent = "myelin-lab"

func (l *Lab) nodeNetns(node string) string { return shorten(l.opts.Name + "-" + node) }
func (l *Lab) fabricNetns() string          { return l.opts.Name + "-fabric" }
func (l *Lab) worldNetns() string           { return l.opts.Name + "-world" }

// podNetns joins with underscores, which no Kubernetes name can have: with hyphens x-y/z and x/y-z would be one.
func (l *Lab) podNetns(node, namespace, name string) string {
	return shorten(l.opts.Name + "-" + node + "_" + podFile(namespace, name))
}

func (l *Lab) podCgroup(node, namespace, name string) cgroup {
	return l.cg.join(node, shorten(podFile(namespace, name)))
}

func podFile(namespace, name string) string { return namespace + "_" + name }

// shorten keeps s within what file systems take with room for a suffix: a long one ends in a digest of the whole.
func shorten(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return s[:most-17] + "-" + hex.EncodeToString(sum[:8])
}
