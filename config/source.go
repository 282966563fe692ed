package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/config/key"
)

// Source says where the cluster's objects come from.
type Source string

const (
	NoSource   Source = "none"       // loadBalancer.standalone
	Directory  Source = "directory"  // myelin.manifests
	KubeConfig Source = "kubeconfig" // an API server, by kubeConfigPath
	InCluster  Source = "in cluster" // an API server, as a pod of its cluster
)

// Source is where the cluster's objects come from. InCluster is what is left: the
// files of the service account have to be there.
func (c *Config) Source() Source {
	switch {
	case c.LoadBalancer.Standalone:
		return NoSource
	case c.Myelin.Manifests != "":
		return Directory
	case c.KubeConfigPath != "":
		return KubeConfig
	}
	return InCluster
}

// Kubernetes reports whether objects come from an API server.
func (c *Config) Kubernetes() bool {
	s := c.Source()
	return s == KubeConfig || s == InCluster
}

// flagList are settings that the command line or the environment has, each with its
// own name there. They take the place of the file's.
type flagList []Flag

// Flag is one of them.
type Flag struct {
	Name string // as in messages, e.g. "--node-name"
	Key  string // of the setting, e.g. "myelin.nodeName"
	// Value is empty where it isn't given.
	Value string
	// Weak flags count only where the file says nothing.
	Weak bool
}

// given reports whether any is.
func (f flagList) given() bool {
	return slices.ContainsFunc(f, func(one Flag) bool { return one.Value != "" })
}

// flags applies those that are given.
func (c *Config) flags(flags flagList) (problems Problems) {
	for _, f := range flags {
		if f.Value == "" || f.Weak && c.isSet(f.Key) {
			continue
		}
		reason := "is no setting"
		for _, s := range settings() {
			if s.Name != f.Key {
				continue
			}
			reason = ""
			if err := s.Set(c, f.Value); err != nil {
				reason = err.Error()
			}
		}
		if reason != "" {
			problems = append(problems, Problem{File: f.Name, Key: f.Key, Reason: reason})
			continue
		}
		c.set[f.Key] = f.Name
	}
	return problems
}

// sources refuses more than one of them.
func (c *Config) sources(add func(key, format string, args ...any)) {
	if c.KubeConfigPath == "" {
		return
	}
	from := c.set["kubeConfigPath"]
	switch {
	case c.LoadBalancer.Standalone:
		add("kubeConfigPath", "is set by %s, and loadBalancer.standalone is true, which is without a cluster", from)
	case c.Myelin.Manifests != "":
		add("kubeConfigPath", "is set by %s, and myelin.manifests by %s: the cluster can be read from one of them only",
			from, c.set["myelin.manifests"])
	}
}

// sourceWarnings are keys of a source that is another.
func (c *Config) sourceWarnings(add func(key, format string, args ...any)) {
	if c.K8sServiceHost != "" && c.Source() == Directory {
		add("k8sServiceHost", "has no effect: the cluster is read from myelin.manifests")
	}
	if c.K8sServiceHost == "" && c.isSet("k8sServicePort") && c.Kubernetes() {
		add("k8sServicePort", "has no effect: k8sServiceHost is not set")
	}
}

// checkServiceHost checks k8sServiceHost: a host name or an IP address, and nothing around it.
func checkServiceHost(s string) error {
	const want = "want a host name or an address alone"
	_, notAddr := netip.ParseAddr(s)
	switch {
	case s == "" || notAddr == nil:
		return nil
	case s == "auto":
		return fmt.Errorf("%q: is for the Helm chart and myelin install, which ask the cluster for it: want a host "+
			"name or an address", s)
	case strings.Contains(s, "://"):
		return fmt.Errorf("%q is a URL: %s, and the port in k8sServicePort", s, want)
	case strings.HasPrefix(s, "["):
		return fmt.Errorf("%q has brackets: %s, and the port in k8sServicePort", s, want)
	case strings.Contains(s, ":"):
		return fmt.Errorf("%q has a port: %s, and the port in k8sServicePort", s, want)
	}
	// Names of clouds' API servers have capitals.
	if bad := validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(s, "."))); len(bad) > 0 {
		return fmt.Errorf("%q: %s: %s", s, want, strings.Join(bad, "; "))
	}
	return nil
}

// ServiceHost is the schema of k8sServiceHost; the chart takes auto, too.
func ServiceHost(auto bool) key.Schema {
	want := "a host name or an IP address, without https:// and without a port"
	const name, ipv6 = `[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?\.?`,
		`[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?`
	text := key.Schema{"type": "string", "pattern": "^(" + name + "|" + ipv6 + ")?$"}
	if auto {
		return key.Explained(text, want+", or auto: as kubeadm has stored it")
	}
	text["not"] = key.Schema{"const": "auto"}
	return key.Explained(text, want)
}

// checkKubeConfigPath checks kubeConfigPath, which a Helm chart may leave empty.
func checkKubeConfigPath(s string) error {
	if s == "" {
		return nil
	}
	return key.CheckPath(s)
}
