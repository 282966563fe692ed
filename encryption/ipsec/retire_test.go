package ipsec

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestRetired: states are removed in order when their time is over, unless they are wanted again; again after an error.
func TestRetired(t *testing.T) {
	start := time.Unix(1000, 0)
	of := func(spi uint32) id { return id{netip.MustParseAddr("192.168.64.2"), spi} }
	r, fails := newRetired(), true
	var removed []uint32
	expire := func(after time.Duration) time.Time {
		next, _, err := r.expire(start.Add(after), func(i id) error {
			if i.spi == 4 && fails {
				fails = false
				return errors.New("busy")
			}
			removed = append(removed, i.spi)
			return nil
		})
		if failed := err != nil; failed != (after == 3*lingerTime) {
			t.Errorf("after %s: %v", after, err)
		}
		return next
	}
	_, added, _ := r.expire(start, nil)
	r.add(of(1), start)
	select {
	case <-added:
	default:
		t.Error("the channel is not closed when a state is added")
	}
	r.add(of(2), start.Add(time.Second))
	r.add(of(3), start.Add(time.Second))
	r.add(of(1), start.Add(5*time.Second)) // changes nothing
	r.keep(of(2))
	if next := expire(lingerTime - 1); len(removed) > 0 || !next.Equal(start.Add(lingerTime)) {
		t.Errorf("too early: removed %v, next at %s", removed, next)
	}
	r.add(of(2), start.Add(2*time.Second))
	if next := expire(lingerTime + time.Second); !slices.Equal(removed, []uint32{1, 3}) ||
		!next.Equal(start.Add(lingerTime+2*time.Second)) {
		t.Errorf("removed %v, next at %s", removed, next)
	}
	r.add(of(4), start.Add(2*lingerTime))
	expire(3 * lingerTime)
	if next := expire(4 * lingerTime); !slices.Equal(removed, []uint32{1, 3, 2, 4}) || !next.IsZero() {
		t.Errorf("removed %v, next at %s", removed, next)
	}
}
