package status

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"myelin/agent/feature"
)

// agent is the line that `cilium-dbg status` calls Cilium.
func (f *Facts) agent() Feature {
	x := Feature{Name: "Myelin", State: OK, Why: "what forwards is held by the kernel, with or without an agent"}
	if f.Ready == 0 {
		f.starting(&x)
		return x
	}
	adopted := 0
	for _, m := range f.Maps {
		if m.Adopted {
			adopted++
		}
	}
	x.Chosen = fmt.Sprintf("ready %s after its start", f.Ready.Round(time.Millisecond))
	if adopted > 0 {
		x.Chosen += fmt.Sprintf(", with %d of %d maps of the agent before it", adopted, len(f.Maps))
	}
	if f.Reloads > 0 {
		x.Chosen += fmt.Sprintf("; reloaded %s, last at %s: %s", times(f.Reloads),
			f.ReloadAt.UTC().Format(time.RFC3339), f.ReloadWhy)
	}
	return x
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// starting says what an agent that is not ready waits for.
func (f *Facts) starting(x *Feature) {
	w := f.Waiting
	if w == nil {
		w = &Waiting{Part: "health", Since: f.Began}
	}
	x.Chosen = fmt.Sprintf("starting for %s, at: %s", f.Now.Sub(f.Began).Round(time.Second), w.Part)
	if w.Reason == "" {
		x.Break("the agent is not ready yet")
		return
	}
	x.Chosen = fmt.Sprintf("waiting for %s, since %s, at: %s", f.Now.Sub(w.Since).Round(time.Second),
		w.Since.UTC().Format(time.RFC3339), w.Part)
	x.Break(w.Reason)
	if w.Help != "" {
		x.Break("what would help: " + w.Help)
	}
	x.Cost = "no pod can be added; pods of before go on as they are, and deletions are queued"
}

func (f *Facts) configuration() Feature {
	x := Feature{Name: "Configuration", State: OK}
	set := 0
	for _, s := range f.Config.Explain() {
		if s.Source != "default" && s.Source != "derived" {
			set++
		}
	}
	x.Chosen = feature.Plural(set, "key") + " set, the rest are defaults"
	for _, w := range f.Config.Warnings {
		x.FallBack(w.Key + ": " + w.Reason)
	}
	return x
}

func (f *Facts) cni() Feature {
	x := Feature{Name: "CNI Config file", State: OK, Wanted: "cni.confPath: " + f.Config.CNI.ConfPath,
		Chosen: f.Conflist.Path}
	if f.standalone(&x) {
		return x
	}
	if f.Conflist.Error != nil {
		x.Break(f.Conflist.Error.Error())
		x.Cost = "the container runtime starts no pods with our network"
	}
	if len(f.Conflist.Before) > 0 {
		x.Break("the runtime takes " + strings.Join(f.Conflist.Before, ", ") +
			" instead: remove it, or give it a name that sorts after ours")
		x.Cost = "new pods get another network"
	}
	return x
}

func (f *Facts) ipam() Feature {
	x := Feature{Name: "IPAM", State: OK, Wanted: "ipam.mode: " + f.Config.IPAMMode, Why: "podCIDRs of the Node object"}
	if f.Config.IPAMMode == "cluster-pool" {
		x.Why = "podCIDRs of the CiliumNode object"
	}
	if f.standalone(&x) {
		return x
	}
	var texts []string
	for _, u := range f.Pools {
		if u.Capacity == math.MaxUint64 {
			texts = append(texts, fmt.Sprintf("%s %d used", u.Prefix, u.InUse))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s %d/%d", u.Prefix, u.InUse, u.Capacity))
		if u.InUse >= u.Capacity {
			x.Break(fmt.Sprintf("%s is exhausted: a new pod gets no address of it", u.Prefix))
		} else if float64(u.InUse) > warnFull*float64(u.Capacity) {
			x.FallBack(fmt.Sprintf("%s is nearly exhausted: %d addresses are left", u.Prefix, u.Capacity-u.InUse))
		}
	}
	x.Chosen = strings.Join(texts, ", ")
	if p := f.PodCIDRs; p != nil && p.Problem != "" {
		x.Break(p.Problem)
	} else if len(texts) == 0 {
		x.Break("the Node object has no podCIDR of a family that is on")
	}
	if len(texts) == 0 {
		x.Chosen = "no podCIDR"
	}
	f.outside(&x)
	return x
}

// outside tells of pods that outlive a change of podCIDRs.
func (f *Facts) outside(x *Feature) {
	if len(f.Outside) == 0 {
		return
	}
	var texts []string
	for _, a := range f.Outside[:min(len(f.Outside), feature.Few)] {
		texts = append(texts, a.String())
	}
	if more := len(f.Outside) - feature.Few; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	x.FallBack("in no podCIDR of the node, and kept until their pods go: " + strings.Join(texts, ", "))
	x.Cost = "other nodes don't find the way to these addresses"
}

// warnFull is the share from which a pool or map is reported as nearly full.
const warnFull = 0.9

func (f *Facts) endpoints() Feature {
	x := Feature{Name: "Endpoints", State: OK, Chosen: "none"}
	var texts []string
	for _, state := range slices.Sorted(maps.Keys(f.Counts.Endpoints)) {
		texts = append(texts, fmt.Sprintf("%d %s", f.Counts.Endpoints[state], state))
	}
	if len(texts) > 0 {
		x.Chosen = strings.Join(texts, ", ")
	}
	for _, t := range f.Tables {
		if t.Name == "endpoints" && t.Failed > 0 {
			x.Break(feature.Plural(t.Failed, "endpoint") + " could not be written to the kernel; see Controller Status")
			x.Cost = "these pods have no network, or an old one"
		}
	}
	for _, stray := range f.Strays {
		x.Break(stray.String() + ": the state of its pod was lost; delete the pod")
		x.Cost = "these pods have no network"
	}
	return x
}

// reconcilers are what Cilium calls controllers.
func (f *Facts) reconcilers() Feature {
	x := Feature{Name: "Controller Status", State: OK}
	rows, done, pending, failed := 0, 0, 0, 0
	for _, t := range f.Tables {
		rows, done, pending, failed = rows+t.Rows, done+t.Done, pending+t.Pending, failed+t.Failed
		for i, e := range t.Errors {
			if i == feature.Few {
				x.Break(fmt.Sprintf("%s: … and %d more", t.Name, t.Failed-i) + feature.SeeVerbose)
				break
			}
			x.Break(t.Name + ": " + e)
		}
	}
	x.Chosen = fmt.Sprintf("%d/%d rows of %s healthy", done, rows, feature.Plural(len(f.Tables), "table"))
	if pending > 0 {
		x.Chosen += fmt.Sprintf(", %d pending", pending)
	}
	if failed > 0 {
		x.Chosen += fmt.Sprintf(", %d failing", failed)
		x.Why = "failed rows are tried again, after 30 s at the latest"
	}
	return x
}

func onOff(key string, value bool) string { return fmt.Sprintf("%s: %t", key, value) }
