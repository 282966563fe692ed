package proxy

import (
	"os"
	"testing"

	"myelin/endpoint/nettest"
)

// TestMain runs in network and mount namespaces of its own.
func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }
