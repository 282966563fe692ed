package bench

import (
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
)

func TestRate(t *testing.T) {
	begin := moment{time.Unix(1, 0), warmFrames, 1000, time.Second}
	after := func(sent, came uint64, worked time.Duration) moment {
		return moment{begin.at.Add(100 * time.Millisecond), begin.sent + sent, begin.came + came, begin.worked + worked}
	}
	const busy = 99 * time.Millisecond
	for name, c := range map[string]struct {
		from, to moment
		rate     float64
		want     string
	}{
		"saturated": {begin, after(5000, 4000, 100*time.Millisecond), 40000, ""},
		"held up":   {begin, after(5000, 4000, 80*time.Millisecond), 50000, ""},
		"all come":  {begin, after(5000, 5000, busy), 0, "it worked 0.990"},
		"idle": {begin, after(5000, 4000, 49*time.Millisecond), 0,
			"not saturated: it worked 0.490 of the time, 5000 frames were sent, 4000 came"},
		"none comes": {begin, after(5000, 0, busy), 0, "of 5000 frames none came"},
		"late":       {moment{at: begin.at}, after(5000, 4000, busy), 0, "only 0 frames"},
		"over":       {begin, after(runFrames, 4000, busy), 0, "before it was over"},
	} {
		got, share, err := rate(c.from, c.to)
		if got != c.rate || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, %v; want %v, %q", name, got, share, err, c.rate, c.want)
		}
	}
}

// A front that is measured is saturated, does its work in its own thread, and what it forwards is what is counted.
func TestSaturated(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if runtime.NumCPU() < 2 {
		t.Skip("sender and load balancer need a processor each")
	}
	for _, family := range []Family{IPv4, IPv6} {
		for name, by := range map[string]*mine{"tc": {}, "xdp": {xdp: true}} {
			t.Run(name+family.suffix(), func(t *testing.T) {
				f := newFront("full-"+name, family, by)
				defer downAndGone(t, f)
				err := withFronts(t.Context(), []*front{f}, func(all []*player) error {
					return saturate(t, f, all[0], by)
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func saturate(t *testing.T, f *front, p *player, by *mine) error {
	counter := &timing{datapath: by.balancer.datapath, cost: cost{hook: bpf.FromWire}}
	if by.xdp {
		counter.hook = bpf.FromWireXDP
	}
	value, err := f.rate(p, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		return err
	}
	forwarded, err := counter.forwarded()
	if err != nil {
		return err
	}
	came, err := f.sink.count()
	if err != nil {
		return err
	}
	lost, err := f.lost()
	if err != nil {
		return err
	}
	t.Logf("%v packets a second; %d were forwarded, %d came, %d were lost", value, forwarded, came, lost)
	// The first packets of each flow go by tc and the kernel's neighbour table.
	if ratio := float64(came+lost) / float64(forwarded); value <= 0 || ratio < 0.98 || ratio > 1.02 {
		t.Errorf("%v packets a second; %d were forwarded, %d came, %d were lost at a full ring", value, forwarded,
			came, lost)
	}
	return nil
}

// lost returns how many forwarded packets found the ring of the wire's other end full. Its poller runs on the sender's
// processor, which the kernel gives to ordinary threads for up to 50 ms of each second in which real-time threads take
// all of it: with any other load, thousands are lost.
func (f *front) lost() (n uint64, err error) {
	err = inNetns(f.prefix+"a", func() error {
		l, err := netlink.LinkByName("wire0")
		if err == nil {
			n = l.Attrs().Statistics.TxDropped
		}
		return err
	})
	return n, err
}
