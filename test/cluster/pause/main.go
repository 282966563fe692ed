// Command pause is the first process of a pod's sandbox, and of a node of test/cluster: it waits for a signal to end,
// and collects the dead.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for pid := 1; pid > 0; {
			var err error
			pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil {
				break
			}
		}
	}
}
