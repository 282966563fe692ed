package bigtcp

import (
	"os"
	"testing"

	"myelin/endpoint/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }
