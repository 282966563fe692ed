package bench

import (
	"math"
	"net/netip"
	"slices"

	"myelin/bench/results"
	"myelin/service"
)

const (
	maglevSeed     = 1
	maglevBackends = 100
)

// Maglev measures tables of 100 backends. Of all flows, how many percent move beyond the share of the backend that
// goes, at worst of all that may go; and by how many percent the share of a backend differs from what weights of 1 to
// 10 say, at worst.
func Maglev() []results.Result {
	excess, off := 0.0, 0.0
	for _, family := range []Family{IPv4, IPv6} {
		equal, weighted := maglevTeam(family, 1), maglevTeam(family, 10)
		before := maglevTable(equal)
		for i := range equal {
			excess = max(excess, moved(before, maglevAfter(equal, i), equal[i].ID))
		}
		off = max(off, weightError(weighted))
	}
	return []results.Result{
		{Name: "maglev/excess_moved", Value: 100 * excess, Unit: "%"},
		{Name: "maglev/weight_error", Value: 100 * off, Unit: "%"},
	}
}

func maglevTeam(family Family, weights int) []service.MaglevBackend {
	var team []service.MaglevBackend
	for i, a := range addresses(family.backends().Addr().Next(), maglevBackends) {
		team = append(team, service.MaglevBackend{L4Addr: l4(a), ID: uint32(i + 1), Weight: uint16(1 + i%weights)})
	}
	return team
}

func l4(a netip.Addr) service.L4Addr { return service.L4(a, serverPort, service.TCP) }

func maglevTable(team []service.MaglevBackend) []uint32 {
	return service.MaglevTable(maglevSeed, service.MaglevSize(maglevBackends), team)
}

// maglevAfter is the table without a backend. Its size stays: a Service that loses one of many keeps it.
func maglevAfter(team []service.MaglevBackend, gone int) []uint32 {
	return maglevTable(slices.Delete(slices.Clone(team), gone, gone+1))
}

// moved is the share of the flows that have another backend, and had not the one that is gone.
func moved(before, after []uint32, gone uint32) float64 {
	n := 0
	for i, id := range before {
		if id != gone && after[i] != id {
			n++
		}
	}
	return float64(n) / float64(len(before))
}

func weightError(team []service.MaglevBackend) (worst float64) {
	places, sum := map[uint32]int{}, 0.0
	table := maglevTable(team)
	for _, id := range table {
		places[id]++
	}
	for _, b := range team {
		sum += float64(b.Weight)
	}
	for _, b := range team {
		want := float64(b.Weight) / sum
		worst = max(worst, math.Abs(float64(places[b.ID])/float64(len(table))-want)/want)
	}
	return worst
}
