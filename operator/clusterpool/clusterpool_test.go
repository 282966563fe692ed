package clusterpool_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/operator/clusterpool"
)

// family reads "BITS POOL POOL…".
func family(text string) clusterpool.Family {
	var f clusterpool.Family
	for i, word := range strings.Fields(text) {
		if i == 0 {
			fmt.Sscan(word, &f.Bits)
			continue
		}
		f.Pools = append(f.Pools, netip.MustParsePrefix(word))
	}
	return f
}

// claim reads "NODE AGE CIDR…"; age 0 is not there yet.
func claim(text string) clusterpool.Claim {
	words := strings.Fields(text)
	c := clusterpool.Claim{Node: words[0], PodCIDRs: words[2:]}
	if words[1] != "0" {
		var age int64
		fmt.Sscan(words[1], &age)
		c.Since = time.Unix(10000-age, 0)
	}
	return c
}

type assignCase struct {
	name     string
	families []string
	claims   []string
	want     []string // "NODE CIDRs | problem"
	use      []clusterpool.Use
}

func assignCases() []assignCase {
	return []assignCase{
		{"new nodes, both families", []string{"24 10.0.0.0/22", "120 fd00::/118"}, []string{"b 0", "a 0"},
			[]string{"a 10.0.0.0/24,fd00::/120 |", "b 10.0.1.0/24,fd00::100/120 |"},
			[]clusterpool.Use{{Total: 4, Used: 2}, {Total: 4, Used: 2}}},
		{"what nodes have stays, gaps are filled", []string{"24 10.0.0.0/22"},
			[]string{"a 3 10.0.1.0/24", "b 2 10.0.3.0/24", "c 0", "d 0"},
			[]string{"a 10.0.1.0/24 |", "b 10.0.3.0/24 |", "c 10.0.0.0/24 |", "d 10.0.2.0/24 |"},
			[]clusterpool.Use{{Total: 4, Used: 4}}},
		{"several pools, and then no more", []string{"25 10.0.0.0/25 10.9.0.0/25"}, []string{"a 0", "b 0", "c 0"},
			[]string{"a 10.0.0.0/25 |", "b 10.9.0.0/25 |", "c | no /25 is left in 10.0.0.0/25, 10.9.0.0/25"},
			[]clusterpool.Use{{Total: 2, Used: 2, Lacking: 1}}},
		{"a second family is added", []string{"24 10.0.0.0/22", "64 fd00::/48"}, []string{"a 5 10.0.2.0/24"},
			[]string{"a 10.0.2.0/24,fd00::/64 |"}, []clusterpool.Use{{Total: 4, Used: 1}, {Total: 65536, Used: 1}}},
		{"twice: the older one is right", []string{"24 10.0.0.0/22"}, []string{"a 1 10.0.0.0/24",
			"b 9 10.0.0.0/24", "c 0"},
			[]string{"a 10.0.0.0/24 | podCIDR 10.0.0.0/24 overlaps what node b has: delete this CiliumNode, and the " +
				"node's pods, so that it gets another", "b 10.0.0.0/24 |", "c 10.0.1.0/24 |"},
			[]clusterpool.Use{{Total: 4, Used: 2}}},
		{"of another length, or of no pool", []string{"24 10.0.0.0/22"},
			[]string{"a 1 10.0.0.0/25", "b 1 172.16.0.0/24", "c 0"},
			[]string{"a 10.0.0.0/25 | podCIDR 10.0.0.0/25 is of no pool: it stays",
				"b 172.16.0.0/24 | podCIDR 172.16.0.0/24 is of no pool: it stays", "c 10.0.1.0/24 |"},
			[]clusterpool.Use{{Total: 4, Used: 2}}},
		{"unreadable", []string{"24 10.0.0.0/22"}, []string{"a 1 10.0.0.1/24"},
			[]string{`a 10.0.0.1/24 | podCIDR "10.0.0.1/24" is not a CIDR such as 10.0.1.0/24 or fd00:1::/64`},
			[]clusterpool.Use{{Total: 4}}},
		{"the end of all addresses", []string{"120 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120"},
			[]string{"a 0", "b 0"},
			[]string{"a ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120 |",
				"b | no /120 is left in ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120"},
			[]clusterpool.Use{{Total: 1, Used: 1, Lacking: 1}}},
	}
}

func TestAssign(t *testing.T) {
	for _, c := range assignCases() {
		var families []clusterpool.Family
		for _, f := range c.families {
			families = append(families, family(f))
		}
		var claims []clusterpool.Claim
		for _, text := range c.claims {
			claims = append(claims, claim(text))
		}
		for range 2 { // in both orders
			grants, use := clusterpool.Assign(families, claims)
			var got []string
			for node, g := range grants {
				got = append(got, strings.TrimSpace(node+" "+strings.Join(g.PodCIDRs, ","))+" | "+g.Problem)
			}
			slices.Sort(got)
			for i, line := range got {
				if i >= len(c.want) || strings.TrimSpace(line) != c.want[i] {
					t.Errorf("%s: got\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
					break
				}
			}
			if !slices.Equal(use, c.use) {
				t.Errorf("%s: use is %+v, want %+v", c.name, use, c.use)
			}
			slices.Reverse(claims)
		}
	}
}

// TestMany: nodes come and go; no two ever have the same.
func TestMany(t *testing.T) {
	families := []clusterpool.Family{family("26 10.0.0.0/18 10.64.0.0/18"), family("112 fd00::/102")}
	have := map[string]clusterpool.Claim{}
	for round := range 30 {
		for i := range 20 {
			have[fmt.Sprintf("n%d-%d", round, i)] = clusterpool.Claim{Node: fmt.Sprintf("n%d-%d", round, i)}
		}
		for name := range have {
			if len(have) > 300 {
				delete(have, name)
			}
		}
		var claims []clusterpool.Claim
		for _, c := range have {
			claims = append(claims, c)
		}
		grants, _ := clusterpool.Assign(families, claims)
		owner := map[string]string{}
		for node, g := range grants {
			if len(g.PodCIDRs) != 2 || g.Problem != "" {
				t.Fatalf("%s: %+v", node, g)
			}
			for _, p := range g.PodCIDRs {
				if owner[p] != "" {
					t.Fatalf("%s and %s have %s", node, owner[p], p)
				}
				owner[p] = node
			}
			if old := have[node].PodCIDRs; old != nil && !slices.Equal(old, g.PodCIDRs) {
				t.Fatalf("%s had %v and has %v", node, old, g.PodCIDRs)
			}
			have[node] = clusterpool.Claim{Node: node, Since: time.Unix(int64(round+1), 0), PodCIDRs: g.PodCIDRs}
		}
	}
}
