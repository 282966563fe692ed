package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// jailsByName lets pod a connect by name only, and no name is known; nothing may connect to it. Pod b may be reached
// through the proxy by c, and by DNS.
func jailsByName(t testing.TB, w *world) {
	all(isolates(slotA, egress, allows("named", tcp, 443), proxies("named", tcp, 80), allows("named", udp, 53)),
		isolates(slotA, ingress), byName(slotA),
		isolates(slotB, ingress, proxies("c", tcp, 80), proxies("c", udp, 53), allows("", tcp, 81)))(t, w)
}

// takesXDP has eth0 take frames in XDP, where the kernel can test it, and world2 in the denylist.
func takesXDP(t testing.TB, w *world) {
	refusing("world2", true)(t, w)
	if k := kernelVersion(t); k[0] > xdpTestRuns[0] || k[0] == xdpTestRuns[0] && k[1] >= xdpTestRuns[1] {
		receivesXDP(t, w)
		w.takesXDP = true
	}
}

// thrown is a frame, and what became of it.
type thrown struct {
	hook, device string
	in, out      []byte
	ret          uint32
	want         string // the only outcome; "" if none is counted
	answer       string // the answer to the sender in the frame's place: an ICMP error or a TCP reset
}

// passed reports whether the packet itself goes on.
func (r *thrown) passed() bool { return strings.HasPrefix(r.want, "FORWARD_") }

// throw runs the frame through the hook, and returns what is wrong with what became of it.
func (w *world) throw(t testing.TB, at string, frame []byte) error {
	t.Helper()
	had := w.counters(t)
	s := w.step(t, 0, step{at: at})
	r := thrown{in: frame}
	r.hook, r.device, _ = strings.Cut(at, " ")
	var err error
	if s.Prog.Type() == ebpf.XDP {
		r.ret, r.out, err = packettest.RunXDP(s.Prog, frame, s.Options.Ifindex)
	} else {
		var done packettest.Result
		done, err = packettest.Run(s.Prog, frame, s.Options)
		r.ret, r.out = done.Ret, done.Out
	}
	if errors.Is(err, unix.EINVAL) {
		return nil // the kernel makes no such packet
	}
	if err != nil {
		return err
	}
	if err := errors.Join(r.count(w, had, w.counters(t)), w.verify(&r)); err != nil {
		return fmt.Errorf("%w\nin  %s\nout %s", err, packet.Format(frame, worldNames()),
			packet.Format(r.out, worldNames()))
	}
	return nil
}

// count finds the outcome by the counters before and after, and says what is wrong with their number.
func (r *thrown) count(w *world, had, now [len(hooks)]outcomeCounts) error {
	var counted, answers []string
	for name, o := range w.outcomes {
		for h, c := range now {
			for range c[o] - had[h][o] {
				if name == "REPLY_ICMP" || name == "REPLY_RESET" {
					answers = append(answers, name)
				} else {
					counted = append(counted, name)
				}
			}
		}
	}
	if len(counted) > 1 || len(answers) > 1 {
		return fmt.Errorf("counted %v and answers %v, want one outcome", counted, answers)
	}
	r.want, r.answer = strings.Join(counted, ""), strings.Join(answers, "")
	if r.answer != "" && !strings.HasPrefix(r.want, "DROP_") {
		return fmt.Errorf("%s, and answered by %s", r.want, r.answer)
	}
	return nil
}

// verify checks what holds for every packet.
func (w *world) verify(r *thrown) error {
	if err := r.verifyReturn(); err != nil {
		return err
	}
	checks := []error{r.verifySender(w.settings.Services != 0)}
	if w.settings.L7 != 0 {
		checks = append(checks, r.verifyProxy(), r.verifyJail())
	}
	if w.settings.Prefilter != 0 && strings.HasPrefix(r.hook, "from_wire") && r.passed() && sent(r.in, "world2") {
		checks = append(checks, fmt.Errorf("%s from a denylisted address", r.want))
	}
	return errors.Join(checks...)
}

// verifyReturn: the hook returns what its outcome stands for. Some hooks pass what is not theirs without counting.
func (r *thrown) verifyReturn() error {
	want := verdict(r.hook, strings.TrimSpace(r.want+" "+r.answer))
	if r.want == "" {
		switch Hook(r.hook) {
		case ToPod, ToWire, FromWireXDP:
		case FromProxy:
			want = actShot // what is not IP, which the proxy's network namespace sends on its own
		default:
			return errors.New("no outcome is counted")
		}
	}
	if r.ret != want && !(Hook(r.hook) == FromWireXDP && want == xdpTX && r.ret == xdpRedirect) {
		return fmt.Errorf("returned %d, want %d for %q", r.ret, want, r.want)
	}
	return nil
}

// verifySender: nothing goes on from a pod but what the pod may send, or the node or a Service in its place.
func (r *thrown) verifySender(services bool) error {
	if r.hook != string(FromPod) || r.ret == actShot {
		return nil
	}
	if r.device == "other0" {
		return fmt.Errorf("%s for a link of no pod", r.want)
	}
	may := []string{"gw", "node", map[string]string{"linka": "a", "linkb": "b"}[r.device]}
	if services {
		may = append(may, "vip", "lb")
	}
	if r.answer == "REPLY_RESET" && senderOf(r.out) == receiverOf(r.in) {
		return nil // to the pod itself, as if its peer had sent it
	}
	if senderOf(r.out).IsValid() && !sent(r.out, may...) {
		return fmt.Errorf("%s from %s", r.want, senderOf(r.out))
	}
	return nil
}

// verifyProxy: what is for the proxy goes to its devices, and nothing else does. The proxy sends nothing but what it
// says that it sends, or the node in its place, and nothing to itself.
func (r *thrown) verifyProxy() error {
	n := worldNames()
	toProxy := bytes.Equal(r.out[:12], slices.Concat(n["proxy"].MAC, n["gwp"].MAC))
	if r.want == "FORWARD_PROXY" {
		if r.hook == string(FromProxy) {
			return errors.New("the proxy's packet goes to the proxy")
		}
		if datagram := bytes.Equal(r.out[:12], make([]byte, 12)); !toProxy && !datagram {
			return fmt.Errorf("%s to %x", r.want, r.out[:6])
		}
		return nil
	}
	if r.passed() && r.want != "FORWARD_STACK" && toProxy {
		return fmt.Errorf("%s to the proxy's device", r.want)
	}
	if r.hook == string(FromProxy) && r.passed() && senderOf(r.out) != senderOf(r.in) && !sent(r.out, "node") {
		return fmt.Errorf("%s from %s in the name of %s", r.want, senderOf(r.out), senderOf(r.in))
	}
	return nil
}

// verifyJail: what a pod sends that may connect by name only does not pass while it has no name's address. Nor does
// what the proxy sends in its name, or to it, except ICMP errors, which are of the proxy's own connections.
func (r *thrown) verifyJail() error {
	switch {
	case !r.passed():
	case r.hook == string(FromPod) && r.device == "linka":
		return fmt.Errorf("%s from a pod that may send nothing", r.want)
	case r.hook == string(FromProxy) && hasPorts(r.in) && (sent(r.in, "a") || receives(r.in, "a")):
		return fmt.Errorf("%s of the proxy for a pod that may neither send nor receive", r.want)
	}
	return nil
}

// sent reports whether the frame is from one of the names, by its IP header.
func sent(frame []byte, names ...string) bool { return isOne(senderOf(frame), names) }

// receives reports whether the frame is to one of the names, by its IP header.
func receives(frame []byte, names ...string) bool { return isOne(receiverOf(frame), names) }

func isOne(a netip.Addr, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return slices.Contains(families(worldNames()[name]), a)
	})
}

// senderOf is the source address of an IP packet.
func senderOf(frame []byte) netip.Addr {
	switch {
	case len(frame) >= 34 && frame[12] == 8 && frame[13] == 0:
		return netip.AddrFrom4([4]byte(frame[26:30]))
	case len(frame) >= 54 && frame[12] == 0x86 && frame[13] == 0xdd:
		return netip.AddrFrom16([16]byte(frame[22:38]))
	}
	return netip.Addr{}
}

// receiverOf is the destination address of an IP packet.
func receiverOf(frame []byte) netip.Addr {
	switch src := senderOf(frame); {
	case src.Is4():
		return netip.AddrFrom4([4]byte(frame[30:34]))
	case src.Is6():
		return netip.AddrFrom16([16]byte(frame[38:54]))
	}
	return netip.Addr{}
}

// hasPorts reports whether TCP or UDP follows the IP header, which need not be valid.
func hasPorts(frame []byte) bool {
	protocol := map[bool]int{true: 23, false: 20}[senderOf(frame).Is4()]
	return len(frame) > protocol && (frame[protocol] == tcp || frame[protocol] == udp)
}
