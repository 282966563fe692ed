// Package clusterpool gives nodes prefixes for their pods, out of pools that are
// the cluster's.
package clusterpool

import (
	"cmp"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"
)

// Family is the pools of one family, from which each node gets a prefix of Bits.
type Family struct {
	Pools []netip.Prefix // masked, all of one family
	Bits  int            // at least as long as any pool's
}

// Claim is a node, and the prefixes that it has.
type Claim struct {
	Node string
	// Since is when it came to be; zero: it has not yet. Of two that have the same
	// addresses the older one is right.
	Since    time.Time
	PodCIDRs []string
}

// Grant is what a node is to have.
type Grant struct {
	// PodCIDRs are those that it had, and after them what it lacked.
	PodCIDRs []string
	// Problem is what is wrong with what it had, or why something is lacking; empty
	// if nothing is.
	Problem string
}

// Use is how much of a family's pools there is.
type Use struct {
	// Total is how many prefixes the pools have, at most 2^63-1, and Used how many of nodes lie within.
	Total, Used int64
	// Lacking is how many nodes wanted one and got none.
	Lacking int
}

// Assign gives each node a prefix of each family. What nodes have is never
// changed, and never given to another. The result doesn't depend on the order of claims.
func Assign(families []Family, claims []Claim) (grants map[string]Grant, use []Use) {
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(rank(a.Since), rank(b.Since)), a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	grants = map[string]Grant{}
	taken := new(bart.Table[string])
	for i := range claims {
		grants[claims[i].Node] = keep(families, &claims[i], taken)
	}
	use = make([]Use, len(families))
	for i := range families {
		f := newFinder(&families[i], taken)
		for j := range claims {
			grant := grants[claims[j].Node]
			if !has(grant.PodCIDRs, f.is4) {
				grant = f.grant(grant)
				if grant.Problem != "" && !has(grant.PodCIDRs, f.is4) {
					use[i].Lacking++
				}
				grants[claims[j].Node] = grant
			}
		}
		use[i].Total = f.total()
	}
	for p := range taken.All() {
		for i, f := range families {
			if slices.ContainsFunc(f.Pools, func(pool netip.Prefix) bool { return pool.Overlaps(p) }) {
				use[i].Used++
			}
		}
	}
	return grants, use
}

// rank puts those that are not there yet last.
func rank(since time.Time) int {
	if since.IsZero() {
		return 1
	}
	return 0
}

// keep takes what a node has as taken, and says what is wrong with it.
func keep(families []Family, c *Claim, taken *bart.Table[string]) Grant {
	out := Grant{PodCIDRs: slices.Clone(c.PodCIDRs)}
	var problems []string
	for _, text := range c.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			problems = append(problems, fmt.Sprintf("podCIDR %q is not a CIDR such as 10.0.1.0/24 or fd00:1::/64",
				text))
			continue
		}
		if other := holder(taken, p); other != "" && other != c.Node {
			problems = append(problems,
				fmt.Sprintf("podCIDR %s overlaps what node %s has: delete this CiliumNode, and the node's pods, so "+
					"that it gets another", p, other))
			continue
		}
		if !known(families, p) {
			problems = append(problems, fmt.Sprintf("podCIDR %s is of no pool: it stays", p))
		}
		taken.Insert(p, c.Node)
	}
	out.Problem = strings.Join(problems, "; ")
	return out
}

// holder is the node that has addresses of a prefix; empty: none.
func holder(taken *bart.Table[string], p netip.Prefix) string {
	for _, node := range taken.Supernets(p) {
		return node
	}
	for _, node := range taken.Subnets(p) {
		return node
	}
	return ""
}

// known reports whether a prefix is part of a pool, of the length that nodes get.
func known(families []Family, p netip.Prefix) bool {
	for _, f := range families {
		for _, pool := range f.Pools {
			if pool.Contains(p.Addr()) && p.Bits() == f.Bits {
				return true
			}
		}
	}
	return false
}

// has reports whether there is a prefix of a family among texts.
func has(list []string, is4 bool) bool {
	return slices.ContainsFunc(list, func(text string) bool { return strings.Contains(text, ":") != is4 })
}

// finder finds free prefixes, the lowest first.
type finder struct {
	*Family

	is4   bool
	taken *bart.Table[string]
	pool  int
	next  netip.Addr // where to look on in the pool; invalid: at its beginning
}

func newFinder(f *Family, taken *bart.Table[string]) *finder {
	return &finder{Family: f, is4: len(f.Pools) > 0 && f.Pools[0].Addr().Is4(), taken: taken}
}

// grant adds a prefix, or says that there is none.
func (f *finder) grant(g Grant) Grant {
	p, ok := f.find()
	if ok {
		g.PodCIDRs = append(slices.Clone(g.PodCIDRs), p.String())
		f.taken.Insert(p, p.String())
		return g
	}
	problem := fmt.Sprintf("no /%d is left in %s", f.Bits, join(f.Pools))
	if g.Problem != "" {
		problem = g.Problem + "; " + problem
	}
	g.Problem = problem
	return g
}

func (f *finder) find() (netip.Prefix, bool) {
	for ; f.pool < len(f.Pools); f.pool++ {
		pool := f.Pools[f.pool]
		if !f.next.IsValid() {
			f.next = pool.Addr()
		}
		for f.next.IsValid() && pool.Contains(f.next) {
			p := netip.PrefixFrom(f.next, f.Bits)
			f.next = after(p)
			if holder(f.taken, p) == "" {
				return p, true
			}
		}
		f.next = netip.Addr{}
	}
	return netip.Prefix{}, false
}

// after is the first address after a prefix; invalid if there is none.
func after(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	step := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	sum := new(big.Int).Add(new(big.Int).SetBytes(bytes), step)
	if sum.BitLen() > p.Addr().BitLen() {
		return netip.Addr{}
	}
	next, _ := netip.AddrFromSlice(sum.FillBytes(bytes))
	return next
}

// total is how many prefixes there are.
func (f *finder) total() (n int64) {
	for _, pool := range f.Pools {
		bits := f.Bits - pool.Bits()
		if bits >= 62 {
			return 1<<63 - 1
		}
		n += 1 << bits
	}
	return n
}

func join(pools []netip.Prefix) string {
	texts := make([]string, len(pools))
	for i, p := range pools {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
