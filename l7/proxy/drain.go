package proxy

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"myelin/internal/daemon"
	"myelin/l7/control"
)

// handTime is between two attempts to hand records over.
const handTime = 50 * time.Millisecond

// Drain implements control.Handler.
func (p *proxy) Drain() {
	p.drain.Do(func() {
		p.Log.Info("Another proxy takes over")
		p.announce()
		p.endDNS()
		p.http.Load().Drain()
		close(p.draining)
	})
	<-p.dnsStopped
}

// announce lets this process be found when the control socket is another one's.
func (p *proxy) announce() {
	var err error
	if p.announced, err = daemon.Listen(control.DrainSocket(p.RunDir, p.started)); err != nil {
		p.Log.Warn("Clean-up of the node will not find this proxy", "error", err)
	}
}

// unannounce removes the socket of announce. If it does not, the next proxy that starts does.
func (p *proxy) unannounce() {
	if p.isDraining() && p.announced != nil {
		_ = errors.Join(os.Remove(control.DrainSocket(p.RunDir, p.started)), p.announced.Close())
	}
}

func (p *proxy) isDraining() bool {
	select {
	case <-p.draining:
		return true
	default:
		return false
	}
}

// finish waits until requests that are being served have ended, for a short time: nothing accepts connections
// afterwards, unless another proxy takes over meanwhile.
func (p *proxy) finish(ctx context.Context) {
	p.http.Load().Drain()
	deadline := time.After(endTime)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.open.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-deadline:
			p.Log.Info("Connections end with the proxy that served them", "connections", p.open.Load())
			return
		case <-p.draining:
			p.waitConnections(ctx)
			return
		case <-tick.C:
		}
	}
}

// waitConnections closes the listener when the last connections that were redirected here are accepted, and waits for
// all connections to end.
func (p *proxy) waitConnections(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	if p.Pod == "" { // Kubernetes bounds it for a pod
		defer context.AfterFunc(p.Ending, func() { time.AfterFunc(lastTime, cancel) })()
	}
	handed := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(handed)
		p.handRecords(ctx, over)
	}()
	closing := time.NewTimer(handoverTime)
	defer closing.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	accepting := true
	for accepting || p.open.Load() > 0 {
		select {
		case <-ctx.Done():
			p.Log.Warn("Connections end with the proxy that served them", "connections", p.open.Load())
			return
		case <-closing.C:
			accepting = false
			p.listener.Close()
		case <-tick.C:
		}
	}
	close(over)
	select {
	case <-handed:
	case <-time.After(endTime):
	}
}

// handRecords hands records over to the proxy that has taken over, where the agent reads them, until no more come.
func (p *proxy) handRecords(ctx context.Context, over <-chan struct{}) {
	client, next := control.NewClient(p.RunDir), p.records.unread()
	for {
		last := false
		select {
		case <-over:
			last = true
		case <-ctx.Done():
			return
		case <-time.After(handTime):
		}
		if pid, err := control.Process(p.RunDir); err != nil || pid == unix.Getpid() { // it has not taken over yet
			if last {
				return
			}
			continue
		}
		records, _ := p.records.take(next)
		if len(records.List) > 0 && client.Add(ctx, records.List) == nil { // or the next attempt does it
			next = records.Next
		}
		if last {
			return
		}
	}
}

// refresh loads the rules that the agent has written since. While this proxy serves its last connections, the agent
// configures only the one that has taken over.
func (p *proxy) refresh() {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	info, err := os.Stat(control.ConfigFile(p.RunDir))
	if err != nil || p.loaded != nil && os.SameFile(p.loaded, info) && p.loaded.ModTime().Equal(info.ModTime()) {
		return // without a file, what was loaded stays in force
	}
	c, err := readConfig(p.RunDir)
	if err == nil {
		err = p.maps.reopen()
	}
	if err == nil {
		err = p.setRules(c)
	}
	if err != nil {
		p.Log.Error("Connections keep the rules that they had when another proxy took over", "error", err)
	}
	p.loaded = info
}
