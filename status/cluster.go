package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"myelin/agent/feature"
)

// APIServer is where objects come from.
type APIServer struct {
	Address   string
	ByService bool // at the address of the cluster's own Service
	Synced    bool // all that it had was taken over once
	// LastContact is when it was last heard of; zero: never.
	LastContact time.Time
	// Problem is why it doesn't answer, since Since; empty if it does.
	Problem string
	Since   time.Time
	Kinds   []Kind
}

// Kind is what there is of one kind of objects.
type Kind struct {
	Name             string
	Objects, Refused int
	Missing          bool   // the server has no such kind
	Problem          string // why it can't be listed
}

// cluster is where the cluster's objects come from.
func (f *Facts) cluster() Feature {
	if f.Server != nil {
		return f.server()
	}
	dir := f.Config.Myelin.Manifests
	x := Feature{
		Name: "Kubernetes", State: OK, Wanted: "myelin.manifests: " + dir,
		Why: "objects are read from files, with no API server",
		Chosen: fmt.Sprintf("manifests in %s: %s, %s, %s", dir,
			feature.Plural(f.Counts.Nodes, "node"), feature.Plural(f.Counts.Namespaces, "namespace"),
			feature.Plural(f.Counts.Pods, "pod")),
	}
	if f.standalone(&x) {
		f.programmed(&x)
	}
	for _, kind := range slices.Sorted(maps.Keys(f.Unused)) {
		x.FallBack(fmt.Sprintf("%s: %s not acted on yet", kind, feature.Plural(f.Unused[kind], "object")))
		x.Cost = "these objects have no effect"
	}
	f.refusals(&x)
	return x
}

func (f *Facts) refusals(x *Feature) {
	for _, p := range f.Problems {
		x.Break("refused: " + p.Error())
		x.Cost = "the last good version of a refused object stays in force"
	}
}

// server is an API server that objects come from.
func (f *Facts) server() Feature {
	s := f.Server
	x := Feature{Name: "Kubernetes", State: OK, Wanted: "k8sServiceHost: " + f.Config.K8sServiceHost,
		Why: "objects are listed and watched"}
	switch {
	case f.Config.KubeConfigPath != "":
		x.Wanted = "kubeConfigPath: " + f.Config.KubeConfigPath
	case f.Config.K8sServiceHost == "":
		x.Wanted = "a service account"
	}
	var counts, missing []string
	for _, k := range s.Kinds {
		if k.Missing && k.Problem == "" {
			missing = append(missing, k.Name)
			continue
		}
		counts = append(counts, fmt.Sprintf("%d %s", k.Objects, k.Name))
	}
	synced := "not synced"
	if s.Synced {
		synced = "synced"
	}
	x.Chosen = fmt.Sprintf("API server %s, %s, %s: %s", s.Address, synced, f.contact(), strings.Join(counts, ", "))
	if len(missing) > 0 {
		x.Chosen += "; not installed: " + strings.Join(missing, ", ")
	}
	f.refusals(&x)
	for _, k := range s.Kinds {
		switch {
		case k.Problem == "":
		case k.Missing:
			x.FallBack(fmt.Sprintf("%s may not be listed: %s", k.Name, k.Problem))
		default:
			x.Break(fmt.Sprintf("%s can't be listed: %s", k.Name, k.Problem))
		}
	}
	if s.Problem != "" {
		x.Break(fmt.Sprintf("no answer for %s, since %s: %s", f.Now.Sub(s.Since).Round(time.Second),
			s.Since.UTC().Format(time.RFC3339), s.Problem))
		x.Cost = "what was known stays in force; changes are not seen"
	}
	if s.ByService && f.Config.KubeProxyReplacement {
		x.FallBack("k8sServiceHost is not set: the server is asked at the address of its Service")
		x.Cost = "a node that starts for the first time finds no server, unless something else translates that address"
	}
	return x
}

// contact is when the server was last heard of.
func (f *Facts) contact() string {
	if f.Server.LastContact.IsZero() {
		return "never heard of"
	}
	return fmt.Sprintf("heard of %s ago", max(0, f.Now.Sub(f.Server.LastContact)).Round(time.Second))
}
