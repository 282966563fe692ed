package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"myelin/l7/control"
	"myelin/l7/dns"
)

// maxPacket is the largest IP packet that the TUN device has.
const maxPacket = 1 << 16

// startDNS restores what is known of names.
func (p *proxy) startDNS(ctx context.Context) error {
	clock, err := dns.NewSystemClock()
	if err != nil {
		return err
	}
	p.maps.clock = clock
	p.dns = dns.New(dns.Params{
		Map: &p.maps, Clock: clock, Log: p.Log, Questions: &p.maps,
		Rules: func(source, destination netip.AddrPort, proto uint8) dns.FlowRules {
			rules, _ := p.maps.rules(source, destination, proto)
			rules.Numbers = p.rules.Load().dnsOf(rules.Numbers)
			return rules
		},
		Record: func(r *dns.Record) {
			copied := *r
			copied.Addresses = append([]netip.Addr(nil), r.Addresses...)
			copied.CNAMEs = append([]string(nil), r.CNAMEs...)
			copied.QueryTypes = append([]uint16(nil), r.QueryTypes...)
			copied.AnswerTypes = append([]uint16(nil), r.AnswerTypes...)
			p.records.add(control.Record{DNS: &copied,
				Flow: control.Flow{Source: r.Source, Destination: r.Destination, Proto: r.Proto}})
		},
	})
	if err := p.maps.forgetQuestions(); err != nil {
		return err
	}
	p.passedBefore = p.maps.passed()
	p.rules.Store(new(rules))
	if p.readUntil, p.stopReading, err = os.Pipe(); err != nil {
		return fmt.Errorf("make the pipe that ends reading: %w", err)
	}
	if p.journal, err = dns.OpenJournal(p.dns, control.NamesFile(p.RunDir)); err != nil {
		return err
	}
	ctx, p.stopDNS = context.WithCancel(ctx)
	var jobs sync.WaitGroup
	jobs.Add(3)
	go func() {
		defer jobs.Done()
		p.journal.Run(ctx)
	}()
	go func() {
		defer jobs.Done()
		p.renew(ctx)
	}()
	go func() {
		defer jobs.Done()
		p.collect(ctx)
	}()
	go func() {
		jobs.Wait()
		close(p.dnsStopped)
	}()
	return nil
}

// endDNS reads no more packets, and completes the journal.
func (p *proxy) endDNS() {
	for _, q := range p.Queues {
		detach(q)
	}
	time.Sleep(10 * time.Millisecond) // for packets that are in the queues
	p.stopReading.Close()             // an error says that it is closed already
	p.readers.Wait()
	for _, q := range p.Queues {
		q.Close() // an error says that it is closed already
	}
	p.stopDNS()
	<-p.dnsStopped
}

// detach makes the kernel put no more packets into a queue.
func detach(q *os.File) {
	raw, err := q.SyscallConn()
	if err != nil {
		return
	}
	request, err := unix.NewIfreq(DeviceName)
	if err != nil {
		return
	}
	request.SetUint16(unix.IFF_DETACH_QUEUE)
	// An error says that the queue is closed or detached already.
	_ = raw.Control(func(fd uintptr) { _ = unix.IoctlIfreq(int(fd), unix.TUNSETQUEUE, request) })
}

// readDNS passes packets on, of each queue in a goroutine.
func (p *proxy) readDNS() {
	for _, q := range p.Queues {
		p.readers.Go(func() {
			if err := p.pass(q); err != nil {
				p.Log.Error("DNS messages do not pass any more", "error", err)
			}
		})
	}
}

// pass reads packets until stopReading is closed. It waits in poll(2), not in Go's netpoller: the packet wakes the
// thread that processes it, not one that makes a goroutine runnable.
func (p *proxy) pass(q *os.File) error {
	raw, err := q.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = p.passAll(int(fd), int(p.readUntil.Fd())) })
	return errors.Join(err, failed)
}

func (p *proxy) passAll(fd, stopped int) error {
	buffer := make([]byte, maxPacket)
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(stopped), Events: unix.POLLIN}}
	for {
		n, err := unix.Read(fd, buffer)
		if errors.Is(err, unix.EAGAIN) {
			if _, err = unix.Poll(ready, -1); err == nil && ready[1].Revents != 0 {
				return nil
			}
			n = 0
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("read from %s: %w", DeviceName, err)
		}
		if n <= 0 {
			continue
		}
		out := p.dns.Packet(buffer[:n])
		if out == nil {
			continue
		}
		if _, err := unix.Write(fd, out); err != nil && !errors.Is(err, unix.EIO) { // EIO: the device is down
			return fmt.Errorf("write to %s: %w", DeviceName, err)
		}
	}
}

// renew has DNS messages pass in the datapath for longer.
func (p *proxy) renew(ctx context.Context) {
	tick := time.NewTicker(dns.RenewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.dns.Renew()
		}
	}
}

// collect forgets names whose TTL has ended, unless a connection uses their address.
func (p *proxy) collect(ctx context.Context) {
	tick := time.NewTicker(dns.CollectInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		used, err := p.maps.peers(p.rules.Load().slots())
		if err != nil {
			p.Log.Error("Names are kept longer than their TTL", "error", err)
			continue
		}
		p.dns.Collect(func(slot uint16, a netip.Addr) bool { return used[peer{slot, a}] })
	}
}
