package lbipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"myelin/cluster"
	"myelin/operator/lbipam"
)

// pool reads "NAME AGE [disabled] [SELECTOR] RANGE…"; a range is a CIDR, one without its edges with "!", or
// FIRST-LAST.
func pool(text string) lbipam.Pool {
	words := strings.Fields(text)
	p := lbipam.Pool{Name: words[0], Created: age(words[1])}
	for _, w := range words[2:] {
		first, last, isRange := strings.Cut(w, "-")
		switch {
		case w == "disabled":
			p.Disabled = true
		case strings.Contains(w, "="):
			p.Selector, _ = labels.Parse(w)
		case isRange:
			p.Ranges = append(p.Ranges, lbipam.Range{First: netip.MustParseAddr(first),
				Last: netip.MustParseAddr(last)})
		default:
			bare := strings.TrimSuffix(w, "!")
			p.Ranges = append(p.Ranges, lbipam.FromPrefix(netip.MustParsePrefix(bare), bare == w))
		}
	}
	return p
}

func age(text string) time.Time {
	var n int64
	fmt.Sscan(text, &n)
	return time.Unix(10000-n, 0)
}

// service reads "NS/NAME AGE WORD…": 4, 6, local, app=x, has:A, ask:A, share:KEY, with:NS, port:P.
func service(text string) lbipam.Service {
	words := strings.Fields(text)
	ns, name, _ := strings.Cut(words[0], "/")
	s := lbipam.Service{Key: cluster.Key{Namespace: ns, Name: name}, Created: age(words[1]),
		Labels: map[string]string{}, Ports: nil}
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, ":")
		switch key {
		case "4":
			s.IPv4 = true
		case "6":
			s.IPv6 = true
		case "local":
			s.Local, s.Selector = true, map[string]string{"app": value}
		case "has":
			s.Has = append(s.Has, netip.MustParseAddr(value))
		case "ask":
			if a, err := netip.ParseAddr(value); err == nil {
				s.Asked = append(s.Asked, a)
			} else {
				s.AskedWrong = append(s.AskedWrong, value)
			}
		case "share":
			s.Sharing = value
		case "with":
			s.Namespaces = append(s.Namespaces, value)
		case "port":
			s.Ports = append(s.Ports, value)
		default:
			k, v, _ := strings.Cut(w, "=")
			s.Labels[k] = v
		}
	}
	return s
}

// scene is pools and Services, and what comes of them.
type scene struct {
	name            string
	pools, services []string
	want            []string // "NS/NAME ADDRESSES reason"
	usage           string   // "NAME USED/TOTAL[!CONFLICT]" of all pools
}

func scenes() []scene {
	return []scene{
		{"both families", []string{"p 1 192.0.2.0/30 2001:db8::/126"}, []string{"a/a 9 4 6", "a/b 8 6"},
			[]string{"a/a 192.0.2.0,2001:db8:: ", "a/b 2001:db8::1 "}, "p 3/8"},
		{"without the edges", []string{"p 1 192.0.2.0/30!"}, []string{"a/a 3 4", "a/b 2 4", "a/c 1 4"},
			[]string{"a/a 192.0.2.1 ", "a/b 192.0.2.2 ", "a/c  out_of_ips"}, "p 2/2"},
		{"a /32 has its edge", []string{"p 1 192.0.2.7/32!"}, []string{"a/a 3 4"}, []string{"a/a 192.0.2.7 "}, "p 1/1"},
		{"what it has stays, also in a disabled pool", []string{"p 1 disabled 192.0.2.5-192.0.2.9"},
			[]string{"a/a 1 4 has:192.0.2.8", "a/b 9 4"},
			[]string{"a/a 192.0.2.8 ", "a/b  no_pool"}, "p 1/5"},
		{"the pool is another", []string{"p 1 198.51.100.0/31"}, []string{"a/a 1 4 has:192.0.2.8"},
			[]string{"a/a 198.51.100.0 "}, "p 1/2"},
		{"selectors", []string{"x 2 app=x 192.0.2.0/31", "n 1 io.kubernetes.service.namespace=n 198.51.100.0/31"},
			[]string{"a/a 9 4 app=x", "n/b 8 4", "a/c 7 4", "n/d 6 4 app=x"},
			[]string{"a/a 192.0.2.0 ", "a/c  no_pool", "n/b 198.51.100.0 ", "n/d 192.0.2.1 "}, "n 1/2 x 2/2"},
		{"the next pool when one is empty", []string{"p 2 192.0.2.0/32", "q 1 198.51.100.0/32"},
			[]string{"a/a 9 4", "a/b 8 4", "a/c 7 4"},
			[]string{"a/a 192.0.2.0 ", "a/b 198.51.100.0 ", "a/c  out_of_ips"}, "p 1/1 q 1/1"},
		{"overlapping: the older pool counts", []string{"old 9 192.0.2.0/30", "new 1 192.0.2.3-192.0.2.8"},
			[]string{"a/a 1 4 has:192.0.2.5"},
			[]string{"a/a 192.0.2.0 "}, "new 0/6!old old 1/4"},
		{"asked for", []string{"p 1 192.0.2.0/29 2001:db8::/125"}, []string{"a/a 9 4 6 ask:2001:db8::3 ask:192.0.2.3",
			"a/b 8 4 ask:192.0.2.3", "a/c 7 4 ask:192.0.2.99", "a/d 6 4 ask:192.0.2.4 ask:nonsense",
			"a/e 5 4 ask:2001:db8::5"},
			[]string{"a/a 2001:db8::3,192.0.2.3 ", "a/b  already_allocated", "a/c  no_pool",
				"a/d 192.0.2.4 invalid_address", "a/e  wrong_family"}, "p 3/16"},
		{"asked for one that another has had", []string{"p 1 192.0.2.0/29"},
			[]string{"a/a 9 4 ask:192.0.2.3", "a/b 8 4 has:192.0.2.3"},
			[]string{"a/a  already_allocated", "a/b 192.0.2.3 "}, "p 1/8"},
		{"sharing", []string{"p 1 192.0.2.0/29"}, []string{"a/a 9 4 share:k port:80/TCP",
			"a/b 8 4 share:k port:443/TCP", "a/c 7 4 share:k port:80/TCP", "a/d 6 4 share:other port:1/TCP",
			"b/e 5 4 share:k port:2/TCP", "a/f 4 4 port:3/TCP"},
			[]string{"a/a 192.0.2.0 ", "a/b 192.0.2.0 ", "a/c 192.0.2.1 ", "a/d 192.0.2.2 ", "a/f 192.0.2.4 ",
				"b/e 192.0.2.3 "}, "p 5/8"},
		{"sharing across namespaces, if both say so", []string{"p 1 192.0.2.0/29"},
			[]string{"a/a 9 4 share:k with:b port:80/TCP", "b/b 8 4 share:k with:* port:81/TCP",
				"c/c 7 4 share:k with:a port:82/TCP"},
			[]string{"a/a 192.0.2.0 ", "b/b 192.0.2.0 ", "c/c 192.0.2.1 "}, "p 2/8"},
		{"sharing with local traffic: the same pods", []string{"p 1 192.0.2.0/29"},
			[]string{"a/a 9 4 share:k local:x port:80/TCP", "a/b 8 4 share:k local:x port:81/TCP",
				"a/c 7 4 share:k local:y port:82/TCP", "a/d 6 4 share:k port:83/TCP"},
			[]string{"a/a 192.0.2.0 ", "a/b 192.0.2.0 ", "a/c 192.0.2.1 ", "a/d 192.0.2.2 "}, "p 3/8"},
		{"no longer wanted", []string{"p 1 192.0.2.0/29 2001:db8::/125"},
			[]string{"a/a 9 4 has:192.0.2.4 has:2001:db8::4"}, []string{"a/a 192.0.2.4 "}, "p 1/16"},
	}
}

func TestAllocate(t *testing.T) {
	for _, c := range scenes() {
		pools, services := []lbipam.Pool{}, []lbipam.Service{}
		for _, p := range c.pools {
			pools = append(pools, pool(p))
		}
		for _, s := range c.services {
			services = append(services, service(s))
		}
		for range 2 { // in both orders
			answers, usage := lbipam.Allocate(pools, services)
			var got, used []string
			for key, a := range answers {
				var list []string
				for _, addr := range a.Addresses {
					list = append(list, addr.String())
				}
				got = append(got, fmt.Sprintf("%s %s %s", key, strings.Join(list, ","), a.Reason))
				if (a.Reason == "") != (a.Message == "") {
					t.Errorf("%s: %s: reason %q, message %q", c.name, key, a.Reason, a.Message)
				}
			}
			for name, u := range usage {
				text := fmt.Sprintf("%s %d/%d", name, u.Used, u.Total)
				if u.Conflict != "" {
					text += "!" + u.Conflict
				}
				used = append(used, text)
			}
			slices.Sort(got)
			slices.Sort(used)
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: got\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if text := strings.Join(used, " "); text != c.usage {
				t.Errorf("%s: usage is %s, want %s", c.name, text, c.usage)
			}
			slices.Reverse(pools)
			slices.Reverse(services)
		}
	}
}
