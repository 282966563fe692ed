package host

import (
	"os"
	"testing"

	"myelin/endpoint/nettest"
)

// TestMain runs in network and mount namespaces of its own, and is what Enter and the test of proxies run.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "among" {
		os.Exit(among(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "proxy" {
		os.Exit(listening(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "end-proxy" {
		os.Exit(ending(os.Args[2]))
	}
	os.Exit(nettest.Main(m))
}
