package agent

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

func TestMatcher(t *testing.T) {
	header, rows := []string{"ID", "Pod"}, [][]string{{"2", "demo/client"}, {"22", "Demo/Server"}}
	for _, c := range []struct {
		filters []*apiv1.ListFilter
		want    string // IDs
	}{
		{nil, "2 22"},
		{[]*apiv1.ListFilter{{Column: "id", Value: "2"}}, "2"},
		{[]*apiv1.ListFilter{{Column: "ID", Value: "2", Part: true}}, "2 22"},
		{[]*apiv1.ListFilter{{Column: "Pod", Value: "demo/server"}}, "22"},
		{[]*apiv1.ListFilter{{Value: "CLIENT", Part: true}}, "2"},
		{[]*apiv1.ListFilter{{Value: "demo", Part: true}, {Column: "ID", Value: "22"}}, "22"},
		{[]*apiv1.ListFilter{{Column: "Pod", Value: "2"}}, ""},
	} {
		match, err := matcher(header, c.filters)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range rows {
			if match(row) {
				got = append(got, row[0])
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v: %v, want %s", c.filters, got, c.want)
		}
	}
	if _, err := matcher(header, []*apiv1.ListFilter{{Column: "Name"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a column that is not there: %v", err)
	}
}

func TestJSONArray(t *testing.T) {
	var a jsonArray
	if got := string(a.close()); got != "[]" {
		t.Errorf("empty: %s", got)
	}
	for i := range 3 {
		if err := a.add(i); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(a.close()); got != "[0,1,2]" {
		t.Errorf("%s", got)
	}
	if err := a.add(make(chan int)); err == nil {
		t.Error("a channel as JSON")
	}
}
