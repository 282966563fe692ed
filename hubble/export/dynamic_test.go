package export

import (
	"os"
	"strings"
	"testing"
)

func TestDynamic(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/flowlogs.yaml"
	list := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("flowLogs:\n"+strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := func(name string) string {
		data, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	a, b := `- {name: a, fieldMask: [uuid], filePath: `+dir+`/a.log}`, `- {name: b, fieldMask: [uuid], filePath: `+
		dir+`/b.log, includeFilters: [{verdict: [DROPPED]}]}`
	line := func(id string) string { return `{"flow":{"uuid":"` + id + `"}}` + "\n" }

	d := NewDynamic(path, params())
	if err := d.read(); err == nil {
		t.Error("a file that is not there is read")
	}
	list(a, b)
	if err := d.read(); err != nil {
		t.Fatal(err)
	}
	first := (*d.running.Load())[0]
	d.Consume(flow("1"))
	list(a, strings.Replace(b, "DROPPED", "FORWARDED", 1))
	if err := d.read(); err != nil {
		t.Fatal(err)
	}
	d.Consume(flow("2"))
	if (*d.running.Load())[0] != first {
		t.Error("an exporter that has not changed was replaced")
	}
	list(a, strings.Replace(b, "DROPPED", "DROPED", 1))
	if err := d.read(); err == nil || !strings.Contains(err.Error(), path+": flowLogs[1] b: includeFilters") {
		t.Errorf("%v, want one that names file, exporter and field", err)
	}
	d.Consume(flow("3"))
	if states, _ := d.States(); len(states) != 2 || states[0].Name != "a" || states[1].Target != dir+"/b.log" {
		t.Errorf("states %+v", states)
	}
	if err := d.apply(nil); err != nil {
		t.Fatal(err)
	}
	if got := content("a.log"); got != line("1")+line("2")+line("3") {
		t.Errorf("a: %s", got)
	}
	if got := content("b.log"); got != line("2")+line("3") {
		t.Errorf("b: %s", got)
	}
}
