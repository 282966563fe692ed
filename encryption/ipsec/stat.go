package ipsec

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"myelin/agent/feature"
)

// statFile has what XFRM counts in the thread's network namespace (Documentation/networking/xfrm_proc.rst).
const statFile = "/proc/thread-self/net/xfrm_stat"

// statRow is a counter of packets that XFRM has dropped, under the kernel's name: a row of `myelin encrypt errors`.
type statRow struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
}

func (*statRow) TableHeader() []string { return []string{"Error", "Packets"} }

func (r *statRow) TableRow() []string { return []string{r.Name, strconv.FormatUint(r.Packets, 10)} }

// stat is all counters, in the order of the kernel.
type stat []counter

type counter struct {
	name    string
	packets uint64
}

// errors are those that are not zero, as text.
func (s stat) errors() (list []string) {
	for _, c := range s {
		if c.packets > 0 {
			list = append(list, fmt.Sprintf("%s %d", c.name, c.packets))
		}
	}
	return list
}

func parseStat(text string) (s stat, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %q has no name and number", strings.TrimSpace(line))
		}
		n, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
		}
		s = append(s, counter{fields[0], n})
	}
	return s, nil
}

// readStat reads the counters of the node, which count states and policies of other programs, too.
func (e *IPsec) readStat() (s stat, err error) {
	err = e.kernel.Do(func() error {
		data, err := os.ReadFile(statFile)
		if err != nil {
			return err
		}
		s, err = parseStat(string(data))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read errors of XFRM: %w", err)
	}
	return s, nil
}

func (f *Feature) eachError(yield func(feature.Row) bool) error {
	counted, err := f.ipsec.readStat()
	if err != nil {
		return err
	}
	for _, c := range counted {
		if !yield(&statRow{c.name, c.packets}) {
			break
		}
	}
	return nil
}

// labels are type and error of Cilium's metric for a counter of the kernel; empty if Cilium does not export it.
func labels(counter string) (kind, name string) {
	names := map[string]string{
		"XfrmInError": "other", "XfrmInBufferError": "no_buffer", "XfrmInHdrError": "header",
		"XfrmInNoStates": "no_state", "XfrmInStateProtoError": "state_protocol", "XfrmInStateModeError": "state_mode",
		"XfrmInStateSeqError": "state_sequence", "XfrmInStateExpired": "state_expired",
		"XfrmInStateMismatch": "state_mismatched", "XfrmInStateInvalid": "state_invalid",
		"XfrmInTmplMismatch": "template_mismatched", "XfrmInNoPols": "no_policy", "XfrmInPolBlock": "policy_blocked",
		"XfrmInPolError": "policy", "XfrmFwdHdrError": "forward_header", "XfrmAcquireError": "acquire",
		"XfrmOutError": "other", "XfrmOutBundleGenError": "bundle_generation",
		"XfrmOutBundleCheckError": "bundle_check", "XfrmOutNoStates": "no_state",
		"XfrmOutStateProtoError": "state_protocol", "XfrmOutStateModeError": "state_mode",
		"XfrmOutStateSeqError": "state_sequence", "XfrmOutStateExpired": "state_expired",
		"XfrmOutPolBlock": "policy_blocked", "XfrmOutPolDead": "policy_dead", "XfrmOutPolError": "policy",
		"XfrmOutStateInvalid": "state_invalid",
	}
	kind = "inbound"
	if strings.HasPrefix(counter, "XfrmOut") {
		kind = "outbound"
	}
	if name = names[counter]; name == "" {
		kind = ""
	}
	return kind, name
}
