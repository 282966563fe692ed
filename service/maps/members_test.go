package maps

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster"
	"myelin/service"
	"myelin/service/servicetest"
	"myelin/service/stats"
)

// memberTexts are the entries of members, by address: "10.0.0.1 1 external".
func (r *rig) memberTexts(t *testing.T) string {
	t.Helper()
	var lines []string
	each(t, r.datapath.Members, func(key *bpf.DatapathMemberKey, value *uint32) {
		text := fmt.Sprintf("%s %d", key.Addr.Netip(), bpf.MemberStat(*value))
		if *value != bpf.MemberValue(bpf.MemberStat(*value), false) {
			text += " external"
		}
		lines = append(lines, text)
	})
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// syncMembers writes what has changed, and returns the entries of members by address.
func (r *rig) syncMembers(t *testing.T) map[string]string {
	t.Helper()
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, line := range strings.Split(r.memberTexts(t), ", ") {
		addr, value, _ := strings.Cut(line, " ")
		out[addr] = value
	}
	return out
}

// A backend has its index until the Service has lost it and the index was held. A backend that found none gets it then.
func TestStatIndexes(t *testing.T) {
	sizes := small()
	sizes["service_stats"] = 3
	r := newRig(t, service.Config{}, sizes)
	o := servicetest.Many(1, 3)
	r.Set(t, o)
	before := r.syncMembers(t)
	if got := slices.Sorted(maps.Values(before)); !slices.Equal(got, []string{"1", "2"}) {
		t.Fatalf("members are %v, want two with the indexes 1 and 2", before)
	}
	if _, _, short := r.Stats().Usage(); !short {
		t.Error("a backend without an index is not noted")
	}
	r.agent(t, r.datapath)
	r.again(t)
	if got := r.syncMembers(t); !maps.Equal(got, before) {
		t.Fatalf("a new agent has %v, want %v", got, before)
	}

	first := func(e cluster.Endpoint) bool { return before[e.Address.String()] == "1" }
	i := slices.IndexFunc(o.Slices[0].Endpoints, first)
	drained := servicetest.With(o.Slices[0], i, servicetest.Drain)
	r.PutSlice(t, drained)
	now := time.Now()
	if got := r.syncMembers(t); !maps.Equal(got, before) || r.tendStats(now) != nil ||
		!maps.Equal(r.syncMembers(t), before) {
		t.Errorf("with a backend that terminates there are %v, want %v", got, before)
	}
	drained.Endpoints = slices.DeleteFunc(slices.Clone(drained.Endpoints), first)
	less := *drained
	r.PutSlice(t, &less)
	r.syncMembers(t)
	if err := r.tendStats(now); err != nil {
		t.Fatal(err)
	}
	if got := r.syncMembers(t); len(got) != 1 {
		t.Errorf("with a backend that is gone there are %v, want one", got)
	}
	if err := r.tendStats(time.Now().Add(stats.HoldTime)); err != nil {
		t.Fatal(err)
	}
	got := r.syncMembers(t)
	if values := slices.Sorted(maps.Values(got)); !slices.Equal(values, []string{"1", "2"}) || maps.Equal(got, before) {
		t.Errorf("members are %v, want two, and not those of before, %v", got, before)
	}
	r.Set(t, servicetest.Many(0, 0))
	if r.syncMembers(t); r.memberTexts(t) != "" {
		t.Errorf("without Services there are %s", r.memberTexts(t))
	}
}

// Only backends that external clients may get are trusted with a DSR option, if there is DSR at all; without an index
// they are members, too.
func TestMembersForExternalClients(t *testing.T) {
	for _, direct := range []uint8{0, 1} {
		r := newRig(t, service.Config{}, small())
		sizes := small()
		sizes["service_stats"] = 2
		r.agent(t, bpftest.LoadMaps(t, bpf.Settings{Direct: direct}, sizes))
		o := servicetest.Many(1, 3)
		o.Services[0].ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		o.Services[0].ExternalLocal = true // the endpoint 1 is this node's
		r.Set(t, o)
		got := r.syncMembers(t)
		local := o.Slices[0].Endpoints[1].Address.String()
		if _, trusted := got[local]; direct == 1 && !trusted {
			t.Errorf("%v do not have %s", got, local)
		}
		n := 0
		for addr, value := range got {
			if strings.HasSuffix(value, "external") != (direct == 1 && addr == local) {
				t.Errorf("direct %d: %s is %s", direct, addr, value)
			}
			if !strings.HasPrefix(value, "0") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("direct %d: %d members of %v have an index, want 1", direct, n, got)
		}
	}
}

// countersOf reports rows of backends in the table that name counters which members do not have for that Service. It
// returns how many rows name some.
func (r *rig) countersOf(t testing.TB) (named int) {
	t.Helper()
	each(t, r.datapath.Backends, func(id *uint32, b *bpf.DatapathBackend) {
		c := b.Counters()
		if _, _, ok := r.Desired.Backends.Get(r.DB.ReadTxn(), service.BackendByID(*id)); !ok || c.Index == 0 {
			return
		}
		named++
		var value uint32
		key := bpf.DatapathMemberKey{Addr: b.Addr, Service: c.Service, Port: b.Port, Proto: b.Proto}
		had, err := bpf.Get(r.datapath.Members, key, &value)
		if err != nil || !had || bpf.MemberStat(value) != c.Index {
			t.Errorf("backend %d names %+v, members have %d (%t, %v)", *id, c, bpf.MemberStat(value), had, err)
		}
	})
	return named
}

// The row of a backend names the counters of one of its Services. When that one has lost it, those of another.
func TestCountersOfBackends(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	o := servicetest.Many(3, 1)
	own, shared := o.Slices[0], *o.Slices[2]
	of := func(i int) uint32 {
		s, _, ok := r.Desired.Services.Get(r.DB.ReadTxn(), service.ByKey(o.Services[i].Key()))
		if !ok {
			t.Fatalf("there is no Service %d", i)
		}
		return s.ID
	}
	names := func(want uint32) {
		t.Helper()
		r.syncMembers(t)
		if n := r.countersOf(t); n != 2 {
			t.Errorf("%d of 2 backends name counters", n)
		}
		each(t, r.datapath.Backends, func(_ *uint32, b *bpf.DatapathBackend) {
			if c := b.Counters(); b.Addr.Netip() == own.Endpoints[0].Address && c.Service != want {
				t.Errorf("the backend of two Services names the counters of %d, want %d", c.Service, want)
			}
		})
	}
	shared.Endpoints = nil
	o.Slices[2] = &shared
	r.Set(t, o)
	first, second := of(0), of(2)
	names(first)
	again := shared
	again.Endpoints = own.Endpoints
	r.PutSlice(t, &again)
	names(first)
	r.agent(t, r.datapath)
	r.again(t)
	names(first)
	none := *own
	none.Endpoints = nil
	r.PutSlice(t, &none)
	names(second)
}
