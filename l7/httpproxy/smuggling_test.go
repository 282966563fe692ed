package httpproxy_test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"myelin/l7/config"
	"myelin/policy"
)

// smugglingCase is a row of testdata/smuggling.txt.
type smugglingCase struct{ name, status, request, server string }

func smugglingCases(t *testing.T) []smugglingCase {
	text, err := os.ReadFile("testdata/smuggling.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []smugglingCase
	for row := range strings.SplitSeq(string(text), "\n") {
		if row == "" || row[0] == '#' {
			continue
		}
		columns := strings.Split(row, "\t")
		if len(columns) != 4 {
			t.Fatalf("%q has %d columns", row, len(columns))
		}
		for i, column := range columns {
			column = strings.ReplaceAll(strings.ReplaceAll(column, `"`, `\"`), "|", `\r\n`)
			if columns[i], err = strconv.Unquote(`"` + column + `"`); err != nil {
				t.Fatalf("%q: %v", row, err)
			}
		}
		c := smugglingCase{columns[0], columns[1], columns[2], columns[3]}
		switch c.server {
		case "same":
			c.server = c.request
		case "-":
			c.server = ""
		}
		cases = append(cases, c)
	}
	return cases
}

func TestSmuggling(t *testing.T) {
	cases := smugglingCases(t)
	if len(cases) < 60 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) { checkSmuggling(t, test, (*rig).exchange, "") })
		t.Run("looped "+test.name, func(t *testing.T) {
			checkSmuggling(t, test, (*rig).exchangeLooped, "GET /p/first HTTP/1.1\r\nHost: a\r\n\r\n")
		})
	}
}

// exchangeLooped is exchange on a connection that a loop relays, after requests for /p/first.
func (r *rig) exchangeLooped(send string) string {
	r.t.Helper()
	conn, in := r.looped("/p/first")
	if _, err := io.WriteString(conn, send); err != nil {
		r.t.Fatal(err)
	}
	conn.CloseWrite()
	got, err := io.ReadAll(in)
	if err != nil {
		r.t.Errorf("read response: %v", err)
	}
	return string(got)
}

// checkSmuggling checks a case. The server gets first before it.
func checkSmuggling(t *testing.T, test smugglingCase, exchange func(*rig, string) string, first string) {
	server := newRecorder(t)
	r := newRig(t, server.address, config.HTTP{}, rules(t, []policy.HTTPRule{
		{Method: "GET|POST", Path: "/(p|next)?([/?%].*)?"}}))
	got := statuses(exchange(r, test.request))
	sent := server.bytes()
	for rest, ok := sent, first != ""; ok; rest, ok = strings.CutPrefix(sent, first) {
		sent = rest
	}
	switch test.status {
	case "close":
		// The head may have been forwarded before the body came; what follows the error is not.
		if strings.Contains(sent, "abc") || strings.Contains(sent, "Content-Length: 5") ||
			strings.HasSuffix(sent, "0\r\n\r\n") {
			t.Errorf("the server got %q", sent)
		}
	default:
		if first, _, _ := strings.Cut(got, " "); first != test.status || sent != test.server {
			t.Errorf("status %q instead of %q; the server got %q", got, test.status, sent)
		}
	}
}
