package labtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/test/lab/oracle"
)

// maxTuples is how many connections are opened between the ports of packets of a round.
const maxTuples = 4

// open are the flows of TCP connections to pods.
func (z *fuzz) open() (list []oracle.Flow) {
	for _, l := range z.lasting {
		if l != nil && l.Proto == oracle.TCP && l.place[1].Pod && l.SPort != 0 && !l.gone {
			list = append(list, l.Flow)
		}
	}
	return list
}

// checkLiving notes connections that do not go on after a round, or do not open, although policies allow that: those
// that are open, new ones to Services, and some between the ports of packets that had the option of direct server
// return.
func (z *fuzz) checkLiving(t *testing.T) {
	t.Helper()
	for _, l := range z.lasting {
		if l == nil || l.Proto != oracle.TCP || l.gone || l.denied || !z.model.Opens(l.Connection) {
			continue
		}
		if err := l.exchange(); err != nil {
			z.hangs(l, err)
			l.gone = true
		}
	}
	for _, s := range z.slots {
		if s.way == wayService || s.way == wayOutside {
			z.openOnce(t, s)
		}
	}
	z.openTuples(t)
}

// exchange has each side hear of the other one. TCP may have to send again.
func (l *lasting) exchange() error {
	for side := range 2 {
		if err := l.say(side, 1); err != nil {
			return fmt.Errorf("%s cannot send: %w", l.place[side].Name, err)
		}
		if err := l.await(1-side, patience(2500*time.Millisecond)); err != nil {
			return fmt.Errorf("%s receives nothing from %s: %w", l.place[1-side].Name, l.place[side].Name, err)
		}
	}
	return nil
}

// openOnce opens a connection of the slot's kind, and closes it.
func (z *fuzz) openOnce(t *testing.T, s slot) {
	t.Helper()
	for range 20 {
		l := z.candidate(s)
		if l == nil || !z.model.Opens(l.Connection) {
			continue
		}
		z.lasting = append(z.lasting, l) // by which the server's end is found
		if err := z.connect(t, l); err != nil {
			z.hangs(l, err)
		}
		z.received["opened"]++
		z.lasting = z.lasting[:len(z.lasting)-1]
		l.close()
		return
	}
}

// openTuples opens connections between the addresses and ports of packets that had the option.
func (z *fuzz) openTuples(t *testing.T) {
	t.Helper()
	known, opened := map[oracle.Flow]bool{}, 0
	for _, f := range z.open() {
		known[f] = true
	}
	for _, a := range slices.Backward(z.history) {
		if !a.Direct || len(a.Real) == 0 || a.Real[0].Proto != oracle.TCP || known[a.Real[0]] {
			continue
		}
		f := a.Real[0]
		known[f] = true
		l := &lasting{way: wayTuple, Connection: oracle.Connection{Flow: f}, front: at(f.Dst, f.DPort)}
		for i, a := range []netip.Addr{f.Src, f.Dst} {
			k := slices.IndexFunc(z.model.Places, func(p *oracle.Place) bool { return p.Has(a) })
			if k >= 0 && z.model.Places[k].Pod { // the world has no route to pods
				l.place[i] = z.model.Places[k]
			}
		}
		same := l.place[0] == l.place[1] || l.place[0] == nil || l.place[1] == nil
		if same || !slices.Contains(postPorts(), f.DPort) || !z.model.Opens(l.Connection) {
			continue
		}
		if z.openTuple(t, l) {
			opened++
		}
		if opened == maxTuples {
			return
		}
	}
}

// openTuple opens a connection to a post from a port that is known; false, if another socket of the client's has it.
func (z *fuzz) openTuple(t *testing.T, l *lasting) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience(3500*time.Millisecond)) // two more SYNs
	defer cancel()
	z.model.Goes(l.Connection)
	client, err := z.endOf(l.place[0]).dialTCP(ctx, at(l.Src, l.SPort), l.front)
	switch {
	case errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL):
		return false
	case err != nil && !errors.Is(err, syscall.ECONNREFUSED):
		z.hangs(l, err)
	case err == nil:
		l.conn[0] = client
		l.close()
	}
	z.received["tuples"]++
	return true
}
