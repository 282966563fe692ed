package packet

import "testing"

type diffRow struct {
	name, want, got, diff string
	ignore                []string
}

func diffRows() []diffRow {
	const same = `eth pod1 > gw | ip pod1 > pod2 badsum | udp 1 > 2`
	return []diffRow{
		{name: "same", want: same, got: same},
		{
			name: "ttl, and the checksum that follows from it",
			want: `eth pod1 > gw | ip pod1 > pod2 ttl 63 | udp 1 > 2`,
			got:  `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2`,
			diff: `ip.ttl: want 63 got 64`,
		},
		{
			name: "wrong checksum",
			want: `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2 S`,
			got:  `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2 S sum 0x1234`,
			diff: `tcp.sum: want 0x99d5 (right) got 0x1234 (wrong)`,
		},
		{
			name: "checksum that NAT forgot",
			want: `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2 S`,
			got:  `eth pod1 > gw | ip pod1 > world | tcp 1 > 2 S sum 0x99d5`,
			diff: "ip.dst: want pod2 got world\ntcp.sum: want 0x99d5 (right) got 0x99d5 (wrong)",
		},
		{name: "any wrong checksum is badsum", want: `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2 S badsum`,
			got: `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2 S sum 0x1234`},
		{
			name: "a wrong checksum was wanted",
			want: `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2 badsum`,
			got:  `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2`,
			diff: `udp.sum: want 0xbc85 (wrong) got 0xe9d0 (right)`,
		},
		{
			name: "a checksum was wanted, and there is none",
			want: `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2`, got: `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2 nosum`,
			diff: `udp.sum: want 0xe9d0 (right) got none`,
		},
		{
			name: "quoted packet",
			want: `eth gw > pod1 | ip gw > pod1 | icmp unreachable port | ip pod1 > world | udp 7 > 2`,
			got:  `eth gw > pod1 | ip gw > pod1 | icmp unreachable port | ip pod1 > pod2 | udp 7 > 2`,
			diff: `ip#2.dst: want world got pod2`,
		},
		{
			name:   "ignored",
			want:   `eth pod1 > gw | ip pod1 > pod2 id 5 | udp 1 > 2 sum 7`,
			got:    `eth pod1 > gw | ip pod1 > pod2 id 6 | udp 1 > 2 sum 8`,
			ignore: []string{"ip.id", "*.sum"},
		},
		{
			name: "another layer",
			want: `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2 | "x"`, got: `eth pod1 > gw | ip pod1 > pod2 | tcp 1 > 2`,
			diff: "ip.tot-len: want 29 got 40\nip.proto: want udp got tcp\n" +
				"layer 3: want udp 1 > 2 | \"x\"\n         got tcp 1 > 2",
		},
		{name: "missing payload",
			want: `eth pod1 > gw | ip pod1 > pod2 tot-len 29 | udp 1 > 2 len 9 nosum | "x"`,
			got:  `eth pod1 > gw | ip pod1 > pod2 tot-len 29 | udp 1 > 2 len 9 nosum`,
			diff: "layer 4: want \"x\"\n         got the end"},
	}
}

func TestDiff(t *testing.T) {
	for _, test := range diffRows() {
		t.Run(test.name, func(t *testing.T) {
			want, err := Parse(test.want, IPv4, testNames())
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(test.got, IPv4, testNames())
			if err != nil {
				t.Fatal(err)
			}
			if d := Diff(want, got, testNames(), test.ignore...); d != test.diff {
				t.Errorf("got:\n%s\nwant:\n%s", d, test.diff)
			}
		})
	}
}

func TestDiffIP(t *testing.T) {
	want, err := ParseIP(`ip pod1 > pod2 ttl 1 | "x"`, IPv6, testNames())
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseIP(`ip pod1 > pod2 ttl 2 | "x"`, IPv6, testNames())
	if err != nil {
		t.Fatal(err)
	}
	if d := DiffIP(want, got, testNames()); d != "ip.ttl: want 1 got 2" {
		t.Errorf("got %q", d)
	}
}
