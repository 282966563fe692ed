package config

import (
	"strings"
	"testing"
)

func TestLogFormat(t *testing.T) {
	for text, want := range map[string]string{"": "text", "myelin: {logFormat: json}": "json"} {
		if c, err := Parse([]byte(text), "f"); err != nil || c.Myelin.LogFormat != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Parse([]byte("myelin: {logFormat: xml}"), "f"); err == nil ||
		!strings.Contains(err.Error(), "f: myelin.logFormat: ") {
		t.Errorf("xml: %v", err)
	}
	c, err := parse(
		[]byte("myelin: {logFormat: json}"),
		"f",
		flagList{{Name: "--log-format", Key: "myelin.logFormat", Value: "text"}},
	)
	if err != nil || c.Myelin.LogFormat != "text" {
		t.Errorf("a flag goes over the file: %v", err)
	}
}
