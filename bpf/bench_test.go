package bpf

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// benchRepeat packets go through a program in one call, each as the one before left it: their TTL begins with 255.
const benchRepeat = 250

// benchWorld makes every link's MAC that of pod a, so that a packet which left a hook can come in again.
func benchWorld(b *testing.B, s Settings) *world {
	w := newWorld(b, s, nil)
	n := worldNames()
	pods := map[string]string{"a": "linka", "b": "linkb"}
	for name, link := range pods {
		row := DatapathEndpoint{Ifindex: uint32(w.index[link]), Slot: 2, PodMac: MAC(n["node"].MAC),
			LinkMac: MAC(n["node"].MAC)}
		for _, a := range families(n[name]) {
			must(b, w.Endpoints.Put(Addr(a), row))
		}
		must(b, w.PodLinks.Put(row.Ifindex, DatapathPodLink{Addr4: Addr(n[name].IP4), Addr6: Addr(n[name].IP6),
			Endpoint: row}))
	}
	w.bump(b, 0)
	return w
}

func (w *world) timed(b *testing.B, prog *ebpf.Program, device string, frame []byte) time.Duration {
	o := ebpf.RunOptions{Data: frame, Context: packettest.SkBuff{Ifindex: uint32(w.index[device])}, Repeat: benchRepeat}
	began := time.Now()
	_, err := prog.Run(&o)
	took := time.Since(began)
	must(b, err)
	return took
}

// bench runs a packet through a hook, each time beside to_pod, which only parses it: nanoseconds a packet depend on the
// machine and its load, the ratio little.
func (w *world) bench(b *testing.B, f packet.Family, prog *ebpf.Program, device, text, want string) {
	defer w.enter(b)()
	frame := packettest.Frame(b, f, worldNames(), text)
	base, bare := w.ToPod, bareRedirect(b, w.index["linka"])
	for range 2 { // decides, and revalidates
		w.timed(b, prog, device, frame)
		w.timed(b, bare, device, frame)
	}
	had := w.counters(b)
	var took, baseTook, bareTook time.Duration
	rounds := 0
	for n := 0; n < b.N; n += benchRepeat {
		took += w.timed(b, prog, device, frame)
		baseTook += w.timed(b, base, device, frame)
		bareTook += w.timed(b, bare, device, frame)
		rounds++
	}
	// Once a second the way is decided again.
	forwarded := uint64(0)
	for _, hook := range w.counters(b) {
		forwarded += hook[w.outcomes[want]]
	}
	for _, hook := range had {
		forwarded -= hook[w.outcomes[want]]
	}
	if all := uint64(rounds * benchRepeat); forwarded < all*9/10 {
		b.Fatalf("%d of %d packets ended in %s", forwarded, all, want)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(rounds*benchRepeat), "ns/packet")
	b.ReportMetric(float64(took-bareTook)/float64(rounds*benchRepeat), "ns-above-redirect")
	b.ReportMetric(float64(took)/float64(baseTook), "times-to_pod")
	b.ReportMetric(0, "ns/op")
}

// bareRedirect is the shortest program that forwards.
func bareRedirect(b *testing.B, to int) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(),
			asm.Return()}})
	must(b, err)
	b.Cleanup(func() { p.Close() })
	return p
}

// In the VM with instruction counting, nanoseconds are instructions.
func BenchmarkHooks(b *testing.B) {
	for _, mode := range []struct {
		name     string
		settings Settings
	}{
		{"no-rows", settingsOf()},
		{"no-rows,IPv4-alone", settingsOf(func(s *Settings) { s.Ipv6 = 0 })},
		{"flow-rows", settingsOf(tracking)},
		{"netkit", settingsOf(netkit)},
		{"netkit,flow-rows", settingsOf(netkit, tracking)},
	} {
		for _, f := range []packet.Family{packet.IPv4, packet.IPv6} {
			if f == packet.IPv6 && mode.settings.Ipv6 == 0 {
				continue
			}
			w := benchWorld(b, mode.settings)
			for _, way := range []struct {
				name, device, text, want string
				prog                     *ebpf.Program
			}{
				{"from_pod-to-pod", "linka", `eth node > gw | ip a > b ttl 255 | tcp 40000 > 80 A | len 64`,
					"FORWARD_POD", w.FromPod},
				{"from_pod-to-wire", "linka", `eth node > gw | ip a > c ttl 255 | tcp 40000 > 80 A | len 64`,
					"FORWARD_WIRE", w.FromPod},
				{"from_wire-to-pod", "eth0", `eth node2 > node | ip c > a ttl 255 | tcp 80 > 40000 A | len 64`,
					"FORWARD_POD", w.FromWire},
			} {
				b.Run(mode.name+"/"+f.String()+"/"+way.name, func(b *testing.B) {
					w.bench(b, f, way.prog, way.device, way.text, way.want)
				})
			}
		}
	}
}
