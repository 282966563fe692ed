package options

import (
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

const dynamic = `flowLogs:
- name: all
  filePath: /var/run/x/events.log
  fieldMask: []
  includeFilters: []
  aggregationInterval: "0s"
- name: drops
  filePath: /var/run/x/drops.log
  fieldMask: [source.pod_name, verdict]
  includeFilters:
  - verdict: [DROPPED]
    event_type: [{type: 1}]
  excludeFilters:
  - source_pod: [kube-system/]
  fileMaxSizeMb: 1
  fileMaxBackups: 10
  fileCompress: true
  end: "2023-10-09T23:59:59-07:00"
`

func TestDynamic(t *testing.T) {
	files, err := Dynamic([]byte(dynamic))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	if f := files[0]; f.MaxSizeMB != 10 || f.MaxBackups != 5 || !f.End.IsZero() {
		t.Errorf("defaults: %+v", f)
	}
	f := files[1]
	if !f.End.Equal(time.Date(2023, 10, 10, 6, 59, 59, 0, time.UTC)) || f.MaxSizeMB != 1 || !f.Compress ||
		f.Allow[0].GetVerdict()[0] != flowpb.Verdict_DROPPED || f.Allow[0].GetEventType()[0].GetType() != 1 ||
		f.Deny[0].GetSourcePod()[0] != "kube-system/" || len(f.Mask) != 2 {
		t.Errorf("got %+v", f)
	}
}

func TestDynamicRefused(t *testing.T) {
	for change, want := range map[string]string{
		"name: drops>name: all":               "flowLogs[1] all: name: is another",
		"name: drops>nam: drops":              `unknown field "nam"`,
		"/var/run/x/drops.log>drops.log":      "flowLogs[1] drops: filePath: \"drops.log\" is neither",
		"/drops.log>/events.log":              "filePath: /var/run/x/events.log is that of all too",
		"[DROPPED]>[DROPPEDD]":                "flowLogs[1] drops: includeFilters:",
		"source_pod: [kube>sourcepodd: [kube": `unknown field "sourcepodd"`,
		"source.pod_name>source.podname":      "flowLogs[1] drops: fieldMask:",
		"fileMaxSizeMb: 1>fileMaxSizeMb: -1":  "must not be negative",
	} {
		old, new, _ := strings.Cut(change, ">")
		_, err := Dynamic([]byte(strings.Replace(dynamic, old, new, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change, err, want)
		}
	}
}

func TestFiltersRefused(t *testing.T) {
	for _, item := range []string{`{"verdict":["NONE"]}`, `{"nothing":1}`, `verdict`} {
		_, err := Filters([]string{`{"verdict":["DROPPED","ERROR"]}`, item})
		if err == nil || !strings.HasPrefix(err.Error(), item+": is not a FlowFilter") {
			t.Errorf("%s: %v", item, err)
		}
	}
}
