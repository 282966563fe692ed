package status

import (
	"strings"
	"testing"
)

// socketCase is a line, what is different, and what the line is then.
type socketCase struct {
	line   string
	change func(*Facts)
	state  State
	want   string
}

func socketCases() map[string]socketCase {
	return map[string]socketCase{
		"no Services": {"Bind Protection", func(f *Facts) { f.Config.SocketLB.Enabled = false }, Off,
			"off\nsocketLB.enabled is false"},
		"not attached": {"Bind Protection", func(f *Facts) { f.Services.Attached = false }, Off,
			"off\nno programs are at sockets"},
		"bind": {"Bind Protection", func(*Facts) {}, OK,
			"ports of Services are refused to processes of the host\nwhat listens there hears nothing"},
		"termination": {
			"Socket Termination", func(f *Facts) { f.Services.Termination.Ended = 3 }, OK,
			"UDP sockets of pods and host, 3 ended, by bpf_sock_destroy\ntheir backend has gone, and " +
				"they would not learn of it",
		},
		"termination, of the host": {
			"Socket Termination", func(f *Facts) { f.Config.SocketLB.TerminatePodConnections = false }, OK,
			"UDP sockets of the host, 0 ended, by bpf_sock_destroy\ntheir backend has gone, and they would " +
				"not learn of it",
		},
		"termination, by netlink": {
			"Socket Termination", func(f *Facts) { f.Services.Termination.Netlink = "the kernel is old" }, Fallback,
			"UDP sockets of pods and host, 0 ended, by netlink\ntheir backend has gone, and they would not " +
				"learn of it\n" +
				"the kernel is old",
		},
		"termination, kernel": {
			"Socket Termination", func(f *Facts) { f.Services.Termination.Why = "the kernel ends no socket" }, Fallback,
			"off\nthe kernel ends no socket",
		},
		"termination, problem": {
			"Socket Termination", func(f *Facts) { f.Services.Termination.Problem = "no such place" }, Fallback,
			"UDP sockets of pods and host, 0 ended, by bpf_sock_destroy\ntheir backend has gone, and " +
				"they would not learn of it\nno such place",
		},
		"termination, no Services": {
			"Socket Termination", func(f *Facts) { f.Config.SocketLB.Enabled = false }, Off,
			"off\nsocketLB.enabled is false",
		},
		"checks": {
			"Health Check Ports", func(f *Facts) { f.Services.Checks = Table{Rows: 3, Done: 3} }, OK,
			"3 of 3 served\nof Services of type LoadBalancer with externalTrafficPolicy Local",
		},
		"checks, taken": {
			"Health Check Ports", func(f *Facts) {
				f.Services.Checks = Table{Rows: 3, Done: 2, Failed: 1, Errors: []string{"taken"}}
			}, Fallback,
			"2 of 3 served\nof Services of type LoadBalancer with externalTrafficPolicy Local\ntaken",
		},
		"checks, off": {"Health Check Ports", func(f *Facts) { f.Config.NodePort.EnableHealthCheck = false }, Off,
			"off"},
		"checks, no Services": {"Health Check Ports", func(f *Facts) { f.Config.SocketLB.Enabled = false }, Off,
			"off\nsocketLB.enabled is false"},
		"bind, off": {"Bind Protection", func(f *Facts) { f.Config.NodePort.BindProtection = false }, Off, "off"},
		"bind, old kernel": {
			"Bind Protection", func(f *Facts) { f.Settings.BindProtection = 0 }, Fallback,
			"off\nthe kernel doesn't tell network namespaces apart (5.14 or later does): ports of Services can be " +
				"bound by processes of the host, which hear nothing then",
		},
	}
}

// TestSocketFeatures: what Services ask of sockets beside a backend.
func TestSocketFeatures(t *testing.T) {
	for name, c := range socketCases() {
		t.Run(name, func(t *testing.T) {
			f := services(t)
			c.change(&f)
			x := Explain(f).Feature(c.line)
			got := x.Chosen
			for _, text := range append([]string{x.Why}, x.Problems...) {
				if text != "" {
					got += "\n" + text
				}
			}
			if x.State != c.state || strings.TrimSpace(got) != c.want {
				t.Errorf("got %s\n%s\nwant %s\n%s", x.State, got, c.state, c.want)
			}
		})
	}
}
