package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestFormats(t *testing.T) {
	for format, parse := range map[string]func(line string) (level, msg, key string){
		Text: func(line string) (level, msg, key string) {
			for _, field := range strings.Fields(line) {
				for name, to := range map[string]*string{"level": &level, "msg": &msg, "key": &key} {
					if v, ok := strings.CutPrefix(field, name+"="); ok {
						*to = v
					}
				}
			}
			return level, msg, key
		},
		JSON: func(line string) (level, msg, key string) {
			var v struct{ Level, Msg, Key string }
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			return v.Level, v.Msg, v.Key
		},
	} {
		var out bytes.Buffer
		recent := &Recent{Bytes: 1 << 10}
		log, err := New(&out, format, false, recent)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("hidden")
		log.Warn("shown", "key", "value")
		if level, msg, key := parse(out.String()); level != "WARN" || msg != "shown" || key != "value" {
			t.Errorf("%s: %s", format, &out)
		}
		if lines := recent.Lines(); len(lines) != 1 || lines[0]+"\n" != out.String() {
			t.Errorf("%s: kept %q, wrote %q", format, lines, &out)
		}
		if log, err = New(&out, format, true, nil); err != nil {
			t.Fatal(err)
		}
		if log.Debug("debugged"); !strings.Contains(out.String(), "debugged") {
			t.Errorf("%s with debug: %s", format, &out)
		}
	}
	if _, err := New(&bytes.Buffer{}, "xml", false, nil); err == nil ||
		!strings.Contains(err.Error(), "want text or json") {
		t.Errorf("xml: %v", err)
	}
}

func TestRecentIsBounded(t *testing.T) {
	r := &Recent{Bytes: 20}
	for i := range 1000 {
		if n, err := fmt.Fprintf(r, "line %d\n", i); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	if got := strings.Join(r.Lines(), ","); got != "line 998,line 999" {
		t.Errorf("kept %s", got)
	}
	fmt.Fprintln(r, strings.Repeat("x", 100))
	if got := r.Lines(); len(got) != 1 || got[0] != strings.Repeat("x", 20) {
		t.Errorf("a long line: %q", got)
	}
	if cap(r.lines) > 64 {
		t.Errorf("an array of %d for one line", cap(r.lines))
	}
}
