// Package operator is what a cluster needs once, not on each node: it defines
// Cilium's kinds, says in policies' status what becomes of them, gives nodes
// prefixes for their pods and Services addresses. Nodes forward without it.
package operator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/config"
	"myelin/kube"
)

// Params are what an Operator needs.
type Params struct {
	Config *config.Config
	Server *kube.Server
	Log    *slog.Logger
	Now    func() time.Time
	// LeaderElect: there may be others; one leads, by a Lease in Namespace, under the
	// name Identity.
	LeaderElect         bool
	Namespace, Identity string
	// MigrateFromCilium goes on where Cilium runs, and takes its definitions over.
	MigrateFromCilium bool
	// Pace is how long changes are collected before they are acted on, and how
	// often at most counts are written into a policy's status; zero: 200 ms and 10 s.
	Pace, CountPace time.Duration
	// Certificates are made and renewed, in Secrets of Namespace; none: no rights to Secrets are needed.
	Certificates []Certificate
	// CertificatePace is how often Secrets are looked at; zero: every minute.
	CertificatePace time.Duration
	// Registry gets the operator's metrics.
	Registry *prometheus.Registry
}

// Operator does what Run says.
type Operator struct {
	Params

	client  *kube.Client
	metrics *metrics

	mu      sync.Mutex
	leading bool
	problem error // of the newest pass
}

// Pace and CountPace where they are not set.
const (
	defaultPace      = 200 * time.Millisecond
	defaultCountPace = 10 * time.Second
)

// New makes an operator that does nothing yet.
func New(p Params) (*Operator, error) {
	client, err := p.Server.Client()
	if err != nil {
		return nil, err
	}
	if p.Pace == 0 {
		p.Pace = defaultPace
	}
	if p.CountPace == 0 {
		p.CountPace = defaultCountPace
	}
	if p.CertificatePace == 0 {
		p.CertificatePace = defaultCertificatePace
	}
	o := &Operator{Params: p, client: client}
	o.metrics = newMetrics(o)
	return o, nil
}

// Run works until ctx ends, while it leads. It returns an error where Cilium runs
// and is not to be replaced.
func (o *Operator) Run(ctx context.Context) error {
	if err := o.preflight(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if !o.LeaderElect {
		o.lead(ctx)
		return nil
	}
	newLease(o.client, o.Namespace, o.Identity, o.Log, o.Now).run(ctx, o.lead)
	return nil
}

// preflight waits for the server, and looks for Cilium.
func (o *Operator) preflight(ctx context.Context) error {
	for {
		cilium, err := DetectCilium(ctx, o.client)
		switch {
		case err == nil && cilium != nil && !o.MigrateFromCilium:
			return fmt.Errorf("refused: %s\n%s", cilium, cilium.Steps())
		case err == nil && cilium != nil:
			o.Log.Warn("Cilium runs in this cluster, and is to be replaced", "found", cilium.String())
			return nil
		case err == nil:
			return nil
		}
		o.note(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryMin):
		}
	}
}

// retryMin and retryMax bound the time until something that failed is tried again.
const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// note keeps what went wrong last, and logs it when it is news.
func (o *Operator) note(err error) {
	o.mu.Lock()
	said := err == nil || o.problem != nil && o.problem.Error() == err.Error()
	o.problem = err
	o.mu.Unlock()
	if !said {
		o.Log.Error("something failed and will be tried again", "error", err)
	}
}

// State is whether the operator leads, and what went wrong last.
func (o *Operator) State() (leading bool, problem error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leading, o.problem
}

func (o *Operator) setLeading(is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leading = is
}

// lead does everything until ctx ends. What it knows it learns anew: others may
// have led before.
func (o *Operator) lead(ctx context.Context) {
	o.setLeading(true)
	defer o.setLeading(false)
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	w := o.world(poke)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	// Kinds that are defined are found at once.
	defined := o.define(ctx) == nil
	for _, run := range w.caches() {
		jobs.Go(func() {
			if err := run(ctx); err != nil {
				o.note(err)
			}
		})
	}
	delay := retryMin
	for ctx.Err() == nil {
		err := o.pass(ctx, w, &defined)
		if ctx.Err() != nil {
			return
		}
		o.note(err)
		var again <-chan time.Time
		if again = w.later(o.Now()); err != nil {
			again, delay = time.After(delay), min(2*delay, retryMax)
		} else {
			delay = retryMin
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-again:
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.Pace):
		}
	}
}
