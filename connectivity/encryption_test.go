package connectivity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestPlanEncryption: what is encrypted carries the secret, and one check the canary, unless nodes encrypt all.
func TestPlanEncryption(t *testing.T) {
	f := cluster([]string{"n1", "n2"}, true)
	f.encryption = encryption{watch: watch{secret: "secret", canary: "canary"}}
	for _, nodes := range []bool{false, true} {
		f.encryption.nodes = nodes
		tests := plan(f)
		for _, name := range []string{"encryption/pods", "encryption/pods-and-nodes", "encryption/nodes"} {
			one := find(t, tests, name)
			if skipped := one.skip != ""; skipped != (name == "encryption/nodes" && !nodes) {
				t.Errorf("%s with node encryption %t: skipped for %q", name, nodes, one.skip)
			}
			canaries, want := 0, 2
			if nodes {
				want = 0
			}
			for _, c := range one.steps[0].checks {
				switch {
				case c.probe.Text == "canary" && c.from.host && c.target.host:
					canaries++
				case c.probe.Text != "secret" && !strings.HasSuffix(c.probe.URL, "/secret"):
					t.Errorf("%s: %+v carries no secret", name, c.probe)
				}
			}
			if canaries != want || (one.watch.canary != "") != (want > 0) {
				t.Errorf("%s with node encryption %t: %d canaries, want %d; %+v", name, nodes, canaries, want,
					one.watch)
			}
		}
	}
}

func TestPlanWithoutEncryption(t *testing.T) {
	for name, tc := range map[string]struct {
		encryption   encryption
		skip, broken string
	}{
		"off":     {encryption{off: "encryption.enabled is false"}, "encryption.enabled is false", ""},
		"unknown": {encryption{unknown: "node n1: no agent runs there"}, "", "node n1: no agent runs there"},
	} {
		f := cluster([]string{"n1", "n2"}, false)
		f.encryption = tc.encryption
		for _, test := range []string{"encryption/pods", "encryption/nodes"} {
			if one := find(t, plan(f), test); one.skip != tc.skip || one.broken != tc.broken {
				t.Errorf("%s, %s: skipped for %q, can't be made for %q", name, test, one.skip, one.broken)
			}
		}
	}
	if skip := find(t, plan(cluster([]string{"n1"}, false)), "encryption/pods").skip; skip != "there is one node only" {
		t.Errorf("on one node: skipped for %q", skip)
	}
}

func TestWatchProblem(t *testing.T) {
	both, secret := watch{"secret", "canary"}, watch{"secret", ""}
	for name, tc := range map[string]struct {
		watch    watch
		captured captured
		want     string // a part of the problem
	}{
		"encrypted":               {both, captured{Frames: 90, Seen: []int{0, 2}}, ""},
		"encrypted, nodes too":    {secret, captured{Frames: 90, Seen: []int{0, 0}}, ""},
		"in plain text":           {both, captured{Frames: 90, Seen: []int{3, 2}}, "3 of 90 captured frames"},
		"in plain text, and lost": {both, captured{Frames: 90, Lost: 1, Seen: []int{3, 2}}, "3 of 90 captured"},
		"lost":                    {both, captured{Frames: 90, Lost: 7, Seen: []int{0, 2}}, "7 frames were not"},
		"another device":          {both, captured{Frames: 90, Seen: []int{0, 0}}, "this shows nothing"},
		"nothing":                 {secret, captured{Seen: []int{0, 0}}, "this shows nothing"},
	} {
		got := tc.watch.problem(tc.captured)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestCapture finds in the frames of loopback what a probe sends, and only that.
func TestCapture(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("capturing needs root")
	}
	p := serving(t)
	stdin, stop := io.Pipe()
	output, stdout := io.Pipe()
	done := make(chan error, 1)
	texts := []string{"capture-secret", "capture-other", ""}
	go func() {
		done <- errors.Join(Capture(t.Context(), stdin, stdout, []string{"lo"}, texts), stdout.Close())
	}()
	var ready [len(captureReady) + 1]byte
	if _, err := io.ReadFull(output, ready[:]); err != nil || string(ready[:]) != captureReady+"\n" {
		t.Fatalf("a capture begins with %q, %v", ready, err)
	}
	probe := Probe{URL: fmt.Sprintf("udp://127.0.0.1:%d", p.udp), Text: texts[0], Size: 4000, Timeout: time.Second}
	for end := time.Now().Add(5 * time.Second); ; {
		if a := Run(t.Context(), []Probe{probe})[0]; a.Error == "" {
			break
		} else if time.Now().After(end) {
			t.Fatal(a.Error)
		}
	}
	stop.Close()
	said, err := io.ReadAll(output)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	var got captured
	if err := json.NewDecoder(bytes.NewReader(said)).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Seen) != 3 || got.Frames < 4 || got.Seen[0] < 4 || got.Seen[1]+got.Seen[2]+got.Lost != 0 {
		t.Errorf("got %+v, want the datagram and what came back, each twice", got) // sent and received
	}
}
