package config

import (
	"strings"
	"testing"
)

func TestHubble(t *testing.T) {
	for text, want := range map[string]string{
		"hubble: {enabled: false}":                                 "",
		"hubble: {eventBufferCapacity: '8191', preferIpv6: true}":  "",
		"hubble: {eventBufferCapacity: auto}":                      "",
		"hubble: {eventBufferCapacity: full}":                      "full",
		"hubble: {eventBufferCapacity: 4096}":                      "4096 is not one less than a power of two",
		"hubble: {eventBufferCapacity: 131071}":                    "131071 is not in 1..65535",
		"hubble: {socketPath: x}":                                  "not a clean absolute path",
		"hubble: {listenAddress: ':4244'}":                         "there is no myelin.hubble.tls.certFile",
		"hubble: {listenAddress: ':4244', enabled: false}":         "",
		"hubble: {listenAddress: ':4244', tls: {enabled: false}}":  "",
		"hubble: {listenAddress: 'x:4244', tls: {enabled: false}}": "is not an address and port",
		"myelin: {hubble: {tls: {certFile: /c}}}":                  "keyFile must both be set",
		"hubble: {listenAddress: ':4'}\n" +
			"myelin: {hubble: {tls: {certFile: /c, keyFile: /k}}}": "",
		"hubble: {metrics: {dynamic: {enabled: true}}}": "not yet: metrics that are configured",
	} {
		c, err := Parse([]byte(text), "f.yaml")
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		case strings.Contains(text, "auto") && (c.Hubble.EventBufferCapacity != 0 || c.Hubble.Capacity() != 4095):
			t.Errorf("%+v", c.Hubble)
		case strings.Contains(text, "8191") && (c.Hubble.EventBufferCapacity != 8191 || !c.Hubble.Enabled):
			t.Errorf("%+v", c.Hubble)
		}
	}
}
